"""Lists, for people, the objects with cached pages below a prefix: in key order, a part at a time.

Laws: a listing counts no read and evicts nothing. Keys come from record headers, which a thread reads. The
keys that a call has read are kept for a minute, so that the call that continues it reads only those of new
objects. Each step on the event loop takes about 2 ms. If a page enters or leaves the cache meanwhile, its
object may or may not be listed.
"""

import asyncio
from collections.abc import Sequence

from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import OWN, ObjectRef
from shadeproxy.engine.index.prefix_groups import PrefixGroups
from shadeproxy.engine.index.residents import NO_TIER, Residents, etag_hash
from shadeproxy.engine.storage.listed_keys import ListedKeys, octets_of
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.engine.storage.object_names import Hashes, ObjectNames, PageColumns, are_among, distinct
from shadeproxy.engine.storage.recovery import Recovery

_KEPT_S = 60.0
_MOST_KEPT = 2  # Listings whose keys are kept.


class Listing:
    """Lists the pages of ``residents``, after ``recovery`` has ended."""

    def __init__(
        self,
        residents: Residents,
        groups: PrefixGroups,
        recovery: Recovery,
        media: Sequence[Medium],
        *,
        names: ObjectNames,
    ) -> None:
        self._residents = residents
        self._groups = groups
        self._recovery = recovery
        self._media = media
        self._names = names
        self._kept: dict[ObjectRef, ListedKeys] = {}

    async def under(
        self, bucket: str, prefix: str, namespace: str = OWN, *, start_after: str, limit: int
    ) -> tuple[list[ObjectRef], int]:
        """Return the first ``limit`` objects under ``prefix`` whose keys come after ``start_after``, in UTF-8
        key order. Return also how many objects follow them.
        """
        await self._recovery.over()
        place, after = ObjectRef(bucket, prefix, namespace), octets_of(start_after)
        # Take the keys away, so that no other call uses them at the same time.
        keys = self._kept.pop(place, None)
        if keys is None or not keys.reaches(after):
            keys = ListedKeys(place, after)
        pages = (await self._names.scan(self._groups.candidates(bucket, prefix, namespace))).readable
        resident = await asyncio.to_thread(distinct, pages.hashes)
        await self._read(keys, pages, resident)
        part = await asyncio.to_thread(keys.part, resident, after, limit)
        if part is None:
            await asyncio.to_thread(keys.begin_at, after, resident)
            await self._read(keys, pages, resident)
            part = await asyncio.to_thread(keys.part, resident, after, limit)
            assert part is not None, "fewer keys were kept than one call lists"
        self._keep(place, keys)
        return part

    async def _read(self, keys: ListedKeys, pages: PageColumns, resident: Hashes) -> None:
        """Read the keys that ``keys`` does not know. ``resident``: all objects of ``pages``."""

        def unknown() -> PageColumns:
            asked = resident[~keys.is_known(resident)]
            return pages if len(asked) == len(resident) else pages.where(are_among(pages.hashes, asked))

        named = await self._names.ask(await asyncio.to_thread(unknown), keys.wants)
        await asyncio.to_thread(keys.add_passed, named.others)

    def _keep(self, place: ObjectRef, keys: ListedKeys) -> None:
        if len(self._kept) >= _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[place] = keys
        asyncio.get_running_loop().call_later(_KEPT_S, self._forget, place, keys, keys.calls)

    def _forget(self, place: ObjectRef, keys: ListedKeys, calls: int) -> None:
        """Forget keys that no call has used since."""
        if self._kept.get(place) is keys and keys.calls == calls:
            del self._kept[place]

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
