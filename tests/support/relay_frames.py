"""Counts the Python calls of a relayed read, as frame_counts.py does for the requests of one proxy.

There are two counts, each with one real proxy. For the first count, the proxy is the node that the client
asks. The owner of the object is a server of the tests in the same event loop, whose calls do not count. For
the second count, the proxy is the owner. Its listener for other nodes gets the heads that a node would send.
"""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shadeproxy.api.s3 import compiled
from shadeproxy.app import clustering
from shadeproxy.app.proxy import Proxy
from shadeproxy.cluster import heartbeat, ownership
from shadeproxy.cluster.heartbeat import Heartbeat
from shadeproxy.cluster.membership import Membership
from shadeproxy.cluster.peer_requests import PeerField, peer_secrets
from shadeproxy.cluster.relay_heads import RelayHeads
from shadeproxy.cluster.signed import Seals
from shadeproxy.cluster.timing import Timing
from shadeproxy.config import Settings
from shadeproxy.core.types import OWN, SHARED, ObjectRef
from tests.support.cluster_log import FakeLog, Server
from tests.support.frame_counts import (
    ROUNDS,
    Connection,
    Count,
    Inline,
    Origin,
    StillClock,
    StillLoop,
    count_requests,
    get,
    settings,
)

CLUSTER, CLUSTER_SECRET, OTHER = "trainers", "a secret of at least sixteen", "other"
_TIMING = Timing(lease_s=3.0, leave_after_s=120.0, late_write_s=0.0)
_WARM_UP = 4
_BEATS = 16


class Boot:
    """A clock since boot. Its time passes with each beat only."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Owner(asyncio.Protocol):
    """One connection of a server that answers like the owner of an object in RAM."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, _data: bytes) -> None:
        fields = (
            b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
            b'ETag: "e"\r\nContent-Length: 1000\r\nx-amz-id-2: shadeproxy\r\n'
            b"x-amz-request-id: 0123456789ABCDEF\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
            b"x-shade-cache: ram\r\n\r\n"
        )
        self._transport.write(fields + bytes(1000))


class _World:
    """A log in memory, for the proxy whose calls are counted."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._boot, server = Boot(), Server()
        self._log = partial(FakeLog, server)
        for target in (heartbeat.Heartbeat, ownership.OwnedObjects):
            kept = dict(target.__init__.__kwdefaults__ or {})
            patch.setattr(target.__init__, "__kwdefaults__", kept | {"clock": self._boot})
        patch.setattr(clustering, "boot_time_s", self._boot)
        patch.setattr(clustering, "open_log", lambda _: self._log())
        patch.setattr(clustering, "Timing", partial(Timing, late_write_s=0.0))

    async def join(self, proxy: Proxy, other: str = "") -> None:
        """Give the proxy a seat in the view, and a lease. If ``other`` is an address, a second node with this
        address gets both too.
        """
        beats = proxy._clustering._heartbeat
        assert beats is not None
        assert beats._task is not None
        beats._task.cancel()
        all_beats = [beats]
        if other:
            facts = msgspec.structs.replace(beats.membership.duties.facts, node=OTHER, peer=other)
            member = Membership(facts, "boot", Seals(CLUSTER, [CLUSTER_SECRET]), _TIMING)
            all_beats.append(Heartbeat(member, self._log(), clock=self._boot))
        for _ in range(_BEATS):
            for one in all_beats:
                await one.beat()
            self._boot.now_s += 1
        for one in all_beats:
            await one.beat()


def _owned_settings(directory: Path, origin_port: int) -> Settings:
    overrides = {
        "cluster.name": CLUSTER,
        "cluster.pages": "owned",
        "cluster.listen": "127.0.0.1:0",
        "cluster.secret": "env:CLUSTER_SECRET",
        "s3.workers": "1",
        "prefetch.enabled": "false",
    }
    return settings(directory, origin_port, overrides)


async def _near(proxy: Proxy, world: _World) -> list[Count]:
    """Count a client's read of an object that the other node owns."""
    owner = await asyncio.get_running_loop().create_server(Owner, "127.0.0.1", 0)
    await world.join(proxy, f"127.0.0.1:{owner.sockets[0].getsockname()[1]}")
    owned = proxy._clustering.owned
    assert owned is not None
    keys = (f"{number:04}" for number in range(1000))
    key = next(key for key in keys if owned.objects.reader(ObjectRef("b", key)) is not None)
    client = await Connection.open(proxy.s3_address)
    try:
        counts = [await count_requests({client: get(f"/b/{key}")}, "ram") for _ in range(_WARM_UP + ROUNDS)]
    finally:
        client.close()
        owner.close()
    return counts[_WARM_UP:]


async def _owner(proxy: Proxy, world: _World) -> list[Count]:
    """Count a read that another node relays to this proxy, of an object in RAM."""
    await world.join(proxy)
    owned = proxy._clustering.owned
    assert owned is not None
    assert owned.member is not None
    address = owned.address
    request = RelayHeads(address).render(
        "/b/0000",
        peer_field=PeerField(OTHER, owned.member.node, SHARED, OWN).render(),
        job_field="",
        checksums=False,
        range_field="",
        secret=peer_secrets(CLUSTER, [CLUSTER_SECRET])[0],
        now_s=StillClock().now_s(),
        request_id="0123456789ABCDEF",
    )
    peer = await Connection.open(address)
    try:
        counts = [await count_requests({peer: request}) for _ in range(_WARM_UP + ROUNDS)]
    finally:
        peer.close()
    return counts[_WARM_UP:]


async def _counts(directory: Path, patch: pytest.MonkeyPatch) -> dict[str, list[Count]]:
    asyncio.get_running_loop().set_default_executor(Inline())
    origin = await asyncio.get_running_loop().create_server(Origin, "127.0.0.1", 0)
    found = {}
    for name, flow in (("relayed read, near node", _near), ("relayed read, owner", _owner)):
        world = _World(patch)
        own = _owned_settings(directory / flow.__name__, origin.sockets[0].getsockname()[1])
        proxy = Proxy(own, clock=StillClock())
        await proxy.start()
        try:
            found[name] = await flow(proxy, world)
        finally:
            await proxy.stop()
    origin.close()
    return found


def count_relayed(directory: Path) -> dict[str, list[Count]]:
    """Count a relayed read ``ROUNDS`` times at both nodes, with the interpreted lane."""
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=StillLoop) as runner:
        patch.setattr(compiled, "COMPILED", False)
        for name in ("ORIGIN_KEY", "ORIGIN_SECRET"):
            patch.setenv(name, "k")
        patch.setenv("CLUSTER_SECRET", CLUSTER_SECRET)
        return runner.run(_counts(directory, patch))
