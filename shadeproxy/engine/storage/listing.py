"""Lists, for people, the objects with cached pages below a prefix: in key order, a part at a time.

Laws: a listing counts no read and evicts nothing. Keys come from record headers, which a thread reads. Each
step on the event loop takes about 2 ms. If a page enters or leaves the cache meanwhile, its object may or may
not be listed.
"""

import asyncio
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import OWN, ObjectRef
from shadeproxy.engine.index.metadata import KnownMetadata
from shadeproxy.engine.index.prefix_groups import PrefixGroups
from shadeproxy.engine.index.residents import NO_TIER, Residents, Slots, etag_hash
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.engine.storage.record_reader import ASKED, RecordReader
from shadeproxy.engine.storage.recovery import Recovery

_SLICE = 1 << 15  # Slots that are looked at in one step.


class Listing:
    """Lists the pages of ``residents``, after ``recovery`` has ended."""

    def __init__(
        self,
        residents: Residents,
        groups: PrefixGroups,
        places: RecordReader,
        recovery: Recovery,
        media: Sequence[Medium],
    ) -> None:
        self._residents = residents
        self._groups = groups
        self._places = places
        self._recovery = recovery
        self._media = media

    async def under(
        self, bucket: str, prefix: str, namespace: str = OWN, *, start_after: str, limit: int
    ) -> tuple[list[ObjectRef], int]:
        """Return the first ``limit`` objects under ``prefix`` whose keys come after ``start_after``, in UTF-8
        key order. Return also how many objects follow them.
        """
        await self._recovery.over()
        hashes, slots = await self._one_page_each(self._groups.candidates(bucket, prefix, namespace))
        first: list[tuple[bytes, ObjectRef]] = []
        found, after = 0, _octets(start_after)
        for start in range(0, len(slots), ASKED):
            stop = start + ASKED
            for ref in await self._refs(hashes[start:stop], slots[start:stop]):
                octets = _octets(ref.key)
                if ref.is_under(bucket, prefix, namespace) and octets > after:
                    first.append((octets, ref))
                    found += 1
            if len(first) > limit + ASKED:
                first = sorted(first)[:limit]
        first = sorted(first)[:limit]
        return [ref for _, ref in first], found - len(first)

    def pages_of(self, ref: ObjectRef, etag: str) -> list[tuple[int, str, int, bool]]:
        """Return the readable pages of one version, in order of their numbers. Each is a tuple of number,
        name of the tier, bytes of the body, and whether it is pinned.
        """
        table = self._residents
        return sorted(
            (
                int(table.number[slot]),
                self._media[int(table.tier[slot])].tier.name,
                int(table.body_bytes[slot]),
                bool(table.pinned[slot]),
            )
            for slot in table.pages_of(object_hash(ref))
            if table.tier[slot] != NO_TIER and table.etag[slot] == etag_hash(etag)
        )

    async def known(self, ref: ObjectRef) -> KnownMetadata | None:
        """Return the metadata of an object whose first page is not cached, from the record of another page.
        The time of validation is given as 0, because it is kept for first pages only.
        """
        for slot in self._residents.pages_of(object_hash(ref)):
            if self._residents.tier[slot] == NO_TIER:
                continue
            header = (await self._places.headers([slot], run=asyncio.to_thread)).get(slot)
            if header is not None and header.page.ref == ref:
                return KnownMetadata(header.meta, 0.0)
        return None

    async def _one_page_each(self, groups: list[int]) -> tuple[NDArray[np.uint64], Slots]:
        """Return the hashes of all objects with readable pages in these groups, and a slot of each object."""
        table = self._residents
        slots: list[Slots] = [np.zeros(0, np.int64)]
        hashes: list[NDArray[np.uint64]] = [np.zeros(0, np.uint64)]
        for start in range(0, table.slots, _SLICE):
            part = table.ready_in(groups, start, start + _SLICE)
            slots.append(part)
            hashes.append(table.object_hash[part])
            await asyncio.sleep(0)

        def pick() -> tuple[NDArray[np.uint64], Slots]:
            objects, places = np.unique(np.concatenate(hashes), return_index=True)
            return objects, np.concatenate(slots)[places]

        return await asyncio.to_thread(pick)

    async def _refs(self, hashes: NDArray[np.uint64], slots: Slots) -> list[ObjectRef]:
        """Return the objects' names. ``hashes``, ``slots``: the hash of each object, and one of its slots. If
        the page of that slot moved or left meanwhile, another page of the object is read.
        """
        refs = await self._asked(slots)
        lost = set(hashes.tolist()) - refs.keys()
        pages = [self._residents.pages_of(hashed)[:1] for hashed in lost]
        if lost:
            refs |= await self._asked(np.array([slot for some in pages for slot in some], dtype=np.int64))
        return list(refs.values())

    async def _asked(self, slots: Slots) -> dict[int, ObjectRef]:
        readable = slots[self._residents.tier[slots] != NO_TIER]
        return {object_hash(ref): ref for ref in (await self._places.refs(readable.tolist())).values()}


def _octets(key: str) -> bytes:
    """Return the bytes by which keys are ordered. A key that is not valid UTF-8 is ordered by the bytes as
    received.
    """
    return key.encode("utf-8", "surrogateescape")
