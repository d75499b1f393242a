"""Bounds the exact checks of an object: those that must be sent after the reads that wait for them began.

Laws: a read never waits for a check that was sent before the read began. A few exact checks of an object are
under way at a time. Reads that come meanwhile share the next check, which is sent as soon as one of these has
ended, or after a moment: answers that do not come must not hold up other readers.
"""

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

# With four at a time, a read waits for a quarter of an answer's time at most.
_AT_A_TIME = 4
_LONGEST_WAIT_S = 0.5


class _Checks:
    """The exact checks of one kind. ``sent``: how many were sent. ``users``: how many have not ended."""

    __slots__ = ("free", "sent", "users")

    def __init__(self) -> None:
        self.sent = self.users = 0
        self.free = asyncio.Semaphore(_AT_A_TIME)


class ExactChecks:
    """The exact checks that have not ended. Each has a kind: its object, and how the origin is asked."""

    def __init__(self) -> None:
        self._by_kind: dict[Hashable, _Checks] = {}

    def number(self, kind: Hashable) -> int:
        """Return the number, from 1 on, of the check that a read may share which begins now."""
        checks = self._by_kind.get(kind)
        return 1 if checks is None else checks.sent + 1

    def begin(self, kind: Hashable) -> None:
        """Note a check that will be sent. Call ``end`` once when it has ended."""
        self._by_kind.setdefault(kind, _Checks()).users += 1

    def end(self, kind: Hashable) -> None:
        checks = self._by_kind[kind]
        checks.users -= 1
        if not checks.users:
            del self._by_kind[kind]

    @asynccontextmanager
    async def sending(self, kind: Hashable) -> AsyncIterator[None]:
        """Wait until the check may be sent. Reads that begin from then on do not share it."""
        checks, is_free = self._by_kind[kind], True
        try:
            async with asyncio.timeout(_LONGEST_WAIT_S):
                await checks.free.acquire()
        except TimeoutError:
            is_free = False
        checks.sent += 1
        try:
            yield
        finally:
            if is_free:
                checks.free.release()
