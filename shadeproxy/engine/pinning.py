"""What is pinned, carried over to what is resident: after a start, a reload, and each pin or unpin.

Laws: nothing is read or evicted here; a page that is neither in a tier nor on its way into one is judged when
it comes (transfers.py). Most prefix groups are pinned as a whole or not at all; only of the others are the
keys asked, of record headers, on a thread. Steps on the event loop take about 2 ms.
"""

import asyncio

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.identity import GroupName
from shadeproxy.engine.columns import NO_TIER
from shadeproxy.engine.groups import PrefixGroups
from shadeproxy.engine.pins import Pins
from shadeproxy.engine.placement import Placement
from shadeproxy.engine.places import ASKED, Places
from shadeproxy.engine.residents import Residents, Slots
from shadeproxy.tiers.location import record_bytes
from shadeproxy.tiers.rows import Rows

_SLICE = 512
_NONE, _ALL, _SOME = 0, 1, 2


class Pinning:
    """Makes ``residents`` say what ``pins`` says."""

    def __init__(
        self,
        pins: Pins,
        residents: Residents,
        groups: PrefixGroups,
        *,
        placement: Placement,
        places: Places,
    ) -> None:
        self._pins = pins
        self._residents = residents
        self._groups = groups
        self._placement = placement
        self._places = places

    def of_rows(self, index: int, rows: Rows, names: list[GroupName]) -> NDArray[np.bool_]:
        """Which pages that an earlier process left in tier ``index`` to hold: bool[n].

        Where that depends on the key they are held until ``renew`` has asked for it.
        """
        if not self._pins.any:
            return np.zeros(len(rows), dtype=np.bool_)
        held = self._verdicts(names)[rows["group"]] != _NONE
        sizes = record_bytes(rows["location"]) * held
        fits: NDArray[np.bool_] = held & (np.cumsum(sizes) <= self._placement.pin_room_bytes(index))
        return fits

    async def renew(self) -> None:
        """Pin and unpin what is resident as ``pins`` says now, to the end of what changes meanwhile."""
        while not await self._renew(self._pins.version):
            pass

    async def _renew(self, version: int) -> bool:
        table = self._residents
        if not self._pins.any and not any(members.pinned for members in table.members):
            return True
        ready = table.ready()
        verdicts = self._verdicts(self._groups.names)[table.group[ready]]
        pinned = table.pinned[ready]
        # Room is made before it is taken.
        if not await self._set(ready[(verdicts == _NONE) & pinned], version, pinned=False):
            return False
        return await self._ask(ready[verdicts == _SOME], version) and await self._set(
            ready[(verdicts == _ALL) & ~pinned], version, pinned=True
        )

    async def _ask(self, slots: Slots, version: int) -> bool:
        """Judge pages by their keys."""
        for start in range(0, len(slots), ASKED):
            if not await self._ask_some(slots[start : start + ASKED], version):
                return False
        return True

    async def _ask_some(self, slots: Slots, version: int) -> bool:
        """Again where a page moved to another tier meanwhile."""
        table = self._residents
        generations = dict(zip(slots.tolist(), table.generation[slots].tolist(), strict=True))
        while generations:
            before = {slot: self._places.of(slot) for slot in generations}
            refs = await self._places.refs(generations)
            for pinned in (False, True):
                judged = [slot for slot, ref in refs.items() if self._pins.covers(ref) is pinned]
                if not await self._set(np.array(judged, dtype=np.int64), version, pinned=pinned):
                    return False
            generations = {
                slot: generation
                for slot, generation in generations.items()
                if table.tier[slot] != NO_TIER
                and table.generation[slot] == generation
                and self._places.of(slot) != before[slot]
            }
        return True

    async def _set(self, slots: Slots, version: int, *, pinned: bool) -> bool:
        """Hold pages or hold them no more; False when something else is pinned by now."""
        table = self._residents
        generations = table.generation[slots]
        for start in range(0, len(slots), _SLICE):
            if start:
                await asyncio.sleep(0)
            if self._pins.version != version:
                return False
            stop = start + _SLICE
            pairs = zip(slots[start:stop].tolist(), generations[start:stop].tolist(), strict=True)
            for slot, generation in pairs:
                if table.tier[slot] == NO_TIER or table.generation[slot] != generation:
                    continue
                if pinned and not table.pinned[slot]:
                    self._placement.pin(slot)
                elif not pinned and table.pinned[slot]:
                    table.pin(slot, pinned=False)
        return True

    def _verdicts(self, names: list[GroupName]) -> NDArray[np.int8]:
        """Of each group whether none of its pages, all or some of them are to be held."""
        words = {False: _NONE, True: _ALL, None: _SOME}
        return np.array([words[self._pins.covers_group(*name)] for name in names], dtype=np.int8)
