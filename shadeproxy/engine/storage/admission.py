"""Admission: stores the pages that came from the origin in one turn of the event loop, if they earn a place.

Laws: plain defs. ``NewPage.stored`` is called exactly once for each page, even if something raises: either
before ``insert_many`` returns, or by the task that writes the page.

In a tier in memory, the pages of a turn share their work. If one piece of free room is long enough for all of
them, nothing is ranked. In a full tier, each page takes over the slot and the place of a victim that it
beats; features and ranks are computed once for all pages. A page for which neither works is decided alone.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from shadeproxy.core.errors import TierError
from shadeproxy.core.identity import etag_hash, object_hash
from shadeproxy.engine.index.prefix_groups import PrefixGroups
from shadeproxy.engine.index.residents import NewRows, Residents
from shadeproxy.engine.placement.candidates import RECORD_BYTES, AdmissionCandidates
from shadeproxy.engine.placement.eviction_pool import REFUSED, SAMPLE
from shadeproxy.engine.placement.histories import WORTH_COLUMNS
from shadeproxy.engine.placement.pins import Pins
from shadeproxy.engine.placement.placement import Placement
from shadeproxy.engine.storage.delegated_writes import DelegatedWrites
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.engine.storage.transfers import NewPage
from shadeproxy.tiers.base import Location

_FEW_NEED = 32
"""A few pages are stored together only while at least ``1 / _FEW_NEED`` of the capacity is free. If less is
free, the free room is scattered, and the search for one long piece would often find nothing.
"""

_Told = dict[int, Exception | None]
"""New pages whose ``stored`` was called, or will be called by a task. The key is the page's ``id()``; the
value is the error that the call raised, or None.
"""


class _Records(NamedTuple):
    """New pages as records of the first tier; each field has n entries, one for each page. ``metas``,
    ``sizes_bytes``: the results of the tier's ``encode_many``.
    """

    pages: Sequence[NewPage]
    hashes: Sequence[int]
    metas: Sequence[bytes]
    sizes_bytes: Sequence[int]

    def at(self, places: Sequence[int]) -> "_Records":
        """Return only the records at the indices ``places``."""
        pages, hashes, metas, sizes_bytes = self
        return _Records(
            [pages[place] for place in places],
            [hashes[place] for place in places],
            [metas[place] for place in places],
            [sizes_bytes[place] for place in places],
        )


class PageAdmission:
    """Gives new pages slots in ``residents``, and places in the tiers through ``transfers``."""

    def __init__(
        self,
        residents: Residents,
        media: Sequence[Medium],
        groups: PrefixGroups,
        *,
        pins: Pins,
        placement: Placement,
        transfers: DelegatedWrites,
        disown: Callable[[int], None],
    ) -> None:
        """``disown``: called with the hash of an object when a page of another version of it is replaced."""
        self._residents = residents
        self._media = media
        self._groups = groups
        self._pins = pins
        self._placement = placement
        self._transfers = transfers
        self._disown = disown

    def insert_many(self, pages: Sequence[NewPage]) -> None:
        """Store the pages that earn a place. The caller flushes the access log before, because reads decide
        on the ranks of pages.

        ``NewPage.stored`` is called once for each page: before this returns, or, if a task writes the page,
        after the write.
        """
        told: _Told = {}
        hashes = [object_hash(new.page.ref) for new in pages]
        numbers = [new.page.number for new in pages]
        self._placement.histories.arrived(hashes, numbers, self._placement.tick)
        together = self._may_go_together(pages)
        try:
            if not (together and self._fill_room(pages, hashes, told)):
                self._insert_each(pages, hashes, told, together=together)
        finally:
            if len(told) < len(pages):
                left = [new for new in pages if id(new) not in told]
                _tell(left, [False] * len(left), told)
        for error in told.values():
            if error is not None:
                raise error

    def _insert_each(
        self, pages: Sequence[NewPage], hashes: Sequence[int], told: _Told, *, together: bool
    ) -> None:
        # A small tier has no eviction pool: for each new page, all pages of the tier are ranked.
        big = together and len(self._media) == 1 and self._residents.members[0].count > SAMPLE
        left = pages
        while left:
            count = self._placement.together(0) if big else len(left)
            some, left = left[:count], left[count:]
            own, hashes = hashes[:count], hashes[count:]
            if big and len(some) >= self._placement.least_together:
                some = self._take_over(some, own, told)
            for new in some:
                self._insert(new, told)

    def _may_go_together(self, pages: Sequence[NewPage]) -> bool:
        """Return whether the pages may share their work: no write needs a task, nothing is pinned, and no
        page occurs twice.
        """
        return (
            self._media[0].write is None
            and not self._pins.any
            and len({(new.page.ref, new.page.number) for new in pages}) == len(pages)
        )

    def _fill_room(self, pages: Sequence[NewPage], hashes: Sequence[int], told: _Told) -> bool:
        """Store all pages in one piece of free room. If no piece is long enough, return False with nothing
        done.
        """
        tier = self._media[0].tier
        # First look at the amount of free room. This is cheap, and excludes a full tier, which is the most
        # frequent case.
        room_bytes = tier.room_bytes
        if len(pages) < WORTH_COLUMNS:
            room_bytes -= tier.capacity_bytes // _FEW_NEED
        if sum([len(new.body) for new in pages]) > room_bytes:
            return False
        for hashed, new in zip(hashes, pages, strict=True):
            if self._residents.occupant(hashed, new.page.number) is not None:
                return False
        try:
            records = self._encode(pages, hashes)
        except TierError:
            return False
        if (locations := tier.reserve_many(records.sizes_bytes)) is None:
            return False
        self._write_new(records, locations, told)
        return True

    def _take_over(self, pages: Sequence[NewPage], hashes: Sequence[int], told: _Told) -> list[NewPage]:
        """Store pages in free room or in the places of victims that they beat. Return the pages that must be
        decided one by one.
        """
        tier = self._media[0].tier
        bars = self._placement.bars(
            AdmissionCandidates(
                np.array(hashes, np.uint64),
                np.array([new.page.number for new in pages], np.uint32),
                np.array([len(new.body) + RECORD_BYTES for new in pages], np.int64),
                np.zeros(len(pages), np.bool_),
            )
        )
        worst, room_bytes = self._placement.draw_ahead(0, len(pages)), tier.room_bytes
        unused_bytes = room_bytes  # Free room that no earlier page will take.
        wanting: list[int] = []
        refused: list[NewPage] = []
        alone: list[NewPage] = []
        for place, (new, hashed, bar) in enumerate(zip(pages, hashes, bars, strict=True)):
            if self._residents.occupant(hashed, new.page.number) is not None:
                alone.append(new)
            elif bar < worst:
                wanting.append(place)
            elif len(new.body) <= unused_bytes:
                unused_bytes -= len(new.body)
                wanting.append(place)
            else:
                refused.append(new)
        self._refuse(refused, told)
        if not wanting:
            return alone
        wanted = [pages[place] for place in wanting]
        try:
            records = self._encode(wanted, [hashes[place] for place in wanting])
        except TierError:
            return alone + wanted
        left = self._reserve(records, room_bytes, told)
        return alone + self._evict_for(records.at(left), [bars[wanting[place]] for place in left], told)

    def _encode(self, pages: Sequence[NewPage], hashes: Sequence[int]) -> _Records:
        """Return the records of pages. Raises TierError."""
        metas, sizes_bytes = self._media[0].tier.encode_many(
            [new.page for new in pages], [new.meta for new in pages], [new.body for new in pages]
        )
        return _Records(pages, hashes, metas, sizes_bytes)

    def _reserve(self, records: _Records, room_bytes: int, told: _Told) -> list[int]:
        """Write records to the free room that a nearly full tier still has. Return the indices of the records
        for which it is too short.
        """
        reserved: list[int] = []
        locations: list[Location] = []
        left: list[int] = []
        for place, size_bytes in enumerate(records.sizes_bytes):
            if size_bytes > room_bytes:
                left.append(place)
                continue
            try:
                locations.append(self._media[0].tier.reserve(size_bytes))
            except TierError:
                # No hole is long enough for this record, nor for a longer one.
                room_bytes = size_bytes - 1
                left.append(place)
            else:
                reserved.append(place)
                room_bytes -= size_bytes
        if reserved:
            self._write_new(records.at(reserved), locations, told)
        return left

    def _evict_for(self, records: _Records, bars: Sequence[float], told: _Told) -> list[NewPage]:
        """Write records to the places of victims that they beat. Return the pages whose records fit in no
        such place.
        """
        alone: list[NewPage] = []
        refused: list[NewPage] = []
        victims = self._placement.victims(0, bars, records.sizes_bytes)
        found = [place for place, slot in enumerate(victims) if slot >= 0]
        locations = self._media[0].tier.take_over(
            [Location(self._residents.locations[victims[place]]) for place in found],
            [records.sizes_bytes[place] for place in found],
        )
        taken = {place: where for place, where in zip(found, locations, strict=True) if where is not None}
        for place, slot in enumerate(victims):
            if slot == REFUSED:
                refused.append(records.pages[place])
            elif place not in taken:
                alone.append(records.pages[place])
        self._refuse(refused, told)
        if taken:
            records, slots = records.at(list(taken)), [victims[place] for place in taken]
            self._transfers.vacate(slots, 0, "policy")
            self._placement.take_over(np.array(slots), self._rows(records))
            self._write(records, slots, list(taken.values()), told)
        return alone

    def _refuse(self, pages: Sequence[NewPage], told: _Told) -> None:
        self._transfers.note_bypasses(len(pages))
        self._placement.note_refused(0, len(pages))
        _tell(pages, [False] * len(pages), told)

    def _write_new(self, records: _Records, locations: list[Location], told: _Told) -> None:
        """Give pages slots, write their records to free room, and call ``stored`` of each page."""
        if len(records.pages) < WORTH_COLUMNS:
            rows = zip(records.pages, records.hashes, records.sizes_bytes, strict=True)
            slots = [self._add(new, hashed, size_bytes) for new, hashed, size_bytes in rows]
            self._residents.join(slots, 0)
        else:
            slots = self._placement.add_many(0, self._rows(records)).tolist()
        self._write(records, slots, locations, told)

    def _rows(self, records: _Records) -> NewRows:
        pages = [new.page for new in records.pages]
        return NewRows(
            np.array(records.hashes, np.uint64),
            np.array([page.number for page in pages], np.uint32),
            np.array([etag_hash(page.etag) for page in pages], np.uint64),
            np.array([self._groups.of(page.ref) for page in pages], np.intp),
            np.array(records.sizes_bytes, np.int64),
            np.array([len(new.body) for new in records.pages], np.int64),
            np.array([new.validated_s for new in records.pages], np.float64),
            self._placement.tick,
        )

    def _write(self, records: _Records, slots: list[int], locations: list[Location], told: _Told) -> None:
        """Write records, and call ``stored`` of each page. If another process has the body of a page, let
        that process write the body.
        """
        transfers, here, written = self._transfers, list(range(len(slots))), list[bool]()
        try:
            for place, new in enumerate(records.pages):
                if new.writer is not None and transfers.delegate(
                    slots[place], locations[place], records.sizes_bytes[place], new
                ):
                    told[id(new)] = None
                    here.remove(place)
            if len(here) < len(slots):
                slots, locations = list(map(slots.__getitem__, here)), list(map(locations.__getitem__, here))
                records = records.at(here)
            if here:
                written = transfers.write_many(0, locations, records.pages, records.metas)
        finally:
            if here:
                written = written or [False] * len(here)
                transfers.settle_many(0, slots, locations, written)
                _tell(records.pages, written, told)

    def _insert(self, new: NewPage, told: _Told) -> None:
        """Store one page by itself, by ``Transfers.store``."""
        page = new.page
        try:
            record_bytes = self._media[0].tier.record_bytes(page, new.meta, len(new.body))
        except TierError as error:  # The metadata does not fit in a record.
            self._transfers.note_failure(self._media[0].tier, "encode", error)
            _tell((new,), (False,), told)
            return
        hashed = object_hash(page.ref)
        occupant = self._residents.occupant(hashed, page.number)
        if occupant is not None:
            if self._residents.etag[occupant] != etag_hash(page.etag):
                self._disown(hashed)
            self._transfers.drop(occupant, "replaced")
        stored = self._transfers.store(self._add(new, hashed, record_bytes), new)
        if stored is None:
            told[id(new)] = None
        else:
            _tell((new,), (stored,), told)

    def _add(self, new: NewPage, hashed: int, record_bytes: int) -> int:
        page = new.page
        slot = self._residents.add(
            hashed,
            page.number,
            etag=etag_hash(page.etag),
            body_bytes=len(new.body),
            record_bytes=record_bytes,
            group=self._groups.of(page.ref),
            tick=self._placement.tick,
            validated_s=new.validated_s,
            pinned=self._pins.covers(page.ref),
        )
        self._placement.enter(slot)
        return slot


def _tell(pages: Iterable[NewPage], stored: Iterable[bool], told: _Told) -> None:
    """Call ``stored`` of each page. If a call raises, keep its error, and still make the other calls."""
    for new, one in zip(pages, stored, strict=True):
        told[id(new)] = None
        try:
            new.stored(one)
        except Exception as error:  # noqa: BLE001 - raised again after the last call
            told[id(new)] = error


def answer_waiter(waiter: asyncio.Future[bool], stored: bool) -> None:
    """Give a task the answer that it waits for, unless the task has ended."""
    if not waiter.done():
        waiter.set_result(stored)
