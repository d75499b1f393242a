"""Flight: a page, or a part of one, on its way from the origin, and the readers that follow it.

Laws: readers see filled bytes only, in order. A reader is either a task that waits, or a ``Follower`` that is
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
from shadeproxy.engine.read.taker import Taker
from shadeproxy.origin.base import OriginRead

PIECE_BYTES = 256 * 1024
"""The most bytes of a piece that a reader gets. As long as a reader holds a piece, the memory of the whole
page stays in use. Short pieces let a slow reader release this memory soon after the page was stored and its
bytes were given back to the ledger.
"""

_LISTED = 4096
"""When more buffers than this are listed, those that were freed are removed. Each takes 145 bytes, however
short its page is.
"""


class Follower(Protocol):
    """A reader without a task. The flight calls it when metadata or bytes have come, and at the end. No call
    may raise.
    """

    @property
    def deadline(self) -> Deadline | None:
        """The deadline for the first byte, as for ``Flight.opened``; None once the first byte has come."""
        ...

    @property
    def taker(self) -> Taker | None:
        """The reader as a ``Taker``; None if another process sends the bytes to the client."""
        ...

    @property
    def waiting(self) -> bool:
        """True if the reader has taken all bytes that arrived, and wants more."""
        ...

    def look(self) -> None:
        """Take the metadata or bytes that have come, or note the end of the flight."""
        ...

    def too_late(self) -> None:
        """Leave the flight, because the deadline has passed."""
        ...


class Filling(Protocol):
    """A fill by callbacks, as its flight sees it."""

    def abort(self) -> None:
        """End the fill, because no reader wants the page; idempotent."""
        ...


class Flight:
    """A page on its way from the origin. ``buffer`` is filled from the front, and readers follow.

    ``part``: the span within the page that is fetched; None: the whole page. ``stored_as``, ``answer_stop``:
    see below.
    """

    # ``__slots__`` saves 0.3 us for each flight: without it, an object with so many attributes gets a dict of
    # its own.
    __slots__ = (
        "__weakref__", "_called", "_pace", "_suspended", "_through", "_waiting", "answer_stop", "began",
        "budget_bytes", "buffer", "context", "doubtful", "ended", "error", "exact", "filled", "filling",
        "followers", "intent", "kept", "meta", "number", "on_over", "over", "page", "part", "passed",
        "prefetched", "publishable", "ref", "served", "start", "stored", "stored_as", "task", "upstream",
        "waiters", "wanted",
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
        stored_as: int | None = None,
        answer_stop: int | None = None,
        pace: TurnLimiter | None = None,
    ) -> None:
        self.ref, self.number, self.upstream = ref, number, upstream
        self.part = part
        self.start = 0 if part is None else part.start
        """The first byte that this flight fetches, counted from the start of the page."""
        # ``stored_as``: number under which ``part`` is stored; None: it is not stored, or there is no part.
        # ``answer_stop``: end of the bytes of the object that are requested with this page, for the flights
        # of later pages (shared_answer.py); None: no more than this flight fetches.
        self.stored_as, self.answer_stop = stored_as, answer_stop
        self.wanted = wanted
        """ETag of the requested version; None: any version."""
        self.intent = intent
        """The present intent. A prefetch becomes a demand read when a client's reader joins it."""
        self.prefetched = intent is Intent.PREFETCH
        """True if no reader had asked for the page when the flight started."""
        self.stored = False
        self.meta: ObjectMeta | None = None
        self.page: Page
        """The page in the version of ``meta``; it is set when ``meta`` is."""
        self.doubtful = False
        """True if only a good end of the flight proves that ``meta`` and the filled bytes are right."""
        self.buffer = memoryview(b"")
        self.filled = 0
        self.waiters = 0
        self.served = False
        """True if a reader got all that it wanted. Then the page is worth storing, even if all other readers
        hang up.
        """
        self.publishable = True
        # In a cluster: the instant before the origin was asked.
        self.began: Began | None = None
        # True in a cluster if another proxy may write the object meanwhile. Then only readers that ask for a
        # known version may join.
        self.exact = False
        self.kept = True
        """False if a tier had the page when the flight began. At the end, the page is then stored only if the
        tier has lost it meanwhile.
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
        """The context variables of the first reader. A task that continues a fill by callbacks runs with
        them.
        """
        self.passed: OriginRead | None = None
        """The origin's answer, if it cannot be stored, until one reader takes it."""
        self._through: asyncio.Future[None] | None = None
        self._waiting: list[tuple[asyncio.Future[None], Deadline | None]] = []
        self.followers: list[Follower] = []
        """The readers to call when more bytes come, and at the end. Each reader adds and removes itself."""
        self._called: set[Follower] = set()  # Followers whose call is already planned.
        self._suspended = 0  # Number of tasks that wait, or that were woken and have not run yet.
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
        """Return whether the page may still be stored; False after a write to the object."""
        return self.publishable

    def note_page_length(self, length: int) -> None:
        """Note the length of the page. If ``part`` covers all of it, the flight has the page."""
        if self.part is not None and not self.start and self.part.stop >= length:
            self.part = self.stored_as = None

    def covers(self, part: Span | None) -> bool:
        """Return whether the flight fetches all of ``part``, a span within the page. ``part`` None: the whole
        page.
        """
        return self.part is None or (
            part is not None and self.part.start <= part.start and part.stop <= self.part.stop
        )

    def serves(self, etag: str | None) -> bool:
        """Return whether the flight may fetch the version ``etag``; None: any version.

        After a write, some readers still ask for the old version. The origin no longer has it, so their
        flights fail. Readers of the new version must not join such a flight.
        """
        if etag is None and self.exact:
            return False
        if self.meta is not None:
            return etag is None or etag == self.meta.etag
        return self.wanted is None or self.wanted == etag

    def open(
        self, meta: ObjectMeta, length: int, *, doubtful: bool = False, memory: memoryview | None = None
    ) -> None:
        """Set the metadata, and a buffer of ``length`` bytes: ``memory`` if given, otherwise a new one.
        Readers may start now. The caller has taken the memory from the ledger before.
        """
        self.meta = meta
        self.page = Page(self.ref, meta.etag, self.number if self.stored_as is None else self.stored_as)
        self.doubtful = doubtful
        # A bytearray would be zeroed first. This is not necessary, because readers see only filled bytes.
        self.buffer = np.empty(length, np.uint8).data if memory is None else memory
        if not length:
            self.ended = True
        # Do not call followers for the metadata alone, because they do nothing before the first bytes. A fill
        # by callbacks brings these at once.
        if self.ended or self._waiting:
            self._wake(self.followers if self.ended else [])

    def advance(self, count: int) -> None:
        """Note that ``buffer`` has ``count`` more bytes, and call or wake the readers. The last byte
        completes the flight.
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
        """End the flight, complete or with ``error``, and wake the readers. The task that fills the flight
        may then still store the page.
        """
        if not self.ended:
            self.error = error
            self.ended = True
            self._wake(self.followers)

    async def hand_over(self, read: OriginRead) -> None:
        """End the flight with the error Unidentified, but let one reader take ``read``, the origin's answer.
        Return when all readers have left the flight.
        """
        self.passed = read
        self._through = asyncio.get_running_loop().create_future()
        self.end(Unidentified(self.ref))
        if self.waiters:
            await self._through

    def abandon(self) -> None:
        """Give up the answer that was handed over, because the last reader has left."""
        self.passed = None
        if self._through is not None and not self._through.done():
            self._through.set_result(None)

    async def opened(self, deadline: Deadline | None = None, *, proven: bool = False) -> ObjectMeta:
        """Wait for the metadata and return it. ``proven``: wait also until the metadata is proven to be
        right.

        Raises the flight's error. Raises DeadlineExceeded if the caller's own ``deadline`` passes; the flight
        then goes on for other readers.
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
        """Return bytes of ``[position, stop)``, counted from the start of the page, as soon as the first of
        them has arrived. The result is read-only, and has at most PIECE_BYTES bytes. Raises as ``opened``.
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
            # Many tasks raise this one exception. Each of them must begin with an empty traceback.
            raise self.error.with_traceback(None)
        assert self.error is None, "a flight ends complete or with an error of our tree"

    def refuse_late(self) -> None:
        """Fail those waiters whose deadline has passed.

        Once the first byte has arrived, a waiter has one more time window (``ReadBounds``), because the body
        may have to be verified before any of it is sent.
        """
        arriving = self.filled > 0
        waiting, self._waiting = self._waiting, []
        for future, deadline in waiting:
            if deadline is not None and _is_late(deadline, arriving):
                self._pace.call(partial(self._refuse, future, deadline))
            else:
                self._waiting.append((future, deadline))
        for follower in list(self.followers):
            if follower.deadline is not None and _is_late(follower.deadline, arriving):
                self._pace.call(follower.too_late)

    def _refuse(self, future: asyncio.Future[None], deadline: Deadline) -> None:
        """Fail a late waiter. But wake it if, since it was found late, the flight has ended or its first byte
        has come.
        """
        if self.ended or not _is_late(deadline, self.filled > 0):
            set_done(future)
        elif not future.done():
            future.set_exception(deadline.exceeded())

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
            # A cold object may have thousands of followers. So call the first one now, and the others as the
            # turn limiter allows.
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


class DetachedBuffers:
    """Counts the memory that slow readers still hold, although its page is stored and the memory was given
    back to the ledger.

    The ledger does not count these buffers, so that a slow reader takes no memory from other readers. But a
    thousand slow readers would hold a thousand pages. So while the buffers together have more than
    ``limit_bytes`` (``many``), readers get copies of their pieces.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self.crowded = False
        """True if the count is above the limit. The count may include buffers that were freed since; ``many``
        excludes them.
        """
        self.bodies: weakref.WeakSet[Taker] = weakref.WeakSet()
        """The bodies that tasks pass on to clients; slow_readers.py looks at them."""
        self._buffers: list[tuple[weakref.ref[object], int]] = []
        self._most_listed = _LISTED

    def add(self, buffer: memoryview) -> None:
        """Count ``buffer``, the memory of a page that was just stored. From now on only readers hold it."""
        self._buffers.append((weakref.ref(buffer.obj), buffer.nbytes))
        self._bytes += buffer.nbytes
        if len(self._buffers) > self._most_listed:
            self._forget_freed()
        self.crowded = self._bytes > self._limit_bytes

    @property
    def many(self) -> bool:
        """True if readers hold more than the limit. Freed buffers are taken off the count first."""
        if self.crowded:
            self._forget_freed()
            self.crowded = self._bytes > self._limit_bytes
        return self.crowded

    def _forget_freed(self) -> None:
        self._buffers = [one for one in self._buffers if one[0]() is not None]
        self._bytes = sum(size for _, size in self._buffers)
        # The list may double before the next removal, so a buffer is looked at about twice.
        self._most_listed = max(_LISTED, 2 * len(self._buffers))
