"""An answer that its owner breaks off ends the connection between the nodes by a FIN. TCP never repeats a
reset that the network has lost. The asking node then resets the connection of its own client at once, and
caches nothing.
"""

import asyncio
from contextlib import asynccontextmanager

import pytest

from shadeproxy.cluster.view import NodeFacts
from shadeproxy.core.errors import ObjectChanged
from shadeproxy.origin.memory import MemoryOrigin
from tests.support.lossy_link import FIN, lossy_link
from tests.support.relaying import cluster

PARTS = {"large": bytes(range(251)) * 60, "long": bytes(range(251)) * 6000}
LIMIT_S = 10
"""A limit in seconds. It is far below the time without a byte after which a node gives a body up."""


class Breaking(MemoryOrigin):
    """An origin that changes the version after the first page, while ``breaks`` is True."""

    breaks = False

    @asynccontextmanager
    async def open(self, ref, **options):
        span = options.get("span")
        if self.breaks and span is not None and span.start:
            raise ObjectChanged("told to")
        async with super().open(ref, **options) as read:
            yield read


@pytest.fixture
def origin():
    origin = Breaking()
    origin.put("b", "b-small", b"some bytes")
    for name, body in PARTS.items():
        origin.put("b", f"b-{name}", body)
    return origin


async def end_of(client):
    """Return the bytes until the end of the connection, and whether the connection was reset."""
    got = b""
    try:
        while piece := await client.reader.read(1 << 16):
            got += piece
    except ConnectionResetError:
        return got, True
    return got, False


@pytest.mark.parametrize("fast", [True, False], ids=["by-callbacks", "by-task"])
@pytest.mark.parametrize("name", PARTS)
async def test_a_lost_reset_of_the_owner_holds_no_client(tmp_path, origin, fast, name):
    async with cluster(tmp_path, "a", "b", origin=origin, fast=fast) as (a, b):
        with lossy_link(b.peer_port) as link:
            a.view.facts["b"] = NodeFacts(node="b", weight=1.0, peer=f"127.0.0.1:{link.port}")
            for _ in range(2):  # These reads leave an idle connection between the nodes.
                assert (await a.ask("/b/b-small")).status == 200
            origin.breaks = True
            client = await a.client()
            client.ask(f"/b/b-{name}")
            async with asyncio.timeout(LIMIT_S):
                got, was_reset = await end_of(client)
            assert was_reset, "the client's own connection is never ended politely"
            body = got.partition(b"\r\n\r\n")[2]
            assert PARTS[name].startswith(body)
            assert len(body) < len(PARTS[name])
            assert link.ends == [FIN]
            (peer,) = a.peers._peers.values()
            assert peer._users == 0
            assert a.handler._relayed.taken_bytes == 0
            assert a.results() == {"ok": 2, "broken": 1}
            origin.breaks = False
            assert (await a.ask(f"/b/b-{name}")).body == PARTS[name], "on another connection"
