"""Flight: a page, or a part of one, on its way from the origin, and the readers that follow it.

Laws: readers see filled bytes only, in order. A reader is a task that waits, or a ``Follower``, which is
called. Nothing here knows tiers or HTTP. States: OPENING (no metadata yet) -> FILLING -> ENDED (complete, or
failed with ``error``) -> OVER (also stored, or given up).
"""

import asyncio
import weakref
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from typing import Protocol

import numpy as np

from shadeproxy.core.deadline import Deadline
from shadeproxy.core.errors import ShadeProxyError, Unidentified
from shadeproxy.core.pace import TurnLimiter, set_done
from shadeproxy.core.types import Intent, ObjectMeta, ObjectRef, Page, Span, Upstream
from shadeproxy.engine.ownership import Began
from shadeproxy.origin.base import OriginRead

PIECE_BYTES = 256 * 1024
"""Longest piece handed to a reader, in bytes. A piece keeps the memory of its whole page. With longer pieces,
a slow reader would keep it long after the page was stored and its bytes were given back to the ledger.
"""


class Follower(Protocol):
    """A reader without a task. The flight calls it after new metadata, more bytes or the end. No call may
    raise.
    """

    @property
    def deadline(self) -> Deadline | None:
        """The deadline for the first byte, as in ``Flight.opened``; None once the first byte has come."""
        ...

    @property
    def waiting(self) -> bool:
        """True if the reader has taken all bytes that arrived, and wants more."""
        ...

    def look(self) -> None:
        """Take the new metadata or bytes, or note the end."""
        ...

    def too_late(self) -> None:
        """Leave the flight: the deadline has passed."""
        ...


class Filling(Protocol):
    """A fill by callbacks, as a flight sees it."""

    def abort(self) -> None:
        """End the fill, because no reader wants the page; idempotent."""
        ...


