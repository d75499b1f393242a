"""Messages between the coordinator and a worker, over a socket pair.

The coordinator first sends the ``Opening``. Then it sends new ``ReloadableSettings`` or a new ``Certificate``
after each change, the routes of a cluster's newest view, and the regions of buckets that any process has
learnt. At last it sends an empty frame, at which the worker ends in order. A worker sends SERVING once it
accepts connections. It also sends each region that it learns itself, its reads, its counts of requests or, if
there are none, ALIVE each half second, and an empty frame once it uses new settings or a new certificate.
"""

import asyncio
import pickle
import socket
import struct
import sys
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar, cast

import msgspec
import numpy as np

from shadeproxy.app.connection_limits import LimitEnds
from shadeproxy.app.reloadable import ReloadableSettings
from shadeproxy.app.tls import Certificate
from shadeproxy.cluster.relay_counts import RelayRow
from shadeproxy.cluster.worker_routes import RoutesRecord
from shadeproxy.config import Settings
from shadeproxy.engine.access_records import USE, Kind, Uses
from shadeproxy.engine.worker_reads import TierFiles
from shadeproxy.telemetry.requests import RequestRow

_LENGTH = struct.Struct("<I")
_MOST_WAITING_BYTES = 4 * 1024 * 1024
_DECODER = msgspec.msgpack.Decoder(tuple[bytes, list[Kind]])
_COUNTS_DECODER = msgspec.msgpack.Decoder(list[RequestRow])
_RELAYS_DECODER = msgspec.msgpack.Decoder(list[RelayRow])
_REGIONS_DECODER = msgspec.msgpack.Decoder(list[tuple[str, str]])
_ROUTES_DECODER = msgspec.msgpack.Decoder(RoutesRecord)

END = b""
CONFIRMED = b""
# A frame of reads never begins with one of these bytes, so they mark the other frames of a worker.
SERVING = b"\0"
REQUESTS = b"\1"
RELAYS = b"\2"
ALIVE = b"\4"
REGIONS = b"\5"
"""Marks a frame of regions, in both directions."""
# A frame of a change never begins with this byte, so it marks a frame of routes.
ROUTES = b"\3"


class FillEnds(NamedTuple):
    """The descriptors by which a worker fetches pages: its end of a channel, and its fill memory.

    ``instance``: the name by which the proxy recognises its own requests to the origin.
    """

    channel: int
    memory: int
    instance: str


class ForwardEnds(NamedTuple):
    """The descriptor of a channel by which a worker forwards requests. ``instance``: the name by which the
    proxy recognises its own requests to the origin.
    """

    channel: int
    instance: str


class ClusterEnds(NamedTuple):
    """The part of an ``Opening`` by which a worker serves in a cluster. ``node``: the proxy's name in the
    cluster. ``listener``: descriptor on which the worker accepts connections of other proxies. ``relay``: the
    address where the coordinator accepts the connections that the worker relays. ``secrets``: the values of
    cluster.secret that the coordinator uses. A worker must not read them itself, because the file may have
    changed. ``limit``: the limit of connections of other proxies.
    """

    node: str
    listener: int
    relay: str
    secrets: tuple[str, ...]
    limit: LimitEnds


Change = ReloadableSettings | Certificate
"""A message that a worker gets after its start, and whose adoption it confirms."""


class Opening(NamedTuple):
    """The start message of a worker. ``share`` and ``listener`` are descriptors that it inherits. ``relay``
    is the address where the coordinator accepts connections of workers. ``limit`` is the limit of client
    connections. ``certificate`` is the certificate of the listener, if that uses TLS. ``fills`` has the
    descriptors by which the worker fetches pages; None if it fetches none. ``forwards`` has the descriptor by
    which it forwards requests; None if it forwards none. ``cluster`` is None unless proxies share their
    pages.
    """

    settings: Settings
    reloadable: ReloadableSettings
    tiers: tuple[TierFiles, ...]
    share: int
    listener: int
    relay: str
    limit: LimitEnds
    fills: FillEnds | None = None
    forwards: ForwardEnds | None = None
    certificate: Certificate | None = None
    cluster: ClusterEnds | None = None


