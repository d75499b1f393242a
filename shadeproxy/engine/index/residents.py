"""Table of the resident pages. Each page has a slot, found by a 64-bit hash, and features in numpy columns.

Laws: no I/O; plain defs; a slot belongs to one page from ``add`` to ``remove``. Columns, unlike objects, keep
a page under 300 bytes of process memory, and let a policy rank 1,024 of 1 M pages at once. Keys and metadata
are not in this table: they are in the record headers, in the tiers.
"""

from collections.abc import Sequence
from itertools import islice
from typing import cast

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import TierError
from shadeproxy.core.identity import etag_hash, object_hash
from shadeproxy.core.types import Page
from shadeproxy.engine.index.columns import (
    NO_TIER,
    PAGE,
    PAGE_ROW,
    REST,
    REST_HEAD,
    NewRows,
    Share,
    private_columns,
)
from shadeproxy.engine.index.hash_table import page_hash, page_table
from shadeproxy.engine.index.members import Members, Slots
from shadeproxy.engine.index.other_pages import OtherPages
from shadeproxy.engine.index.prefix_groups import GroupFlags
from shadeproxy.tiers.base import Location, RecordHeader
from shadeproxy.tiers.location import record_bytes
from shadeproxy.tiers.rows import Rows

__all__ = ["NO_TIER", "NewRows", "Residents", "Slots", "etag_hash", "page_hash"]

_PINNED = -1  # Position of a pinned page: it is in a tier, but not in the array of ``Members``.
_NOWHERE = 0  # Location of a page that is in no tier yet.


