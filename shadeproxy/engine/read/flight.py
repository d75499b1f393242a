"""Flight: a page, or a part of one, on its way from the origin, and the readers that follow it.

Laws: readers see filled bytes only, in order; a reader is a task that waits, or a ``Follower``, which is
called. Nothing here knows tiers or HTTP. States: OPENING (no metadata yet) -> FILLING -> ENDED (complete, or
failed with ``error``) -> OVER (stored too, or given up).
"""

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from typing import Protocol

import numpy as np

from shadeproxy.core.deadline import Deadline
from shadeproxy.core.errors import ShadeProxyError, Unidentified
from shadeproxy.core.pace import TurnLimiter, set_done
from shadeproxy.core.types import Intent, ObjectMeta, ObjectRef, Span, Upstream
from shadeproxy.origin.base import OriginRead

PIECE_BYTES = 256 * 1024
"""Longest piece handed out. A piece keeps the memory of its page: a slow reader with all of it would keep
that long after the page was stored and its bytes were given back to the ledger."""


class Follower(Protocol):
    """A reader without a task: called when there is more of a flight. No call may raise."""

    deadline: Deadline | None
    """As of ``Flight.opened``; None once it has its first byte."""

    @property
    def waiting(self) -> bool:
        """True if it has all that arrived, and wants more."""
        ...

    def look(self) -> None:
        """Take what is new: metadata, bytes, or the end."""
        ...

    def too_late(self) -> None:
        """Leave: the deadline has passed."""
        ...


class Filling(Protocol):
    """A fill by callbacks."""

    def abort(self) -> None:
        """End it, because nobody wants the page; idempotent."""
        ...