class Channel(asyncio.Protocol):
    """One end of a channel. ``heard`` is called with each frame that arrives, ``lost`` when the other end is
    gone.
    """

    def __init__(self, heard: Callable[[bytes], None], lost: Callable[[], None]) -> None:
        self._heard = heard
        self._lost = lost
        self._held = b""
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(
        cls, end: socket.socket, heard: Callable[[bytes], None], lost: Callable[[], None]
    ) -> "Channel":
        """Open a channel on the socket ``end``, on the running loop."""
        channel = cls(heard, lost)
        await channel.attach(end)
        return channel

    async def attach(self, end: socket.socket) -> None:
        """Begin to read from the socket ``end``, on the running loop. Frames may come before this returns."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=end)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's own transport class is no subclass of asyncio's, so a check of the type would fail.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._lost()

    def data_received(self, data: bytes) -> None:
        # Take the frames by their positions: a copy of the rest after each frame would take a time that grows
        # with the square of their number, and thousands come at once after a pause of this process.
        held, start = self._held + data, 0
        while len(held) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(held, start)
            stop = start + _LENGTH.size + length
            if stop > len(held):
                break
            self._heard(held[start + _LENGTH.size : stop])
            start = stop
        self._held = held[start:]

    def say(self, frame: bytes) -> bool:
        """Send a frame. Return False if it was dropped, because the other end is gone or too many bytes wait
        for it.
        """
        transport = self._transport
        if transport is None or transport.get_write_buffer_size() > _MOST_WAITING_BYTES:
            return False
        transport.write(_LENGTH.pack(len(frame)) + frame)
        return True

    def leave(self) -> None:
        """Close the channel without a call of ``lost``."""
        self._lost = nothing
        self.close()

    def close(self) -> None:
        """Stop sending. Frames that were sent already still arrive."""
        if self._transport is not None:
            self._transport.close()


class HearsFrames(Protocol):
    """An object that serves one end of a channel."""

    def hear(self, frame: bytes) -> None:
        """Process a frame."""
        ...

    def close(self) -> None:
        """Handle the end of the other process; idempotent."""
        ...


Served = TypeVar("Served", bound=HearsFrames)


async def open_ends(
    serve: Callable[[Callable[[bytes], bool]], Served],
) -> tuple[Served, Channel, socket.socket]:
    """Open a channel for a process that does not run yet. ``serve`` is called with ``Channel.say`` and
    returns the object that serves this end. Return that object, this end, and the socket of the other end.
    Raises OSError.
    """
    ours, theirs = socket.socketpair()

    def hear(frame: bytes) -> None:
        served.hear(frame)

    def close() -> None:
        served.close()

    channel = await Channel.open(ours, hear, close)
    served = serve(channel.say)
    return served, channel, theirs


def nothing() -> None:
    """Do nothing. A channel gets this function as ``lost`` if no reaction is needed when it ends."""


def pack_opening(opening: Opening) -> bytes:
    """Pack an ``Opening`` for ``unpack_opening`` in a process of the same program."""
    return pickle.dumps(opening)


def unpack_opening(frame: bytes) -> Opening:
    """Unpack the ``Opening``. It is safe to unpickle, because the process that started this one has sent the
    frame.
    """
    opening = pickle.loads(frame)  # noqa: S301 - the sender is trusted
    assert isinstance(opening, Opening)
    return opening


def pack_change(change: Change) -> bytes:
    """Pack a change for ``unpack_change``. The frame holds secrets: send it through a channel only."""
    return pickle.dumps(change)


def unpack_change(frame: bytes) -> Change:
    """Unpack a change. It is safe to unpickle, because its frame comes from the coordinator, which started
    this process.
    """
    change = pickle.loads(frame)  # noqa: S301 - the sender is trusted
    assert isinstance(change, ReloadableSettings | Certificate)
    return change


def pack_reads(uses: Uses, kinds: list[Kind]) -> bytes:
    """Pack rows of the access log. Raises UnicodeEncodeError for a job whose name is not valid text."""
    return msgspec.msgpack.encode((uses.tobytes(), kinds))


def unpack_reads(frame: bytes) -> tuple[Uses, list[Kind]]:
    """Unpack the rows from ``pack_reads``."""
    uses, kinds = _DECODER.decode(frame)
    return np.frombuffer(uses, USE), kinds


def pack_requests(rows: list[RequestRow]) -> bytes:
    """Pack counts of requests, as a frame that begins with REQUESTS."""
    return REQUESTS + msgspec.msgpack.encode(rows)


def unpack_requests(frame: bytes) -> list[RequestRow]:
    """Unpack the counts from ``pack_requests``."""
    return _COUNTS_DECODER.decode(frame[len(REQUESTS) :])


def pack_relays(rows: list[RelayRow]) -> bytes:
    """Pack counts of requests to other proxies, as a frame that begins with RELAYS."""
    return RELAYS + msgspec.msgpack.encode(rows)


def unpack_relays(frame: bytes) -> list[RelayRow]:
    """Unpack the counts from ``pack_relays``."""
    return _RELAYS_DECODER.decode(frame[len(RELAYS) :])


def pack_routes(record: RoutesRecord) -> bytes:
    """Pack a view's routes, as a frame that begins with ROUTES."""
    return ROUTES + msgspec.msgpack.encode(record)


def unpack_routes(frame: bytes) -> RoutesRecord:
    """Unpack the routes from ``pack_routes``."""
    return _ROUTES_DECODER.decode(frame[len(ROUTES) :])


def pack_regions(regions: list[tuple[str, str]]) -> bytes:
    """Pack buckets with their regions, as a frame that begins with REGIONS."""
    return REGIONS + msgspec.msgpack.encode(regions)


def unpack_regions(frame: bytes) -> list[tuple[str, str]]:
    """Unpack the buckets and regions from ``pack_regions``."""
    return _REGIONS_DECODER.decode(frame[len(REGIONS) :])


def first_frame(end: socket.socket) -> bytes:
    """Read one frame from the socket ``end``. Blocks. End this process if the other end is gone."""
    (length,) = _LENGTH.unpack(_exactly(end, _LENGTH.size))
    return _exactly(end, length)


def _exactly(end: socket.socket, length: int) -> bytes:
    data = end.recv(length, socket.MSG_WAITALL)
    if len(data) < length:
        sys.exit(1)  # the coordinator is gone already
    return data
