"""``Purge``: drops all that is cached under a prefix, because a control call asked for this.

Laws: a purge ends without an error only if all pages that it has counted are gone, and stay gone after a
crash. A purge that is cancelled stops between two slices of pages. The pages dropped until then stay gone
too.
"""

import asyncio

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import WriteRefused
from shadeproxy.core.types import ObjectRef
from shadeproxy.core.work_progress import WorkProgress
from shadeproxy.engine.freshness.versions import Versions
from shadeproxy.engine.index.residents import Slots
from shadeproxy.engine.read.single_flight import SingleFlight
from shadeproxy.engine.storage.object_names import NOTHING_NAMED
from shadeproxy.engine.storage.page_cache import PageCache


class Purge:
    """Purges the pages of all objects whose keys begin with the key of ``place``. Call ``run`` once. A purge
    may be cancelled. A dry run only counts the pages.
    """

    def __init__(
        self,
        cache: PageCache,
        flights: SingleFlight,
        versions: Versions,
        place: ObjectRef,
        *,
        dry_run: bool,
    ) -> None:
        self.kind = "purge"
        self.uri = f"s3://{place.bucket}/{place.key}"
        self.dry_run = dry_run
        self.progress = WorkProgress()
        self._cache = cache
        self._flights = flights
        self._versions = versions
        self._place = place
        self._stopped = False
        self._cut_short = False
        self._named = NOTHING_NAMED
        # The hashes of the counted objects, sorted, and for each object how many of its pages are left.
        self._hashes: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._left: NDArray[np.int64] = np.empty(0, np.int64)

    async def run(self) -> None:
        """Purge the prefix.

        Raises WriteRefused if a medium can neither erase the pages nor record that they must be erased. The
        pages could then come back after a restart.
        """
        pages = await self._count()
        if self.dry_run:
            self._finish(pages)
            return
        dropping = asyncio.create_task(self._drop(pages), name=f"drop {self.uri}")
        try:
            await asyncio.shield(dropping)
        except asyncio.CancelledError:
            # Finish the present slice, so that the erasures of its pages still reach the medium.
            self._stopped = True
            await dropping
            if self._cut_short:
                raise

    async def _count(self) -> int:
        bucket, prefix, namespace = self._place
        found, self._named = await self._cache.find_under(bucket, prefix, namespace)
        table, progress = self._cache.residents, self.progress
        hashes, progress.total_bytes = table.object_hash[found], int(table.body_bytes[found].sum())
        self._hashes, self._left = await asyncio.to_thread(np.unique, hashes, return_counts=True)
        progress.total, progress.listed = len(self._hashes), True
        return len(found)

    async def _drop(self, pages: int) -> None:
        bucket, prefix, namespace = place = self._place
        # Invalidate the flights first. Otherwise their pages would be stored after the purge.
        self._flights.invalidate(lambda ref: ref.is_under(*place))
        await self._versions.forget_prefix(bucket, prefix, namespace)
        await self._cache.drop_under(bucket, prefix, namespace, self._note, self._named)
        await self._cache.erasing.keep_purged()
        if refused := self._cache.erasing.any_unmarked():
            raise WriteRefused(refused)
        if not self._cut_short:
            self._finish(pages)

    def _note(self, slots: Slots) -> bool:
        """Count the pages of a slice as dropped. Return False if the purge is cancelled and the slice must
        stay.
        """
        if self._stopped:
            self._cut_short = True
            return False
        table, progress = self._cache.residents, self.progress
        hashes, places = table.object_hash[slots], np.empty(0, np.int64)
        if len(self._hashes):
            places = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
            counted = self._hashes[places] == hashes  # The others were stored after the count.
            slots, places = slots[counted], places[counted]
        touched, dropped = np.unique(places, return_counts=True)
        before = self._left[touched]
        self._left[touched] = before - dropped
        progress.done += int(((before > 0) & (before <= dropped)).sum())
        progress.pages += len(places)
        progress.bytes += int(table.body_bytes[slots].sum()) if len(places) else 0
        return True

    def _finish(self, pages: int) -> None:
        """Report all counted pages as dropped. Counted pages that were not dropped here were evicted since
        the count.
        """
        progress = self.progress
        progress.done, progress.pages, progress.bytes = progress.total, pages, progress.total_bytes