class Flight:
    """A page on its way from the origin. ``buffer`` is filled from the front; readers follow.

    ``part``: the span within the page that is fetched, for its readers alone, and not stored; None: the page.
    """

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
        self._first = 0 if part is None else part.start
        self.wanted = wanted
        """ETag of the requested version; None: any version."""
        self.intent = intent
        """Present intent: a reader that joins a prefetch makes it a demand read."""
        self.prefetched = intent is Intent.PREFETCH
        """True if no reader had asked for it when it started."""
        self.stored = False
        self.meta: ObjectMeta | None = None
        self.doubtful = False
        """True if ``meta`` and the filled bytes may be wrong until the flight has ended well."""
        self.buffer = memoryview(b"")
        self.filled = 0
        self.waiters = 0
        self.served = False
        """True if a waiter had all that it wanted: the page is worth having, even if the others hang up."""
        self.publishable = True
        self.ended = False
        self.error: BaseException | None = None
        self.budget_bytes = 0
        self.task: asyncio.Task[None] | None = None
        self.filling: Filling | None = None
        """The fill by callbacks, while there is no task."""
        self.over = False
        """True if its fill has ended, storing included."""
        self.on_over: list[Callable[[], None]] = []
        """Called then."""
        self.context: Context = copy_context()
        """The context of the first reader, for a task that goes on with the fill."""
        self.passed: OriginRead | None = None
        """An answer that cannot be stored, for the one reader that takes it."""
        self._through: asyncio.Future[None] | None = None
        self._waiting: list[tuple[asyncio.Future[None], Deadline | None]] = []
        self._followers: list[Follower] = []
        self._called: set[Follower] = set()  # followers whose turn is to come
        self._suspended = 0  # waiting readers, and readers woken that have not run yet
        self._pace = pace or TurnLimiter()

    @property
    def start(self) -> int:
        """First byte of its page that it fetches."""
        return self._first

    @property
    def waited_for(self) -> bool:
        """True if a reader waits for the next byte, or was woken and has not looked at it yet."""
        return self._suspended > 0 or any(follower.waiting for follower in self._followers)

    @property
    def length(self) -> int:
        """Number of bytes to come; 0 until opened."""
        return len(self.buffer)

    def may_publish(self) -> bool:
        """Return ``publishable``."""
        return self.publishable

    def covers(self, part: Span | None) -> bool:
        """Return whether the flight fetches that span within the page; None: all of it."""
        return self.part is None or (
            part is not None and self.part.start <= part.start and part.stop <= self.part.stop
        )

    def serves(self, etag: str | None) -> bool:
        """Return whether it may fetch the version ``etag`` (None: any) for a reader.

        Readers of an old version that go on after a write ask for a version that the origin no longer has:
        readers of the new one must not wait for them to fail.
        """
        if self.meta is not None:
            return etag is None or etag == self.meta.etag
        return self.wanted is None or self.wanted == etag

    def open(self, meta: ObjectMeta, length: int, *, doubtful: bool = False) -> None:
        """Set metadata, and the buffer for which memory is taken: readers may start."""
        self.meta = meta
        self.doubtful = doubtful
        # Not a bytearray, which is zeroed first: readers see only filled bytes.
        self.buffer = np.empty(length, np.uint8).data
        if not length:
            self.ended = True
        # Those that follow need bytes, which come at once where they come by callbacks.
        self._wake(self._followers if self.ended else [])

    def advance(self, count: int) -> None:
        """Note ``count`` more bytes in ``buffer``; the last one completes the flight."""
        self.filled += count
        if self.filled == len(self.buffer):
            self.ended = True
        self._wake(self._followers)

    def end(self, error: BaseException | None = None) -> None:
        """End the flight, failed or complete. Its task may go on to store the page, without readers."""
        if not self.ended:
            self.error = error
            self.ended = True
            self._wake(self._followers)

    async def hand_over(self, read: OriginRead) -> None:
        """Fail with Unidentified, let one of the readers take ``read``, and return when all have left."""
        self.passed = read
        self._through = asyncio.get_running_loop().create_future()
        self.end(Unidentified(self.ref))
        if self.waiters:
            await self._through

    def abandon(self) -> None:
        """Let go of the handed-over bytes: their reader is gone."""
        self.passed = None
        if self._through is not None and not self._through.done():
            self._through.set_result(None)

    async def opened(self, deadline: Deadline | None = None, *, proven: bool = False) -> ObjectMeta:
        """Wait for the metadata; ``proven``: until it is known to be right. Raises the flight's error, and
        DeadlineExceeded when the caller's own ``deadline`` has passed: the flight goes on for others.
        """
        while self.meta is None:
            self._raise_if_failed()
            await self._progress(deadline)
        if not self.filled:
            self._raise_if_failed()  # an error is all that there will be
        while proven and self.doubtful and not self.ended:
            await self._progress(deadline)
        if proven and self.doubtful:
            self._raise_if_failed()
        return self.meta

    async def piece(self, position: int, stop: int, deadline: Deadline | None = None) -> memoryview:
        """Return the arrived bytes of ``[position, stop)`` within the page, as soon as there are any:
        read-only, and PIECE_BYTES at most. Raises as ``opened``.
        """
        position, stop = position - self._first, stop - self._first
        while self.filled <= position:
            self._raise_if_failed()
            await self._progress(deadline)
        return self.buffer[position : min(self.filled, stop, position + PIECE_BYTES)].toreadonly()

    def _call(self, follower: Follower) -> None:
        self._called.discard(follower)
        follower.look()

    def _raise_if_failed(self) -> None:
        if not self.ended:
            return
        if isinstance(self.error, ShadeProxyError):
            # A fresh traceback for every waiter: one exception object is raised in many tasks.
            raise self.error.with_traceback(None)
        assert self.error is None, "a flight ends complete or with an error of our tree"

    def follow(self, follower: Follower) -> None:
        """Call ``follower`` from now on, until ``unfollow``."""
        self._followers.append(follower)

    def unfollow(self, follower: Follower) -> None:
        """Do not call ``follower`` any more."""
        if follower in self._followers:
            self._followers.remove(follower)

    def refuse_late(self) -> None:
        """Fail the waiters whose deadline has passed, and no others.

        After the first byte a waiter (for a body that has to be verified, say) has one window more.
        """
        arriving = self.filled > 0
        waiting, self._waiting = self._waiting, []
        for future, deadline in waiting:
            if deadline is not None and _is_late(deadline, arriving):
                self._pace.call(partial(_refuse, future, deadline))
            else:
                self._waiting.append((future, deadline))
        for follower in list(self._followers):
            if follower.deadline is not None and _is_late(follower.deadline, arriving):
                self._pace.call(follower.too_late)

    async def _progress(self, deadline: Deadline | None) -> None:
        """Wait until there is more."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((future, deadline))
        self._suspended += 1
        try:
            await future
        finally:
            self._suspended -= 1

    def _wake(self, followers: list[Follower]) -> None:
        if followers:
            # The first one writes no more at a time than the origin sent. A cold object may have thousands.
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


def _is_late(deadline: Deadline, arriving: bool) -> bool:
    return (deadline.arriving_left_s if arriving else deadline.left_s) <= 0


def _refuse(future: asyncio.Future[None], deadline: Deadline) -> None:
    if not future.done():
        future.set_exception(deadline.exceeded())
