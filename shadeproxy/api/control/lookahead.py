"""Fetches pieces before their turn in an answer.

Laws: a call runs at most FILLS fetches at a time. Fetched bytes that wait for their turn are limited by one
budget for all calls (``held``). No fetch waits for that budget: a piece for which it has no room is fetched
at its turn, so an answer can always continue. Leaving the context ends every fetch and returns every byte.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from shadeproxy.api.control.pieces import PieceReader
from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.types import Source
from shadeproxy.hints.datasets import Sample

FILLS = 32


class FetchedPiece(NamedTuple):
    """A piece that was fetched completely. ``views``: its bytes, in order."""

    source: Source
    length: int
    views: list[memoryview]


Outcome = FetchedPiece | ShadeProxyError | None
"""The result of a fetch. None: the piece was too long to be fetched ahead, or the budget had no room. It must
be read at its turn.
"""


class BatchLookahead:
    """The fetches of one answer. ``most_bytes``: longer pieces are streamed at their turn. ``on_end``: called
    with the index of each fetch that ended, until the context is left.
    """

    def __init__(
        self, reader: PieceReader, held: Ledger, most_bytes: int, *, on_end: Callable[[int], None]
    ) -> None:
        self._reader = reader
        self._held = held
        self._most_bytes = most_bytes
        self._tasks: dict[int, asyncio.Task[Outcome]] = {}
        self._running = 0
        self._on_end = on_end
        self._left = False

    def __len__(self) -> int:
        """Return the number of fetches that are running, or whose result was not taken yet."""
        return len(self._tasks)

    def __contains__(self, index: int) -> bool:
        return index in self._tasks

    @property
    def has_room(self) -> bool:
        """True if ``start`` may be called. Half of the budget must be free, for the fetches that
        run already.
        """
        return self._running < FILLS and 2 * self._held.taken_bytes <= self._held.capacity_bytes

    def start(self, index: int, sample: Sample) -> None:
        """Fetch the piece of item ``index``."""
        task = asyncio.create_task(self._fetch(sample), name=f"batch item {index}")
        self._tasks[index] = task
        self._running += 1
        task.add_done_callback(lambda _task: self._ended(index))

    def has_ended(self, index: int) -> bool:
        """Return whether ``take`` would not wait."""
        return self._tasks[index].done()

    async def take(self, index: int) -> Outcome:
        """Wait for a started fetch. The caller must call ``give_back`` for a ``FetchedPiece`` outcome."""
        outcome = await asyncio.shield(self._tasks[index])
        del self._tasks[index]
        return outcome

    def give_back(self, outcome: FetchedPiece) -> None:
        """Return the bytes of a result to the budget, after it was sent."""
        self._held.give(outcome.length)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._left = True
        for task in self._tasks.values():
            task.cancel()
        outcomes = await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()
        for outcome in outcomes:
            if isinstance(outcome, FetchedPiece):
                self.give_back(outcome)

    async def _fetch(self, sample: Sample) -> Outcome:
        deadline = self._reader.context.begin_item()
        try:
            return await deadline.bound(self._fetch_whole(sample), arriving=True)
        except ShadeProxyError as error:
            return error

    async def _fetch_whole(self, sample: Sample) -> FetchedPiece | None:
        """Fetch a complete piece. Return None if it is too long or finds no room. Raises ShadeProxyError."""
        async with self._reader.open(sample) as opened:
            if opened.length > self._most_bytes or not self._held.try_take(opened.length):
                return None
            try:
                views = [piece async for piece in opened.pieces]
            except BaseException:
                self._held.give(opened.length)
                raise
        return FetchedPiece(opened.source, opened.length, views)

    def _ended(self, index: int) -> None:
        self._running -= 1
        if not self._left:
            self._on_end(index)
