"""Fetches the pieces of a batch answer before it is their turn to be sent.

Laws: a call has at most FILLS fetches under way. One budget for all calls (``held``) limits the fetched bytes
that wait for their turn. No fetch waits for this budget: if it has no room for a piece, the piece is fetched
at its turn, so that every answer can continue. Leaving the context ends every fetch, and gives all bytes back
to the budget.
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
    """A piece all of whose bytes were fetched. ``views``: these bytes, in order."""

    source: Source
    length: int
    views: list[memoryview]


Outcome = FetchedPiece | ShadeProxyError | None
"""The result of a fetch. None: the piece was too long to be fetched ahead, or the budget had no room for it.
It must then be read at its turn.
"""


class BatchLookahead:
    """The fetches of one answer. ``most_bytes``: pieces with more bytes are streamed at their turn.
    ``on_end``: called with the index of each item whose fetch has ended, until the context is left.
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
        """Return the number of fetches that are under way, or whose result was not taken yet."""
        return len(self._tasks)

    def __contains__(self, index: int) -> bool:
        return index in self._tasks

    @property
    def has_room(self) -> bool:
        """True if ``start`` may be called. This requires that half of the budget is free, because fetches
        that are under way will take some of it, too.
        """
        return self._running < FILLS and 2 * self._held.taken_bytes <= self._held.capacity_bytes

    def start(self, index: int, sample: Sample) -> None:
        """Begin to fetch the piece of item ``index``."""
        task = asyncio.create_task(self._fetch(sample), name=f"batch item {index}")
        self._tasks[index] = task
        self._running += 1
        task.add_done_callback(lambda _task: self._ended(index))

    def has_ended(self, index: int) -> bool:
        """Return True if ``take`` would not wait."""
        return self._tasks[index].done()

    async def take(self, index: int) -> Outcome:
        """Wait for a fetch, and return its result. If it is a ``FetchedPiece``, the caller must give it back
        by ``give_back``.
        """
        outcome = await asyncio.shield(self._tasks[index])
        del self._tasks[index]
        return outcome

    def give_back(self, outcome: FetchedPiece) -> None:
        """Give the bytes of a piece back to the budget, because they were sent."""
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
        """Fetch all of a piece. Return None if the piece is too long or the budget has no room. Raises
        ShadeProxyError.
        """
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
