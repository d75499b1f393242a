"""A client or an owner stops taking bytes, and keeps its connection. It blocks nothing for ever."""

import asyncio
import socket
from contextlib import ExitStack, asynccontextmanager

import pytest

from shadeproxy.cluster.peers import Peers
from shadeproxy.cluster.relay_counts import RelayEnd
from shadeproxy.cluster.view import NodeFacts
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy.origin.pool import Timeouts
from tests.support.relaying import cluster, counted, listening
from tests.support.s3.scripted import Client

LONG = bytes(range(256)) * (64 << 10)
READ_S = 0.3


@pytest.fixture
def origin():
    origin = MemoryOrigin()
    origin.put("b", "b-long", LONG)
    origin.put("b", "b-short", bytes(900_000))
    return origin


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("key", ["b-long", "b-short"])
async def test_a_client_that_takes_nothing_is_cut_off_and_frees_the_owner(tmp_path, origin, fast, key):
    async with cluster(tmp_path, "a", "b", origin=origin, fast=fast, send_bytes=8192) as (a, b):
        for _ in range(2):  # These reads leave an idle connection between the nodes.
            assert (await a.ask("/b/b-short")).status == 200
        a.server._keepalive_s = 1.0
        client = await Client.open(f"127.0.0.1:{a.port}", receive_bytes=4096)
        client.ask(f"/b/{key}")
        await client.reader.readuntil(b"\r\n\r\n")
        (peer,) = a.peers._peers.values()
        await until(lambda: len(a.requests.ended) == 3)
        await until(lambda: peer._users == 0)
        await until(lambda: len(b.peer_requests.ended) == 3)
        assert a.handler._relayed.taken_bytes == 0
        taken = sum(row.bytes for row in a.counts.rows()) - 2 * 900_000
        assert taken <= 1_100_000, "the near node has taken no more of the long body than it may hold"
        assert a.peers.skipped() == {"b": False}
        await client.close()


async def takes_the_head(reader, _writer):
    await reader.readuntil(b"\r\n\r\n")
    await asyncio.Event().wait()


async def takes_all(reader, _writer):
    while await reader.read(1 << 16):
        pass


@asynccontextmanager
async def never_accepting(*, full):
    """Yield the address of a program that hangs. The kernel opens connections for it until the backlog is
    full.
    """
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4 if full else 0):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"


OWNERS = {
    "takes the head": lambda: listening(takes_the_head),
    "takes all": lambda: listening(takes_all),
    "hangs": lambda: never_accepting(full=False),
    "cannot be reached": lambda: never_accepting(full=True),
}


@pytest.mark.parametrize("size", [4, len(LONG)])
@pytest.mark.parametrize("owner", OWNERS)
async def test_a_write_ends_although_its_owner_does_nothing(tmp_path, origin, monkeypatch, owner, size):
    """A write ends although its owner does nothing. A machine that has lost its network or its power sends no
    FIN.
    """
    timeouts = Timeouts(connect_s=READ_S, read_s=READ_S, pool_s=READ_S)
    monkeypatch.setitem(Peers.__init__.__kwdefaults__, "timeouts", timeouts)
    async with OWNERS[owner]() as address, cluster(tmp_path, "a", origin=origin) as (a,):
        a.view.facts["b"] = NodeFacts(node="b", weight=1.0, peer=address)
        client = await a.client()
        client.ask("/b/b-long", method="PUT", body=LONG[:size])
        await until(lambda: a.requests.ended)
        refused = owner == "cannot be reached"
        assert a.requests.ended[0]["status"] == (503 if refused else 500)
        assert a.results() == counted(RelayEnd.REFUSED if refused else RelayEnd.BROKEN)
        (peer,) = a.peers._peers.values()
        assert peer._users == 0
        assert origin.buckets["b"]["b-long"].body == LONG, "the near node did not write itself"