class Flight:
    """A page on its way from the origin. ``buffer`` is filled from the front; readers follow.

    ``part``: the span within the page that is fetched for the flight's readers alone and not stored. None:
    the whole page is fetched.
    """

    # Without slots, an object with this many attributes has a dict of its own, which costs 0.3 us more for
    # each flight.
    __slots__ = (
        "__weakref__", "_called", "_pace", "_suspended", "_through", "_waiting", "began", "budget_bytes",
        "buffer", "context", "doubtful", "ended", "error", "exact", "filled", "filling", "followers",
        "intent", "kept", "meta", "number", "on_over", "over", "page", "part", "passed", "prefetched",
        "publishable", "ref", "served", "start", "stored", "task", "upstream", "waiters", "wanted",
    )  # fmt: skip

    def __init__(
        self,
        ref: ObjectRef,
        number: int,
        upstream: Upstream,
        intent: Intent,
        wanted: str | None,
        *,
        part: Span | None = None,
        pace: TurnLimiter | None = None,
    ) -> None:
        self.ref = ref
        self.number = number
        self.upstream = upstream
        self.part = part
        self.start = 0 if part is None else part.start
        """First byte that this flight fetches, within the page."""
        self.wanted = wanted
        """ETag of the requested version; None: any version."""
        self.intent = intent
        """The intent now. A prefetch becomes a demand read when a client's reader joins it."""
        self.prefetched = intent is Intent.PREFETCH
        """True if no reader had asked for the page when the flight started."""
        self.stored = False
        self.meta: ObjectMeta | None = None
        self.page: Page
        """The page, in the version of ``meta``. Set together with ``meta``."""
        self.doubtful = False
        """True if ``meta`` and the filled bytes may be wrong until the flight has ended well."""
        self.buffer = memoryview(b"")
        self.filled = 0
        self.waiters = 0
        self.served = False
        """True if a reader got all that it wanted: the page is worth storing, even if the other readers hang
        up.
        """
        self.publishable = True
        # In a cluster, the instant before the origin was asked.
        self.began: Began | None = None
        # True if only readers that ask for a known version may join, because another proxy may have written
        # since.
        self.exact = False
        self.kept = True
        """False if a tier already had the page when the flight began. Then the page is stored only if the
        tier has lost it by the end of the flight.
        """
        self.ended = False
        self.error: BaseException | None = None
        self.budget_bytes = 0
        self.task: asyncio.Task[None] | None = None
        self.filling: Filling | None = None
        """The fill by callbacks; None while a task fills the flight."""
        self.over = False
        """True if the fill has ended, and the page was stored or given up."""
        self.on_over: list[Callable[[], None]] = []
        """Functions to call when the flight is over."""
        self.context: Context = copy_context()
        """The context of the first reader, for a task that continues a fill begun by callbacks."""
        self.passed: OriginRead | None = None
        """The origin's answer, if it cannot be stored. One reader takes it."""
        self._through: asyncio.Future[None] | None = None
        self._waiting: list[tuple[asyncio.Future[None], Deadline | None]] = []
        self.followers: list[Follower] = []
        """The readers to call when the flight has more bytes or an end. Each reader adds and removes
        itself.
        """
        self._called: set[Follower] = set()  # Followers that are about to be called.
        self._suspended = 0  # Number of waiting readers, and of readers that were woken and have not run yet.
        self._pace = pace or TurnLimiter()

    @property
    def waited_for(self) -> bool:
        """True if a reader waits for the next byte, or was woken and has not run yet."""
        return self._suspended > 0 or any(follower.waiting for follower in self.followers)

    @property
    def length(self) -> int:
        """Number of bytes that the flight fetches; 0 until it is opened."""
        return len(self.buffer)

    def may_publish(self) -> bool:
        """Return ``publishable``."""
        return self.publishable

    def covers(self, part: Span | None) -> bool:
        """Return whether the flight fetches all of ``part``, a span within the page; None: the whole page."""
        return self.part is None or (
            part is not None and self.part.start <= part.start and part.stop <= self.part.stop
        )

    def serves(self, etag: str | None) -> bool:
        """Return whether the flight may fetch the version ``etag`` (None: any version).

        After a write, readers of the old version still ask for it, although the origin no longer has it.
        Readers of the new version must not join flights of the old one: those flights fail.
        """
        if etag is None and self.exact:
            return False
        if self.meta is not None:
            return etag is None or etag == self.meta.etag
        return self.wanted is None or self.wanted == etag

    def open(
        self, meta: ObjectMeta, length: int, *, doubtful: bool = False, memory: memoryview | None = None
    ) -> None:
        """Set the metadata, and a buffer of ``length`` bytes: a new one, or ``memory``. Readers may start
        now. The ledger has already counted the memory.
        """
        self.meta = meta
        self.page = Page(self.ref, meta.etag, self.number)
        self.doubtful = doubtful
        # Not a bytearray, because that is zeroed first. Zeros are not needed: readers see only filled bytes.
        self.buffer = np.empty(length, np.uint8).data if memory is None else memory
        if not length:
            self.ended = True
        # Do not call followers for the metadata alone: they do nothing before the first bytes, and a fill by
        # callbacks brings the first bytes at once.
        if self.ended or self._waiting:
            self._wake(self.followers if self.ended else [])

    def advance(self, count: int) -> None:
        """Note ``count`` more bytes in ``buffer``, and call or wake the readers. The last byte completes the
        flight.
        """
        self.filled += count
        if self.filled == len(self.buffer):
            self.ended = True
        followers = self.followers
        if len(followers) == 1 and not self._waiting:
            followers[0].look()
        else:
            self._wake(followers)

    def end(self, error: BaseException | None = None) -> None:
        """End the flight, complete or with ``error``, and wake the readers. The flight's task may go on to
        store the page.
        """
        if not self.ended:
            self.error = error
            self.ended = True
            self._wake(self.followers)

    async def hand_over(self, read: OriginRead) -> None:
        """Fail with Unidentified, and let one reader take ``read``. Return when all readers have left the
        flight.
        """
        self.passed = read
        self._through = asyncio.get_running_loop().create_future()
        self.end(Unidentified(self.ref))
        if self.waiters:
            await self._through

    def abandon(self) -> None:
        """Give up the handed-over answer, because the last reader has left."""
        self.passed = None
        if self._through is not None and not self._through.done():
            self._through.set_result(None)

    async def opened(self, deadline: Deadline | None = None, *, proven: bool = False) -> ObjectMeta:
        """Wait for the metadata. ``proven``: wait also until it is known to be right.

        Raises the flight's error. Raises DeadlineExceeded when the caller's own ``deadline`` has passed; the
        flight goes on for other readers.
        """
        while self.meta is None:
            self._raise_if_failed()
            await self._progress(deadline)
        if not self.filled:
            self._raise_if_failed()  # After an error no bytes will come.
        while proven and self.doubtful and not self.ended:
            await self._progress(deadline)
        if proven and self.doubtful:
            self._raise_if_failed()
        return self.meta

    async def piece(self, position: int, stop: int, deadline: Deadline | None = None) -> memoryview:
        """Return bytes of ``[position, stop)`` within the page, as soon as the first of them has arrived. The
        bytes are read-only, and at most PIECE_BYTES. Raises as ``opened``.
        """
        position, stop = position - self.start, stop - self.start
        while self.filled <= position:
            self._raise_if_failed()
            await self._progress(deadline)
        return self.buffer[position : min(self.filled, stop, position + PIECE_BYTES)].toreadonly()

    def _raise_if_failed(self) -> None:
        if not self.ended:
            return
        if isinstance(self.error, ShadeProxyError):
            # Each waiter gets its own traceback, because many tasks raise this one exception.
            raise self.error.with_traceback(None)
        assert self.error is None, "a flight ends complete or with an error of our tree"

    def refuse_late(self) -> None:
        """Fail the waiters whose deadline has passed, and only those.

        After the first byte a waiter gets the same time once more, because the body may have to be verified
        before it is sent.
        """
        arriving = self.filled > 0
        waiting, self._waiting = self._waiting, []
        for future, deadline in waiting:
            if deadline is not None and _is_late(deadline, arriving):
                self._pace.call(partial(_refuse, future, deadline))
            else:
                self._waiting.append((future, deadline))
        for follower in list(self.followers):
            if follower.deadline is not None and _is_late(follower.deadline, arriving):
                self._pace.call(follower.too_late)

    async def _progress(self, deadline: Deadline | None) -> None:
        """Wait until the flight has more bytes or an end."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((future, deadline))
        self._suspended += 1
        try:
            await future
        finally:
            self._suspended -= 1

    def _wake(self, followers: list[Follower]) -> None:
        if followers:
            # Call only the first follower at once, because a cold object may have thousands of followers.
            first, *others = followers
            first.look()
            for follower in others:
                if follower not in self._called:
                    self._called.add(follower)
                    self._pace.call(partial(self._call, follower))
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for future, _ in waiting:
            self._pace.call(partial(set_done, future))

    def _call(self, follower: Follower) -> None:
        self._called.discard(follower)
        follower.look()


def _is_late(deadline: Deadline, arriving: bool) -> bool:
    return (deadline.arriving_left_s if arriving else deadline.left_s) <= 0


def _refuse(future: asyncio.Future[None], deadline: Deadline) -> None:
    if not future.done():
        future.set_exception(deadline.exceeded())


class DetachedBuffers:
    """Counts the memory of stored pages that was given back to the ledger, but that slow readers still hold.

    The ledger does not count these buffers, so a slow reader takes nothing from other readers. But a thousand
    slow readers would hold a thousand pages. So while the buffers have more than ``limit_bytes`` (``many``),
    readers get copies of their pieces.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self.crowded = False
        """True if ``many`` must be asked: the count is above the limit, but may include buffers freed
        since.
        """
        self._buffers: list[tuple[weakref.ref[object], int]] = []

    def add(self, buffer: memoryview) -> None:
        """Count ``buffer``, the memory of a stored page: from now on only readers of its pieces hold it."""
        self._buffers.append((weakref.ref(buffer.obj), buffer.nbytes))
        self._bytes += buffer.nbytes
        self.crowded = self._bytes > self._limit_bytes

    @property
    def many(self) -> bool:
        """True if readers hold more than the limit. Buffers that were freed are discounted first."""
        if self.crowded:
            self._buffers = [one for one in self._buffers if one[0]() is not None]
            self._bytes = sum(size for _, size in self._buffers)
            self.crowded = self._bytes > self._limit_bytes
        return self.crowded
