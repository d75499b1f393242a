"""Admission of the pages that came from the origin in one turn of the loop.

Laws: plain defs. ``NewPage.stored`` is called exactly once for each page, even if something raises: before
``insert_many`` returns, or by the task that writes the page.

In a tier in memory, the pages of a turn share their work. If one piece of free room holds all of them,
nothing is ranked. In a full tier, each page takes over slot and place of a victim that it beats, so features
and ranks are computed once for all pages. Every other page is decided alone.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from shadeproxy.core.errors import TierError, TierFull
from shadeproxy.core.identity import etag_hash, object_hash
from shadeproxy.engine.index.prefix_groups import PrefixGroups
from shadeproxy.engine.index.residents import NewRows, Residents
from shadeproxy.engine.placement.candidates import RECORD_BYTES, AdmissionCandidates
from shadeproxy.engine.placement.eviction_pool import REFUSED, SAMPLE, UNFIT
from shadeproxy.engine.placement.histories import WORTH_COLUMNS
from shadeproxy.engine.placement.pins import Pins
from shadeproxy.engine.placement.placement import Placement
from shadeproxy.engine.storage.delegated_writes import DelegatedWrites
from shadeproxy.engine.storage.transfers import Medium, NewPage
from shadeproxy.tiers.base import Location

_NO_SLOT = -1

_Told = dict[int, Exception | None]
"""New pages whose ``stored`` was called, or will be called by a task: from the page's ``id()`` to the error
that the call raised.
"""


class _NewPlace(NamedTuple):
    """A new page, the place that was reserved for it, and the slot that it takes over, if any."""

    new: NewPage
    hashed: int
    record_bytes: int
    location: Location
    slot: int = _NO_SLOT


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
        """``disown``: called with the hash of an object when a page of it replaces one of another version."""
        self._residents = residents
        self._media = media
        self._groups = groups
        self._pins = pins
        self._placement = placement
        self._transfers = transfers
        self._disown = disown

    def insert_many(self, pages: Sequence[NewPage]) -> None:
        """Store the pages that earn a place. Flush the access log first, because pages are ranked by their
        reads.

        ``NewPage.stored`` is called once for each page: before this returns, or after a write that takes a
        task.
        """
        told: _Told = {}
        together = self._may_go_together(pages)
        try:
            if not (together and self._fill_room(pages, told)):
                self._insert_each(pages, told, together=together)
        finally:
            if len(told) < len(pages):
                for new in pages:
                    if id(new) not in told:
                        _tell(new, False, told)
        for error in told.values():
            if error is not None:
                raise error

    def _insert_each(self, pages: Sequence[NewPage], told: _Told, *, together: bool) -> None:
        # A small tier has no eviction pool: all its pages are ranked for each new page.
        big = together and len(self._media) == 1 and self._residents.members[0].count > SAMPLE
        count = self._placement.together(0) if big else len(pages)
        for start in range(0, len(pages), count or 1):
            some = pages[start : start + count]
            if big and len(some) >= WORTH_COLUMNS:
                some = self._take_over(some, told)
            for new in some:
                self._insert(new, told)

    def _may_go_together(self, pages: Sequence[NewPage]) -> bool:
        """Return whether pages may share their work: no write needs a task, nothing is pinned, and no page
        comes twice.
        """
        return (
            len(pages) >= WORTH_COLUMNS
            and self._media[0].write is None
            and not self._pins.any
            and len({(new.page.ref, new.page.number) for new in pages}) == len(pages)
        )

    def _fill_room(self, pages: Sequence[NewPage], told: _Told) -> bool:
        """Store pages in one piece of free room. Return False, with nothing done, if there is none."""
        tier = self._media[0].tier
        # A full tier comes here with every turn: look at its room before anything that costs more.
        room_bytes = tier.capacity_bytes - tier.used_bytes
        for new in pages:
            room_bytes -= len(new.body)
        if room_bytes < 0:
            return False
        hashes, sizes = [], []
        try:
            for new in pages:
                hashes.append(hashed := object_hash(new.page.ref))
                if self._residents.occupant(hashed, new.page.number) is not None:
                    return False
                sizes.append(tier.record_bytes(new.page, new.meta, len(new.body)))
        except TierError:
            return False
        if (locations := tier.reserve_many(sizes)) is None:
            return False
        self._write_new(list(map(_NewPlace, pages, hashes, sizes, locations)), told)
        return True

    def _take_over(self, pages: Sequence[NewPage], told: _Told) -> list[NewPage]:
        """Store pages in free room, or in the places of victims that they beat. Return the pages that must be
        decided alone.
        """
        hashes = [object_hash(new.page.ref) for new in pages]
        bars = self._placement.bars(
            AdmissionCandidates(
                np.array(hashes, np.uint64),
                np.array([new.page.number for new in pages], np.uint32),
                np.array([len(new.body) + RECORD_BYTES for new in pages], np.int64),
                np.zeros(len(pages), np.bool_),
            )
        )
        self._placement.draw_ahead(0, len(pages))
        taken: list[_NewPlace] = []
        left: list[NewPage] = []
        try:
            for new, hashed, bar in zip(pages, hashes, bars, strict=True):
                found = self._find(new, hashed, bar)
                if isinstance(found, _NewPlace):
                    taken.append(found)
                elif found == UNFIT:
                    left.append(new)
                else:
                    self._transfers.note_bypass()
                    _tell(new, False, told)
        finally:
            self._write_over([one for one in taken if one.slot != _NO_SLOT], told)
            self._write_new([one for one in taken if one.slot == _NO_SLOT], told)
        return left

    def _find(self, new: NewPage, hashed: int, bar: float) -> "_NewPlace | int":
        """Reserve a place for a page. Return REFUSED if it beats no page, UNFIT if it must be
        decided alone.
        """
        tier, page, body_bytes = self._media[0].tier, new.page, len(new.body)
        if self._residents.occupant(hashed, page.number) is not None:
            return UNFIT
        room_bytes = tier.capacity_bytes - tier.used_bytes
        if room_bytes < body_bytes and self._placement.worst_ahead(0) <= bar:
            return REFUSED
        try:
            record_bytes = tier.record_bytes(page, new.meta, body_bytes)
            if record_bytes <= room_bytes:
                with contextlib.suppress(TierFull):
                    return _NewPlace(new, hashed, record_bytes, tier.reserve(record_bytes))
        except TierError:
            return UNFIT
        slot = self._placement.victim(0, bar, record_bytes)
        if slot < 0:
            return slot
        location = tier.take_over(Location(self._residents.locations[slot]), record_bytes)
        return UNFIT if location is None else _NewPlace(new, hashed, record_bytes, location, slot)

    def _write_over(self, taken: Sequence[_NewPlace], told: _Told) -> None:
        """Write pages to the places that they take over, and answer them."""
        if taken:
            slots = [one.slot for one in taken]
            self._transfers.vacate(slots, 0, "policy")
            self._placement.take_over(np.array(slots), self._rows(taken))
            self._write(taken, slots, told)

    def _write_new(self, taken: Sequence[_NewPlace], told: _Told) -> None:
        """Write pages to places in free room, and answer them."""
        if taken:
            self._write(taken, self._placement.add_many(0, self._rows(taken)).tolist(), told)

    def _rows(self, taken: Sequence[_NewPlace]) -> NewRows:
        news, hashes, record_bytes, *_ = zip(*taken, strict=True)
        pages = [new.page for new in news]
        return NewRows(
            np.array(hashes, np.uint64),
            np.array([page.number for page in pages], np.uint32),
            np.array([etag_hash(page.etag) for page in pages], np.uint64),
            np.array([self._groups.of(page.ref) for page in pages], np.intp),
            np.array(record_bytes, np.int64),
            np.array([len(new.body) for new in news], np.int64),
            np.array([new.validated_s for new in news], np.float64),
            self._placement.tick,
        )

    def _write(self, taken: Sequence[_NewPlace], slots: list[int], told: _Told) -> None:
        transfers, written = self._transfers, dict.fromkeys(range(len(taken)), False)
        try:
            for number, (new, _, record_bytes, location, _) in enumerate(taken):
                if new.writer is not None and transfers.delegate(slots[number], location, record_bytes, new):
                    told[id(new)] = None
                    del written[number]
                else:
                    written[number] = transfers.write_now(0, location, new.header, new.body, new.wanted)
        finally:
            if written:
                places = [taken[number].location for number in written]
                rows = list(map(slots.__getitem__, written))
                transfers.settle_many(0, rows, places, list(written.values()))
            for number, stored in written.items():
                _tell(taken[number].new, stored, told)

    def _insert(self, new: NewPage, told: _Told) -> None:
        """Store one page as ``Transfers.store`` does."""
        page = new.page
        try:
            record_bytes = self._media[0].tier.record_bytes(page, new.meta, len(new.body))
        except TierError as error:  # No record can hold that header.
            self._transfers.note_failure(self._media[0].tier, "encode", error)
            _tell(new, False, told)
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
            _tell(new, stored, told)

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


def _tell(new: NewPage, stored: bool, told: _Told) -> None:
    """Call ``new.stored``. Keep an error that it raises, so that the calls of other pages still follow."""
    told[id(new)] = None
    try:
        new.stored(stored)
    except Exception as error:  # noqa: BLE001 - raised again when all have their answer
        told[id(new)] = error


def answer_waiter(waiter: asyncio.Future[bool], stored: bool) -> None:
    """Pass an answer on to a waiter, which may have left."""
    if not waiter.done():
        waiter.set_result(stored)
