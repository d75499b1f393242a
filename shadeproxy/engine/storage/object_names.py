"""Reads the keys of resident objects, which are only in the records of their pages.

Laws: the key of an object is read from one of its pages, in a thread, and in the order in which the records
lie on their media. A key counts only if it has the object's hash. So it stays right if the page moves or
leaves meanwhile. Each step on the event loop takes about 2 ms.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import ShuttingDown, TierError
from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.index.columns import NO_TIER
from shadeproxy.engine.index.prefix_groups import group_flags
from shadeproxy.engine.index.residents import Residents, Slots
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.engine.storage.record_reader import PagePosition, RecordReader
from shadeproxy.tiers.base import Location

ASKED = 4096
"""Most records that a thread reads before other callers get a turn."""
_SLICE = 1 << 14  # Slots that are looked at in one step.
_ROUNDS = 8  # Most pages of an object that are tried.
_OTHER, _WANTED, _MOVED, _UNREADABLE = 0, 1, 2, 3

Hashes = NDArray[np.uint64]
Wanted = Callable[[ObjectRef, int], bool]


class PageColumns(NamedTuple):
    """Copies of columns of the table, of some slots. A slot may have got another page since."""

    slots: Slots
    hashes: Hashes
    generations: NDArray[np.int64]
    tiers: NDArray[np.int8]
    locations: NDArray[np.int64]

    def where(self, chosen: NDArray[Any]) -> "PageColumns":
        """Return the rows that a mask or an array of indices chooses."""
        return PageColumns(*(column[chosen] for column in self))

    @property
    def readable(self) -> "PageColumns":
        """The pages that were in a tier."""
        return self.where(self.tiers != NO_TIER)


class NamedObjects(NamedTuple):
    """Objects whose keys were read, as sorted hashes: those that are wanted, and all others."""

    wanted: Hashes
    others: Hashes


NOTHING_NAMED = NamedObjects(np.zeros(0, np.uint64), np.zeros(0, np.uint64))


def distinct(hashes: Hashes) -> Hashes:
    """Return ``hashes`` sorted, each once. For a million hashes, numpy's own ``unique`` and ``union1d`` take
    fifty times as long, and stop all other threads for 0.2 s.
    """
    ordered = np.sort(hashes)
    is_first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]


def are_among(hashes: Hashes, known: Hashes) -> NDArray[np.bool_]:
    """Return which of ``hashes`` are in ``known``, which is sorted: bool[n]. Many ``hashes`` are looked up
    faster if they are sorted too.
    """
    if not len(known):
        return np.zeros(len(hashes), np.bool_)
    places = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    found: NDArray[np.bool_] = known[places] == hashes
    return found


class ObjectNames:
    """Reads the keys of the objects of ``residents``."""

    def __init__(self, residents: Residents, media: Sequence[Medium], places: RecordReader) -> None:
        self._residents = residents
        self._media = media
        self._places = places

    async def scan(self, groups: list[int]) -> PageColumns:
        """Return the columns of all slots, in use or free, whose page is or was of one of these groups."""
        parts, flags = [self._columns(np.zeros(0, np.int64))], group_flags(groups)
        for start in range(0, self._residents.slots, _SLICE):
            parts.append(self._columns(self._residents.in_groups(flags, start, start + _SLICE)))
            await asyncio.sleep(0)
        return await asyncio.to_thread(_joined, parts)

    async def gather(self, slots: Slots) -> PageColumns:
        """Return the columns of these slots."""
        parts = [self._columns(np.zeros(0, np.int64))]
        for start in range(0, len(slots), _SLICE):
            parts.append(self._columns(slots[start : start + _SLICE]))
            await asyncio.sleep(0)
        return await asyncio.to_thread(_joined, parts)

    def _columns(self, slots: Slots) -> PageColumns:
        table = self._residents
        return PageColumns(
            slots, table.object_hash[slots], table.generation[slots], table.tier[slots], table.location[slots]
        )

    async def still_there(self, pages: PageColumns) -> Slots:
        """Return the slots that still have the same page, in a tier."""
        table, parts = self._residents, [pages.slots[:0]]
        for start in range(0, len(pages.slots), _SLICE):
            slots, before = pages.slots[start : start + _SLICE], pages.generations[start : start + _SLICE]
            parts.append(slots[(table.generation[slots] == before) & (table.tier[slots] != NO_TIER)])
            await asyncio.sleep(0)
        return await asyncio.to_thread(np.concatenate, parts)

    async def ask(self, pages: PageColumns, wanted: Wanted) -> NamedObjects:
        """Read the key of each object that these pages belong to. ``wanted`` is called once with each object
        and its hash, in a thread. An object is left out if none of a few of these pages can be read.

        Raises ShuttingDown once the media are closed.
        """
        named = NOTHING_NAMED
        for _ in range(_ROUNDS):
            todo = await asyncio.to_thread(_one_page_each, pages)
            verdicts = np.full(len(todo.slots), _UNREADABLE, np.int8)
            for start in range(0, len(todo.slots), ASKED):
                part = todo.where(np.arange(start, min(start + ASKED, len(todo.slots))))
                await self._ask_some(part, wanted, verdicts[start : start + ASKED])
            named, pages = await asyncio.to_thread(_divided, named, pages, todo, verdicts)
            if not len(pages.slots):
                break
        return named

    async def _ask_some(self, pages: PageColumns, wanted: Wanted, verdicts: NDArray[np.int8]) -> None:
        """Set the verdicts of a few pages, each of another object. Those of unreadable pages are set
        already.
        """
        now = self._columns(pages.slots)
        here = np.flatnonzero((now.hashes == pages.hashes) & (now.tiers != NO_TIER))
        now, failures = now.where(here), dict[int, TierError]()

        def read() -> None:
            for index, medium in enumerate(self._media):
                inside = np.flatnonzero(now.tiers == index)
                inside = inside[np.argsort(now.locations[inside])]
                refs = medium.tier.refs(map(Location, now.locations[inside].tolist()))
                hashes, kinds = now.hashes[inside].tolist(), list[int]()
                for hashed, ref in zip(hashes, refs, strict=True):
                    if isinstance(ref, TierError):
                        failures[int(inside[len(kinds)])] = ref
                        kinds.append(_UNREADABLE)
                    elif object_hash.__wrapped__(ref) != hashed:
                        error = TierError("another record lies where the page was said to be")
                        failures[int(inside[len(kinds)])] = error
                        kinds.append(_UNREADABLE)
                    else:
                        kinds.append(wanted(ref, hashed))
                verdicts[here[inside]] = kinds

        await asyncio.to_thread(read)
        if self._places.closed:
            raise ShuttingDown("the proxy is shutting down; ask again after its restart")
        places = {
            int(now.slots[place]): PagePosition(
                int(now.generations[place]), int(now.tiers[place]), Location(int(now.locations[place]))
            )
            for place in failures
        }
        moved = self._places.note_failures(dict(zip(places, failures.values(), strict=True)), places)
        for slot, place in zip(places, failures, strict=True):
            if slot in moved:
                verdicts[here[place]] = _MOVED


def _joined(parts: list[PageColumns]) -> PageColumns:
    return PageColumns(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _one_page_each(pages: PageColumns) -> PageColumns:
    """Return a page of each object, in the order of the records' places."""
    first = pages.where(np.unique(pages.hashes, return_index=True)[1])
    return first.where(np.lexsort((first.locations, first.tiers)))


def _divided(
    named: NamedObjects, pages: PageColumns, asked: PageColumns, verdicts: NDArray[np.int8]
) -> tuple[NamedObjects, PageColumns]:
    """Return all objects named so far, and the pages of the rest that may still tell the names of theirs."""
    wanted, others = (asked.hashes[verdicts == verdict] for verdict in (_WANTED, _OTHER))
    named = NamedObjects(
        distinct(np.concatenate((named.wanted, wanted))), distinct(np.concatenate((named.others, others)))
    )
    rest = verdicts >= _MOVED
    left = pages.where(are_among(pages.hashes, distinct(asked.hashes[rest])))
    return named, left.where(~np.isin(left.slots, asked.slots[verdicts == _UNREADABLE]))
