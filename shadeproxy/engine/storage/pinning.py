"""Applies pins to resident pages: after a start, after a reload, and at each pin or unpin.

Laws: no body is read and no page is evicted here. In most prefix groups, all pages are pinned or none is. For
a page of any other group, a thread reads the key from the record's header. A page on its way into a tier is
pinned or not when its write ends (transfers.py). Each step on the event loop takes about 2 ms.
"""

import asyncio
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.identity import GroupName
from shadeproxy.engine.index.columns import NO_TIER
from shadeproxy.engine.index.prefix_groups import PrefixGroups
from shadeproxy.engine.index.residents import Residents, Slots
from shadeproxy.engine.placement.pins import Pins
from shadeproxy.engine.placement.placement import Placement
from shadeproxy.engine.storage.object_names import ObjectNames, are_among
from shadeproxy.tiers.location import record_bytes
from shadeproxy.tiers.rows import Rows

_SLICE = 128
_GROUPS = 64  # Groups judged in one step. With the largest number of pins, each group takes 20 us.
_NONE, _ALL, _SOME = 0, 1, 2


class Pinning:
    """Pins and unpins pages of ``residents``, as ``pins`` says."""

    def __init__(
        self,
        pins: Pins,
        residents: Residents,
        groups: PrefixGroups,
        *,
        placement: Placement,
        names: ObjectNames,
    ) -> None:
        self._pins = pins
        self._residents = residents
        self._groups = groups
        self._placement = placement
        self._names = names
        self._judged: dict[GroupName, int] = {}
        self._judged_version = -1

    def of_rows(self, index: int, rows: Rows, names: list[GroupName]) -> NDArray[np.bool_]:
        """Return which recovered pages of tier ``index`` to pin, within the maximum for pinned pages:
        bool[n].

        If only the key of a page can decide, the page is pinned until ``renew`` has read the key.
        """
        if not self._pins.any:
            return np.zeros(len(rows), dtype=np.bool_)
        held = self._verdicts(names)[rows["group"]] != _NONE
        sizes = record_bytes(rows["location"]) * held
        fits: NDArray[np.bool_] = held & (np.cumsum(sizes) <= self._placement.pin_room_bytes(index))
        return fits

    async def renew(self) -> None:
        """Pin and unpin resident pages, as ``pins`` says. Start again if the pins change meanwhile."""
        while not await self._renew(self._pins.version):
            pass

    async def _renew(self, version: int) -> bool:
        table = self._residents
        if not self._pins.any and not any(members.pinned for members in table.members):
            return True
        names = list(self._groups.names)
        for start in range(0, len(names), _GROUPS):
            self._verdicts(names[start : start + _GROUPS])
            await asyncio.sleep(0)
        ready = table.ready()
        # Copy the generations now, because a slot may get another page while keys are read.
        generations = table.generation[ready]
        verdicts = self._verdicts(self._groups.names)[table.group[ready]]
        if (share := self._pins.share) is not None:
            held = np.flatnonzero(verdicts != _NONE)
            owned = await asyncio.to_thread(lambda: share.owns(table.object_hash[ready[held]]))
            verdicts[held[~owned]] = _NONE
        pinned = table.pinned[ready]
        # Unpin first, so that new pins can use the room that becomes free.
        free, hold = (verdicts == _NONE) & pinned, (verdicts == _ALL) & ~pinned
        if not await self._set(ready[free], generations[free], version, pinned=False):
            return False
        some = verdicts == _SOME
        return await self._ask(ready[some], generations[some], version) and await self._set(
            ready[hold], generations[hold], version, pinned=True
        )

    async def _ask(self, slots: Slots, generations: NDArray[np.int64], version: int) -> bool:
        """Pin or unpin pages by their keys. Return False if the pins have changed meanwhile."""
        pages = await self._names.gather(slots)
        # Pages of objects that another proxy caches are not among these pages.
        pages = pages.where(pages.generations == generations)
        named = await self._names.ask(pages, lambda ref, _: self._pins.names(ref))
        for pinned, hashes in ((False, named.others), (True, named.wanted)):
            judged = pages.where(await asyncio.to_thread(are_among, pages.hashes, hashes))
            if not await self._set(judged.slots, judged.generations, version, pinned=pinned):
                return False
        return True

    async def _set(
        self, slots: Slots, generations: NDArray[np.integer[Any]], version: int, *, pinned: bool
    ) -> bool:
        """Pin or unpin pages. Leave out slots whose generation is not the one in ``generations`` any more.
        Return False if the pins have changed meanwhile.
        """
        table = self._residents
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
        """Return how many pages of each group are pinned, as int8[n] of _ALL, _NONE or _SOME."""
        if self._judged_version != self._pins.version:
            self._judged, self._judged_version = {}, self._pins.version
        words, judged = {False: _NONE, True: _ALL, None: _SOME}, self._judged
        for name in names:
            if name not in judged:
                judged[name] = words[self._pins.covers_group(*name)]
        return np.array([judged[name] for name in names], dtype=np.int8)
