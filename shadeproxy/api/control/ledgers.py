"""The memory that large calls may hold, all together: for bodies that are read whole, and for the items of
reads. That of manifests is in manifest_ledger.py.

Laws: a call takes its share before the memory is used, and gives it back when it ends. The share of a body
includes what is decoded from it. Calls that do not fit wait in turn, for some seconds. A call that holds a
share of the bodies waits for nothing else, so no two calls wait for each other. Small bodies and calls with
few items take nothing: they never wait for large ones.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from shadeproxy.api.control.bodies import MAX_JSON_BYTES, MAX_READS, read_body, read_pieces, too_large
from shadeproxy.api.control.manifest_ledger import ManifestLedger
from shadeproxy.core.errors import ClientTooSlow, Overloaded
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.tracing import CLIENT
from shadeproxy.core.types import Intent

BODIES_BYTES = 128 * 1024 * 1024
"""Most bytes of large bodies that are read or checked at a time, and of what is decoded from them."""
IDS_COST, READS_COST, SCORES_COST, JSON_ORDER_COST, JSON_SCORES_COST = 2, 12, 4, 16, 36
"""Bytes that each byte of a large body takes, with what is decoded from it: of binary ids, of a read in JSON,
of binary scores, of an order in JSON and of scores in JSON. Measured with bodies that decode to the most:
arrays of numbers of three digits, and scores of objects with short keys.
"""
MAX_ITEMS = 4 * MAX_READS
"""Most items of large reads whose answers are under way. With short keys they hold some 80 MiB."""
FEW_ITEMS = 4096
"""Most items of a call that takes nothing. They hold about as much memory as the frames of a batch."""
SMALL_BYTES = MAX_JSON_BYTES
"""Length of the longest body that takes nothing."""
_BODY_WAIT_S, _ITEMS_WAIT_S = 25.0, 10.0
_RETRY_S = 5
_GRACE_S = 10.0
_LEAST_BYTES_PER_S = 512 * 1024


class ItemShare:
    """The items that one call has taken from ``ledger``."""

    def __init__(self, ledger: Ledger, count: int) -> None:
        self._ledger = ledger
        self.count = count

    def set(self, count: int) -> None:
        """Hold ``count`` items from now on. Raises Overloaded if that is more than before, and too many."""
        more = count - self.count
        if more > 0 and not self._ledger.try_take(more):
            raise _overloaded("items")
        if more < 0:
            self._ledger.give(-more)
        self.count = count


class CallLedgers:
    """The ledgers of one control listener. ``max_wait_s``: how long a call waits for its share, if that is
    less than usual.
    """

    def __init__(self, bodies_bytes: int = BODIES_BYTES, *, max_wait_s: float = _BODY_WAIT_S) -> None:
        self.bodies = Ledger(bodies_bytes, max_wait_s=max_wait_s)
        self.items = Ledger(MAX_ITEMS, max_wait_s=min(max_wait_s, _ITEMS_WAIT_S))
        self.manifests = ManifestLedger()

    @asynccontextmanager
    async def body(self, request: web.Request, limit: int, cost: int) -> AsyncIterator[bytes]:
        """Yield the whole body. Unless it is small, ``cost`` times its length counts until the block ends.

        Raises BodyTooLarge if it is longer than ``limit``, Overloaded if other bodies have left no memory for
        it, and ClientTooSlow if it takes too long to arrive. A body without a Content-Length takes nothing
        until it proves to be large. Then it counts as long as ``limit`` until it has arrived.
        """
        length, start = request.content_length, b""
        most = limit if length is None else length
        if most > limit:
            raise too_large(limit)
        if most <= SMALL_BYTES:
            yield await read_body(request, limit)
            return
        arriving = in_time(read_pieces(request, limit), _GRACE_S, _LEAST_BYTES_PER_S)
        if length is None:
            start = await _start(arriving)
            if len(start) <= SMALL_BYTES:
                yield start
                return
        held = cost * most
        await _take(self.bodies, held, request, "bodies")
        try:
            data = b"".join([start, *[piece async for piece in arriving]])
            self.bodies.give(held - cost * len(data))
            held = cost * len(data)
            yield data
        finally:
            self.bodies.give(held)

    @asynccontextmanager
    async def items_of(self, request: web.Request, count: int) -> AsyncIterator[ItemShare]:
        """Yield a share of ``count`` items. It is given back when the block ends. Raises Overloaded."""
        await _take(self.items, count, request, "items")
        share = ItemShare(self.items, count)
        try:
            yield share
        finally:
            share.set(0)


async def in_time(
    pieces: AsyncIterator[bytes], grace_s: float, least_bytes_per_s: int
) -> AsyncIterator[bytes]:
    """Yield the pieces of a body. The client may keep the proxy waiting for ``grace_s``; each
    ``least_bytes_per_s`` bytes that come make up for a second of it. Raises ClientTooSlow.
    """
    loop = asyncio.get_running_loop()
    left_s = grace_s
    while True:
        began_s = loop.time()
        try:
            async with asyncio.timeout(left_s):
                piece = await anext(pieces, b"")
        except TimeoutError:
            hint = f"send at least {least_bytes_per_s} bytes a second, or send it in pieces"
            raise ClientTooSlow("the body came too slowly", hint=hint) from None
        if not piece:
            return
        waited_s = loop.time() - began_s
        left_s = min(grace_s, left_s - waited_s + len(piece) / least_bytes_per_s)
        yield piece


async def _start(arriving: AsyncIterator[bytes]) -> bytes:
    """Return a small body whole, and the start of a large one."""
    start = bytearray()
    while len(start) <= SMALL_BYTES and (piece := await anext(arriving, b"")):
        start += piece
    return bytes(start)


async def _take(ledger: Ledger, amount: int, request: web.Request, what: str) -> None:
    """Take from a ledger. Callers take turns by their job, or else by their address."""
    job = request.match_info.get("job")
    client = CLIENT.set(f"job {job}" if job else request.remote or "")
    try:
        await ledger.take(amount, Intent.DEMAND)
    except Overloaded:
        raise _overloaded(what) from None
    finally:
        CLIENT.reset(client)


def _overloaded(what: str) -> Overloaded:
    return Overloaded(
        f"other calls hold all of the memory for large {what}; send it again later, or in smaller parts",
        retry_after_s=_RETRY_S,
    )
