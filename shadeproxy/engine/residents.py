"""The table of resident pages: one slot a page, facts in numpy columns, found by a 64-bit hash.

Laws: no I/O; plain defs; a slot belongs to one page from ``add`` to ``remove``. Columns instead of
objects keep a page under 300 bytes of process memory and let a policy rank 1,024 of 1 M pages at once.
Keys and metadata are not here: the record header in the tier is the truth.
"""

from collections import OrderedDict
from collections.abc import Iterator

import numpy as np
import xxhash
from numpy.typing import NDArray

from shadeproxy.tiers.base import Location

Slots = NDArray[np.int64]
NO_TIER = -1
_MASK = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: spreads page numbers over the hash space
_FIRST_CAPACITY = 1024


def etag_hash(etag: str) -> int:
    """64-bit hash under which a slot remembers its version."""
    return xxhash.xxh3_64_intdigest(etag.encode())


def page_hash(object_hash: int, number: int) -> int:
    """Index key of page ``number``; page 0 has the object's own hash."""
    return (object_hash + number * _ODD) & _MASK


class Members:
    """The slots of one tier in a dense array (for uniform sampling), staged ones apart by recency."""

    def __init__(self) -> None:
        self._slots = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self.count = 0
        self.staged: OrderedDict[int, int] = OrderedDict()  # slot -> record bytes, oldest first
        self.staged_bytes = 0

    @property
    def slots(self) -> Slots:
        """View of the unstaged members, in no order."""
        return self._slots[: self.count]

    def append(self, slot: int) -> int:
        if self.count == len(self._slots):
            self._slots = np.concatenate([self._slots, np.zeros_like(self._slots)])
        self._slots[self.count] = slot
        self.count += 1
        return self.count - 1

    def swap_remove(self, position: int) -> int:
        """Remove at ``position``; the slot that moved there, or -1."""
        self.count -= 1
        if position == self.count:
            return -1
        moved = int(self._slots[self.count])
        self._slots[position] = moved
        return moved