class Residents:
    """All pages that are in a tier or being written to one. ``share``: shared memory by which workers find
    these pages. None if there are no workers, or if the table has outgrown the shared memory.
    """

    def __init__(self, tiers: int, *, share: Share | None = None) -> None:
        self._index = page_table()
        self.occupant = self._index.find
        """Return the slot of page (object hash, number), or None. Its version and state do not matter."""
        self._free: list[int] = []
        self.other_pages = OtherPages()
        self.unread: set[int] = set()
        """Slots of pages that were prefetched on a guess and not read yet."""
        self.members = [Members() for _ in range(tiers)]
        self._next_slot = 0
        self.share = share
        columns = private_columns() if share is None else share.columns
        self._pages, self._rest = columns.pages, columns.rest
        self.tier: NDArray[np.int8] = columns.tier
        self.tier[:] = NO_TIER
        self._bind()

    def _bind(self) -> None:
        pages, rest = self._pages, self._rest
        self.object_hash: NDArray[np.uint64] = pages["object_hash"]
        self.etag: NDArray[np.uint64] = pages["etag"]
        self.number: NDArray[np.uint32] = pages["number"]
        self.location: NDArray[np.int64] = pages["location"]
        self.record_bytes: NDArray[np.int64] = pages["record_bytes"]
        self.last_use: NDArray[np.float64] = pages["last_use"]
        self.admitted: NDArray[np.float64] = pages["admitted"]
        self.uses: NDArray[np.float32] = pages["uses"]
        self.group: NDArray[np.int32] = pages["group"]
        self.body_bytes: NDArray[np.int64] = rest["body_bytes"]
        self.validated_s: NDArray[np.float64] = rest["validated_s"]
        self.unverified: NDArray[np.bool_] = rest["unverified"]
        self.pinned: NDArray[np.bool_] = rest["pinned"]
        self.generation: NDArray[np.int64] = rest["generation"]
        self._position: NDArray[np.int32] = rest["position"]
        self.stamp: NDArray[np.int64] = rest["stamp"]
        # Reading one element of a memoryview takes a third of the time of reading it from an ndarray.
        self.stamps, self.generations, self.tiers = self.stamp.data, self.generation.data, self.tier.data
        self.last_uses, self._etags = cast("memoryview[float]", self.last_use.data), self.etag.data
        self.locations, self.sizes = self.location.data, self.record_bytes.data
        self._positions = self._position.data
        self.holds = cast("memoryview[bool]", self.pinned.data)
        self._unverified = cast("memoryview[bool]", self.unverified.data)
        self._page_rows, self._rest_rows = pages.view(np.uint8).data, rest.view(np.uint8).data
        self._hashes, self._numbers = self.object_hash.data, self.number.data
        self._index.bind(self._hashes, self._numbers)

    def rows(self, slots: Slots) -> NDArray[np.void]:
        """Return a copy of the rows of ``columns.PAGE``. To copy each field by itself takes twice as long."""
        return self._pages.take(slots)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def unread_bytes(self) -> int:
        """Bytes of the records of the pages in ``unread``, estimated from some if there are many."""
        count = len(self.unread)
        some = np.fromiter(islice(self.unread, 0, None, count // 4096 + 1), np.int64)
        return int(self.record_bytes[some].sum() * (count / max(len(some), 1)))

    def find(self, object_hash: int, number: int, etag: int) -> int | None:
        """Return the slot of a page of version ``etag`` (a hash), or None if no such page can be read now."""
        slot = self._index.find(object_hash, number)
        if slot is None or self.tiers[slot] < 0 or self._etags[slot] != etag:
            return None
        return slot

    def find_page(self, page: Page) -> int | None:
        """Return the slot of ``page``, or None if it cannot be read now."""
        return self.find(object_hash(page.ref), page.number, etag_hash(page.etag))

    def first_page(self, object_hash: int) -> int | None:
        """Return the slot of page 0 of an object, of any version, or None if it cannot be read now."""
        slot = self._index.find(object_hash, 0)
        return None if slot is None or self.tiers[slot] < 0 else slot

    def pages_of(self, object_hash: int, most: int | None = None) -> list[int]:
        """Return the slots of an object's pages of any version; or only of page 0 and ``most`` others."""
        numbers = [0, *islice(self.other_pages.get(object_hash, ()), most)]
        slots = (self._index.find(object_hash, number) for number in numbers)
        return [slot for slot in slots if slot is not None]

    def holds_other(self, object_hash: int, etag: int) -> bool:
        """Return whether a page of another version than ``etag`` is readable or being written."""
        slot = self._index.find(object_hash, 0)
        if slot is not None and self._etags[slot] != etag:
            return True
        if (others := self.other_pages.get(object_hash)) is None:
            return False
        if others.etag is None:
            versions = {self._etags[slot] for slot in self.pages_of(object_hash)}
            others.etag = versions.pop() if len(versions) == 1 else None
        return others.etag != etag

    def ready(self) -> Slots:
        """Return all slots with a readable page."""
        return np.flatnonzero(self.tier[: self._next_slot] != NO_TIER)

    @property
    def slots(self) -> int:
        """Number of slots, in use or free."""
        return self._next_slot

    def in_groups(self, groups: GroupFlags, start: int, stop: int) -> Slots:
        """Return the slots from ``start`` to ``stop``, in use or free, whose latest page is or was of one of
        the prefix groups.
        """
        found = self.group[start : min(stop, self._next_slot)]
        return np.flatnonzero(groups.take(found, mode="clip")) + start

    def pinned_in(self, tier: int) -> Slots:
        """Return all slots with a pinned page of ``tier``."""
        stop = self._next_slot
        return np.flatnonzero((self._position[:stop] == _PINNED) & (self.tier[:stop] == tier))

    def add(
        self,
        object_hash: int,
        number: int,
        *,
        etag: int,
        body_bytes: int,
        record_bytes: int = 0,
        group: int,
        tick: float,
        validated_s: float = 0.0,
        pinned: bool = False,
    ) -> int:
        """Give a new page a slot, and return the slot. The page must be in no tier and have no slot yet."""
        slot = self._free.pop() if self._free else self._grow(1)
        PAGE_ROW.pack_into(
            self._page_rows, slot * PAGE.itemsize,
            object_hash, etag, number, group, _NOWHERE, record_bytes, tick, tick, 1.0,
        )  # fmt: skip
        added = self._index.add(slot)
        assert added, "page added twice"
        if number:
            self.other_pages.note(object_hash, number, etag)
        generation = self.generations[slot] + 1
        REST_HEAD.pack_into(self._rest_rows, slot * REST.itemsize, body_bytes, validated_s, generation)
        self._unverified[slot] = False
        self.holds[slot] = pinned
        return slot

    def add_many(self, pages: NewRows, tier: int) -> Slots:
        """Give slots to new, unpinned pages, as members of a tier. Return the slots. No page can be read yet.

        Before any other decision, call ``ready_again`` or ``abandon`` for each slot.
        """
        recycled = [self._free.pop() for _ in pages.number[: len(self._free)]]
        first = self._grow(new := len(pages.number) - len(recycled))
        slots = np.array([*recycled, *range(first, first + new)], np.int64)
        self.pinned[slots] = False
        self._position[slots] = self.members[tier].extend(slots)
        self._write_rows(slots, pages)
        return slots

    def take_over(self, slots: Slots, pages: NewRows) -> None:
        """Give the slots of unpinned pages of a tier to new pages, which have no slot yet.

        The old pages are gone, and the new pages cannot be read yet. The slots stay members of the tier.
        Before any other decision, call ``ready_again`` or ``abandon`` for each slot.
        """
        self._leave_index(*slots.tolist())
        self.stamp[slots] += 1
        self.tier[slots] = NO_TIER
        self._write_rows(slots, pages)

    def _write_rows(self, slots: Slots, pages: NewRows) -> None:
        """Write new pages into slots, and into the hash table."""
        self.object_hash[slots], self.number[slots] = pages.object_hash, pages.number
        self.etag[slots] = pages.etag
        self.group[slots], self.record_bytes[slots] = pages.group, pages.record_bytes
        self.last_use[slots] = self.admitted[slots] = pages.tick
        self.uses[slots] = 1.0
        self.body_bytes[slots], self.validated_s[slots] = pages.body_bytes, pages.validated_s
        self.generation[slots] += 1
        self.unverified[slots] = False
        added = self._index.add(*slots.tolist())
        assert added == len(slots), "page added twice"
        for at in pages.number.nonzero()[0].tolist():
            hashed, number, etag = pages.object_hash[at], pages.number[at], pages.etag[at]
            self.other_pages.note(int(hashed), int(number), int(etag))

    def ready_again(self, slots: Slots, tier: int, locations: NDArray[np.int64]) -> None:
        """Make pages readable in the tier, after ``add_many`` or ``take_over``."""
        # Set the location first: setting the tier makes the page readable (columns.py).
        self.location[slots] = locations
        self.stamp[slots] += 1
        self.tier[slots] = tier
        if self.share is not None:
            for slot in slots.tolist():
                self._show(slot)

    def join(self, slots: Sequence[int], tier: int) -> None:
        """Make slots from ``add`` members of a tier. Their pages cannot be read yet."""
        for slot in slots:
            self._positions[slot] = self.members[tier].append(slot)

    def abandon(self, slot: int, tier: int) -> None:
        """Take a slot out of its tier's members, because its page cannot be read. Call ``remove`` next."""
        moved = self.members[tier].swap_remove(position := self._positions[slot])
        if moved >= 0:
            self._positions[moved] = position

    def take_in(
        self, rows: Rows, groups: NDArray[np.int32], tier: int, tick: float, pinned: NDArray[np.bool_]
    ) -> tuple[Slots, Slots]:
        """Add recovered, unverified pages of ``tier``. Return their slots, and the indices of rows left out
        because their page has a slot already. ``groups``: prefix groups, i32[n]. ``pinned``: bool[n].
        """
        first = self._grow(len(rows))
        slots = np.arange(first, first + len(rows))
        self.object_hash[slots] = rows["object_hash"]
        self.number[slots] = rows["number"]
        self.generation[slots] += 1
        entered = np.fromiter((self._index.add(slot) for slot in slots.tolist()), np.bool_, len(rows))
        self._free.extend(slots[~entered].tolist())
        slots, mine = slots[entered], rows[entered]
        for hashed, number, etag in mine[["object_hash", "number", "etag"]][mine["number"] > 0].tolist():
            self.other_pages.note(hashed, number, etag)
        for name in ("etag", "location", "body_bytes", "uses", "validated_s"):
            getattr(self, name)[slots] = mine[name]
        self.record_bytes[slots] = record_bytes(mine["location"])
        self.last_use[slots] = tick - mine["idle"]
        self.admitted[slots] = tick - mine["age"]
        self.group[slots] = groups[entered]
        self.unverified[slots] = True
        held = pinned[entered]
        self.pinned[slots] = held
        self._position[slots[~held]] = self.members[tier].extend(slots[~held])
        self._position[slots[held]] = _PINNED
        self.members[tier].pinned += int(held.sum())
        self.members[tier].pinned_bytes += int(self.record_bytes[slots[held]].sum())
        self.tier[slots] = tier
        return slots, np.flatnonzero(~entered)

    def place(self, slot: int, tier: int, location: Location, record_bytes: int) -> None:
        """Make a page readable: it lies at ``location`` of ``tier`` now."""
        assert self.tiers[slot] == NO_TIER, "placed twice"
        # Set the location first: setting the tier makes the page readable (columns.py).
        self.locations[slot] = location
        self.sizes[slot] = record_bytes
        self.stamps[slot] += 1
        self.tiers[slot] = tier
        self._show(slot)
        self._enter(slot)

    def _enter(self, slot: int) -> None:
        """Add a slot to the members or to the pinned pages of its tier."""
        members = self.members[self.tiers[slot]]
        if self.holds[slot]:
            self._positions[slot] = _PINNED
            members.pinned += 1
            members.pinned_bytes += self.sizes[slot]
        else:
            self._positions[slot] = members.append(slot)

    def _depart(self, slot: int) -> None:
        members, position = self.members[self.tiers[slot]], self._positions[slot]
        if position == _PINNED:
            members.pinned -= 1
            members.pinned_bytes -= self.sizes[slot]
        else:
            moved = members.swap_remove(position)
            if moved >= 0:
                self._positions[moved] = position

    def pin(self, slot: int, *, pinned: bool) -> None:
        """Pin or unpin a page that is in a tier."""
        self._depart(slot)
        self.pinned[slot] = pinned
        self._enter(slot)

    def prove(self, slot: int, header: RecordHeader) -> None:
        """Raise TierError if the record at the slot's location is not the slot's page. This can happen after
        recovery, because the location came from a catalogue, which may be wrong.
        """
        page = header.page
        if (
            self.object_hash[slot] != object_hash(page.ref)
            or self._etags[slot] != etag_hash(page.etag)
            or self.number[slot] != page.number
            or self.body_bytes[slot] != header.body_bytes
        ):
            raise TierError("another record lies where the page was said to be")

    def displace(self, slot: int) -> tuple[int, Location]:
        """Take a page out of its tier, but keep its slot. Return the tier and the location that it had."""
        tier, location = self.tiers[slot], Location(self.locations[slot])
        self._depart(slot)
        self.tiers[slot] = NO_TIER
        self.stamps[slot] += 1
        if self.share is not None:
            self.share.hide(slot, int(self.object_hash[slot]), int(self.number[slot]))
        return tier, location

    def trust(self, slot: int) -> None:
        """Mark the body of a page as verified: its hash was checked."""
        self.unverified[slot] = False
        self._show(slot)

    def mark_stale(self, slots: Slots | slice) -> None:
        """Mark pages stale, so that the origin is asked before they are served again."""
        self.validated_s[slots] = 0.0
        self.stamp[slots] += 1

    def use(self, slot: int, tick: float) -> None:
        """Note one demand read of a page, the newest of the cache. ``tick``: the number of this read."""
        self.last_use[slot] = tick
        self.uses[slot] += 1

    def use_many(self, slots: Slots, ticks: NDArray[np.float64]) -> None:
        """Note demand reads, the oldest first. A slot may occur several times."""
        # For a slot that occurs several times, numpy keeps the last assignment, which is the latest tick.
        self.last_use[slots] = ticks
        np.add.at(self.uses, slots, 1)

    def remove(self, slot: int) -> None:
        """Free the slot of a page that is in no tier. If the page is in one, call ``displace`` before."""
        assert self.tiers[slot] == NO_TIER, "displace before remove"
        self._leave_index(slot)
        self._free.append(slot)

    def _leave_index(self, *slots: int) -> None:
        self._index.remove(*slots)
        for slot in slots:
            number, object_hash = self._numbers[slot], self._hashes[slot]
            if self.share is not None:
                self.share.hide(slot, object_hash, number)
            if number:
                self.other_pages.drop(object_hash, number)

    def _show(self, slot: int) -> None:
        if self.share is not None and not self.unverified[slot]:
            self.share.show(slot, int(self.object_hash[slot]), int(self.number[slot]))

    def _grow(self, count: int) -> int:
        """Make ``count`` new slots with consecutive numbers. Return the first."""
        first = self._next_slot
        while first + count > len(self._pages):
            for name in ("_pages", "_rest"):
                table = getattr(self, name)
                longer = np.zeros(2 * len(table), table.dtype)
                longer[:first] = table[:first]
                setattr(self, name, longer)
            self.tier = np.concatenate([self.tier, np.full_like(self.tier, NO_TIER)])
            self._bind()
            if self.share is not None:
                self.share.retire()
                self.share = None
        self._next_slot += count
        return first
