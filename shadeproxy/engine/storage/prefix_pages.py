"""Finds and drops the cached pages of the objects under a prefix."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from shadeproxy.core.types import OWN, ObjectRef
from shadeproxy.engine.index.columns import NO_TIER
from shadeproxy.engine.index.prefix_groups import PrefixGroups
from shadeproxy.engine.index.residents import Residents, Slots
from shadeproxy.engine.storage.erasing import Erasing
from shadeproxy.engine.storage.object_names import (
    NOTHING_NAMED,
    NamedObjects,
    ObjectNames,
    PageColumns,
    are_among,
)
from shadeproxy.engine.storage.recovery import Recovery
from shadeproxy.engine.storage.transfers import Transfers

# Pages dropped before their erasures are waited for: an erasure that waits for a disk takes 3 KB of memory.
_ERASED_TOGETHER = 1024
_SLICE = 32  # Pages dropped before other tasks may run: each takes up to 100 us.


class FoundPages(NamedTuple):
    """The readable pages under a prefix, and the objects of the same groups whose keys were read for that."""

    slots: Slots
    named: NamedObjects


class PrefixPages:
    """Finds and drops pages of ``residents``, after ``recovery`` has ended."""

    def __init__(
        self,
        residents: Residents,
        groups: PrefixGroups,
        names: ObjectNames,
        *,
        transfers: Transfers,
        recovery: Recovery,
        erasing: Erasing,
    ) -> None:
        self._residents = residents
        self._groups = groups
        self._names = names
        self._transfers = transfers
        self._recovery = recovery
        self._erasing = erasing

    async def find(self, bucket: str, prefix: str, namespace: str = OWN) -> FoundPages:
        """Return the readable pages of ``bucket`` under ``prefix``."""
        pages = (await self._scan(bucket, prefix, namespace)).readable
        named = NOTHING_NAMED
        if prefix:
            named = await self._ask(pages, ObjectRef(bucket, prefix, namespace))
            under = named.wanted
            pages = await asyncio.to_thread(lambda: pages.where(are_among(pages.hashes, under)))
        return FoundPages(await self._names.still_there(pages), named)

    async def drop(
        self,
        bucket: str,
        prefix: str,
        namespace: str,
        before_each: Callable[[Slots], bool],
        named: NamedObjects = NOTHING_NAMED,
    ) -> None:
        """Remove the pages that objects of ``bucket`` under ``prefix`` have now, in slices.

        Pages that are stored meanwhile stay; otherwise this call might never end under constant reads. It
        makes no tombstones, because each object would need one: call ``Erasing.keep_purged`` afterwards.
        ``before_each`` gets each slice before it is dropped; when it returns False, this call ends.
        ``named``: the result of ``find``, so that no key is read twice.
        """
        table, pages = self._residents, await self._scan(bucket, prefix, namespace)
        if prefix:
            pages = await self._without_others(pages, named, ObjectRef(bucket, prefix, namespace))
        for start in range(0, len(pages.slots), _SLICE):
            if not start % _ERASED_TOGETHER:
                await self._erasing.over()
            slots, before = pages.slots[start : start + _SLICE], pages.generations[start : start + _SLICE]
            slots = slots[table.generation[slots] == before]  # Leave out slots that have another page now.
            for slot in self._transfers.unplaced_among(slots):
                self._transfers.drop_unplaced(slot)
            leaving = slots[table.tier[slots] != NO_TIER]
            if not before_each(leaving):
                return
            for slot in leaving.tolist():
                self._transfers.drop(slot, "purged")
            await asyncio.sleep(0)

    async def _without_others(self, pages: PageColumns, named: NamedObjects, place: ObjectRef) -> PageColumns:
        """Return the pages without those whose keys are not under the prefix.

        Pages stay whose keys cannot be read: of damaged records, and of pages between tiers. To drop a few
        of them that are not under the prefix does no harm.
        """

        def unknown() -> PageColumns:
            known = are_among(pages.hashes, named.wanted) | are_among(pages.hashes, named.others)
            return pages.where(~known).readable

        more = await self._ask(await asyncio.to_thread(unknown), place)

        def left() -> PageColumns:
            others = are_among(pages.hashes, named.others) | are_among(pages.hashes, more.others)
            return pages.where(~others)

        return await asyncio.to_thread(left)

    async def _ask(self, pages: PageColumns, place: ObjectRef) -> NamedObjects:
        bucket, prefix, namespace = place
        return await self._names.ask(pages, lambda ref, _: ref.is_under(bucket, prefix, namespace))

    async def _scan(self, bucket: str, prefix: str, namespace: str) -> PageColumns:
        await self._recovery.over()
        return await self._names.scan(self._groups.candidates(bucket, prefix, namespace))