class Residents:
    """Every page that is in a tier or being written to one."""

    def __init__(self, tiers: int) -> None:
        self._index: dict[int, int] = {}
        self._free: list[int] = []
        self._other_pages: dict[int, set[int]] = {}  # object hash -> page numbers beyond 0
        self.members = [Members() for _ in range(tiers)]
        size = _FIRST_CAPACITY
        self.object_hash = np.zeros(size, dtype=np.uint64)
        self.etag = np.zeros(size, dtype=np.uint64)
        self.number = np.zeros(size, dtype=np.uint32)
        self.tier = np.full(size, NO_TIER, dtype=np.int8)
        self.location = np.zeros(size, dtype=np.int64)
        self.record_bytes = np.zeros(size, dtype=np.int64)
        self.body_bytes = np.zeros(size, dtype=np.int64)
        self.last_use = np.zeros(size, dtype=np.float64)
        self.admitted = np.zeros(size, dtype=np.float64)
        self.uses = np.zeros(size, dtype=np.float64)
        self.group = np.zeros(size, dtype=np.int32)
        self.validated_s = np.zeros(size, dtype=np.float64)
        self.unverified = np.zeros(size, dtype=np.bool_)  # body hash not checked since recovery
        self.generation = np.zeros(size, dtype=np.int64)  # of the slot: one more for every page it holds
        # Of the slot: another number whenever its page comes, moves, leaves or loses trust. Read through
        # ``stamps``, where one lookup costs a third of numpy's.
        self.stamp = np.zeros(size, dtype=np.int64)
        self.stamps = self.stamp.data
        self._position = np.zeros(size, dtype=np.int64)
        self._next_slot = 0

    def __len__(self) -> int:
        return len(self._index)

    def find(self, object_hash: int, number: int, etag: int) -> int | None:
        """The slot of a page of that version that is ready to be read."""
        slot = self._index.get(page_hash(object_hash, number))
        if slot is None or self.tier[slot] == NO_TIER or self.etag[slot] != etag:
            return None
        return slot if self.object_hash[slot] == object_hash else None

    def first_page(self, object_hash: int) -> int | None:
        """The slot of page 0 of whatever version is resident."""
        slot = self._index.get(object_hash)
        return None if slot is None or self.tier[slot] == NO_TIER else slot

    def occupant(self, object_hash: int, number: int) -> int | None:
        """The slot under that page's index key, ready or being written, of any version."""
        return self._index.get(page_hash(object_hash, number))

    def pages_of(self, object_hash: int) -> list[int]:
        """Slots of every page of an object, ready or being written, of any version."""
        numbers = [0, *self._other_pages.get(object_hash, ())]
        slots = (self._index.get(page_hash(object_hash, number)) for number in numbers)
        return [slot for slot in slots if slot is not None]

    def ready(self) -> Slots:
        """Every slot that holds a readable page."""
        return np.flatnonzero(self.tier[: self._next_slot] != NO_TIER)

    def in_groups(self, groups: list[int]) -> Slots:
        """Every slot, in use or free, whose latest page is of one of the prefix groups."""
        return np.flatnonzero(np.isin(self.group[: self._next_slot], groups))

    def add(
        self, object_hash: int, number: int, *, etag: int, body_bytes: int, group: int, tick: float
    ) -> int:
        """A slot for a page that is in no tier yet. The index key must be unoccupied."""
        slot = self._free.pop() if self._free else self._grow()
        key = page_hash(object_hash, number)
        assert key not in self._index, "page added twice"
        self._index[key] = slot
        if number:
            self._other_pages.setdefault(object_hash, set()).add(number)
        self.generation[slot] += 1
        self.object_hash[slot] = object_hash
        self.etag[slot] = etag
        self.number[slot] = number
        self.tier[slot] = NO_TIER
        self.body_bytes[slot] = body_bytes
        self.record_bytes[slot] = 0
        self.last_use[slot] = tick
        self.admitted[slot] = tick
        self.uses[slot] = 1.0
        self.group[slot] = group
        self.validated_s[slot] = 0.0
        self.unverified[slot] = False
        return slot

    def place(
        self, slot: int, tier: int, location: Location, record_bytes: int, *, staged: bool = False
    ) -> None:
        """The page can be read from ``location`` of ``tier`` from now on."""
        assert self.tier[slot] == NO_TIER, "placed twice"
        self.tier[slot] = tier
        self.stamp[slot] += 1
        self.location[slot] = location
        self.record_bytes[slot] = record_bytes
        members = self.members[tier]
        if staged:
            self._position[slot] = -1
            members.staged[slot] = record_bytes
            members.staged_bytes += record_bytes
        else:
            self._position[slot] = members.append(slot)

    def displace(self, slot: int) -> tuple[int, Location]:
        """Take a page out of its tier, keeping its slot; where it was."""
        tier, location = int(self.tier[slot]), Location(int(self.location[slot]))
        members = self.members[tier]
        if self.is_staged(slot):
            members.staged_bytes -= members.staged.pop(slot)
        else:
            moved = members.swap_remove(int(self._position[slot]))
            if moved >= 0:
                self._position[moved] = self._position[slot]
        self.tier[slot] = NO_TIER
        self.stamp[slot] += 1
        return tier, location

    def distrust(self, slots: Slots) -> None:
        """What these slots hold must be checked against the origin before it is served again."""
        self.validated_s[slots] = 0.0
        self.stamp[slots] += 1

    def use_many(self, slots: Slots, ticks: NDArray[np.float64]) -> NDArray[np.float64]:
        """Demand reads, oldest first, of slots that may repeat; their reuse distances in ticks."""
        order = np.argsort(slots, kind="stable")
        sorted_slots, sorted_ticks = slots[order], ticks[order]
        before = self.last_use[sorted_slots]
        again = np.flatnonzero(sorted_slots[1:] == sorted_slots[:-1]) + 1
        before[again] = sorted_ticks[again - 1]
        distances = np.empty(len(slots))
        distances[order] = sorted_ticks - before
        # Of equal slots the last assignment stays, which is the latest tick.
        self.last_use[sorted_slots] = sorted_ticks
        np.add.at(self.uses, slots, 1)
        for slot in self.staged_in(slots).tolist():
            self.members[int(self.tier[slot])].staged.move_to_end(slot)
        return distances

    def staged_in(self, slots: Slots) -> Slots:
        """Those of ``slots`` that are staged."""
        staged: Slots = slots[(self._position[slots] < 0) & (self.tier[slots] != NO_TIER)]
        return staged

    def is_staged(self, slot: int) -> bool:
        return bool(self.tier[slot] != NO_TIER and self._position[slot] < 0)

    def unstage(self, slot: int) -> None:
        """A staged page becomes an ordinary member of its tier."""
        members = self.members[int(self.tier[slot])]
        members.staged_bytes -= members.staged.pop(slot)
        self._position[slot] = members.append(slot)

    def remove(self, slot: int) -> None:
        """Forget a page that is in no tier (``displace`` it first)."""
        assert self.tier[slot] == NO_TIER, "displace before remove"
        object_hash, number = int(self.object_hash[slot]), int(self.number[slot])
        del self._index[page_hash(object_hash, number)]
        if number:
            others = self._other_pages[object_hash]
            others.discard(number)
            if not others:
                del self._other_pages[object_hash]
        self._free.append(slot)

    def use(self, slot: int, tick: float) -> float:
        """One demand read; the reuse distance in ticks."""
        distance = tick - float(self.last_use[slot])
        self.last_use[slot] = tick
        self.uses[slot] += 1
        if self.is_staged(slot):
            self.members[int(self.tier[slot])].staged.move_to_end(slot)
        return distance

    def __iter__(self) -> Iterator[int]:
        return iter(self._index.values())

    def _grow(self) -> int:
        if self._next_slot == len(self.tier):
            for name, column in vars(self).items():
                if isinstance(column, np.ndarray):
                    setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
            self.tier[self._next_slot :] = NO_TIER
            self.stamps = self.stamp.data
        self._next_slot += 1
        return self._next_slot - 1
