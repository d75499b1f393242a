"""A request to a node that the network no longer reaches ends after ``dead_link_s``. A request to a node that
works on it for longer does not end. Both nodes live, so there is no FIN and no reset. The packets are lost
between real network namespaces.
"""

import json
import subprocess
import sys

import pytest

from shadeproxy_bench.reliability.cluster import namespaces

_PROGRAM = """
import asyncio, contextlib, json, uvloop
from shadeproxy.cluster.peers import PEER_TIMEOUTS, Peers
from shadeproxy.cluster.view import NodeFacts
from shadeproxy.core.clock import SystemClock
from shadeproxy.core.types import ObjectRef
from shadeproxy.origin.base import ForwardRequest, once
from shadeproxy_bench.reliability.cluster import namespaces
from shadeproxy_bench.reliability.cluster.namespaces import Namespaces, _ip, enter, entered

if not entered():
    enter()
network = Namespaces(["near", "owner"], dict)

heads, serving = [], set()

async def serve(reader, writer):
    # Otherwise the garbage collector could end a connection on which nothing is read.
    serving.add(asyncio.current_task())
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        heads.append(head := await reader.readuntil(b"\\r\\n\\r\\n"))
        if head.startswith(b"GET"):
            writer.write(b"HTTP/1.1 200 OK\\r\\nETag: \\"e\\"\\r\\nContent-Length: 10\\r\\n\\r\\nhalf")
        if b"/b/first" in head:
            writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")
            heads.append(await reader.readuntil(b"\\r\\n\\r\\n"))
        writer.transport.pause_reading()
        await asyncio.Event().wait()

async def ask(origin, method, key="k", size=3):
    body = {} if method == "GET" else {"body": once(bytes(size)), "content_length": size}
    request = ForwardRequest(method, ObjectRef("b", key), f"/b/{key}", **body)
    try:
        async with origin.forward(request) as answer:
            async for _ in answer.chunks:
                pass
    except Exception as error:
        return type(error).__name__

def lead(host, hardware):
    _ip("neigh", "replace", host, "lladdr", hardware, "dev", "shade0", "nud", "permanent")

async def main():
    await network.open()
    listener = network._socket_at("owner")
    listener.bind(("0.0.0.0", 9002))
    server = await asyncio.start_server(serve, sock=listener)
    peers = Peers("near", "c", ("secret",), clock=SystemClock(),
                  timeouts=PEER_TIMEOUTS._replace(dead_link_s=2.0))
    facts = NodeFacts(node="owner", weight=1.0, peer=f"{network._host('owner')}:9002")
    origin = peers.find(facts).origin
    # One connection is left for a write after the cut.
    assert await asyncio.gather(*(ask(origin, "PUT", "first") for _ in range(3))) == [None] * 3
    asked = {
        "read": asyncio.create_task(ask(origin, "GET")),
        "sent": asyncio.create_task(ask(origin, "PUT", "new", 3)),
        "being sent": asyncio.create_task(ask(origin, "PUT", "long", 32 << 20)),
    }
    _, waiting = await asyncio.wait(asked.values(), timeout=5)
    found = {"slow": len(waiting)}
    lead(network._host("owner"), namespaces._NOWHERE)
    asked["later"] = asyncio.create_task(ask(origin, "PUT"))
    await asyncio.wait(asked.values(), timeout=15)
    # The kernel sent the unacknowledged bytes again after 0.2, 0.4, ... 3.2, 6.4 s, unless they were dropped.
    before = len(heads)
    lead(network._host("owner"), namespaces._HARDWARE.format(network._numbers["owner"]))
    await asyncio.sleep(8)
    found["delivered after all"] = len(heads) - before
    found |= {name: task.result() if task.done() else "" for name, task in asked.items()}
    print(json.dumps(found), flush=True)

uvloop.run(main())
"""


def test_a_dead_link_ends_reads_and_writes_and_a_slow_node_none():
    if why := namespaces.refusal():
        pytest.skip(f"network namespaces are not permitted: {why}")
    command = [sys.executable, "-c", _PROGRAM]
    told = subprocess.run(command, check=False, capture_output=True, timeout=60)
    assert told.stdout, told.stderr.decode()
    assert json.loads(told.stdout) == {
        "slow": 3,
        "delivered after all": 0,
        "read": "BodyCutShort",
        "sent": "OutcomeUnknown",
        "being sent": "OutcomeUnknown",
        "later": "OutcomeUnknown",
    }
