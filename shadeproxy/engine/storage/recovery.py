"""Recovery: adds the pages of an earlier process to the cache, while the proxy serves already.

Laws: an answer of the origin since the start counts more than a record. A recovered page never replaces a
resident page. If the origin was asked about an object, only pages of the version that it named are added. An
object that was written or purged through the proxy since the start is never recovered. Tombstones in the tier
ensure this even after kill -9. Segments are read on a thread. Each step on the event loop takes about 2 ms.
"""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
import structlog
from numpy.typing import NDArray

from shadeproxy.core.identity import GroupName
from shadeproxy.engine.index.prefix_groups import PrefixGroups
from shadeproxy.engine.index.residents import Residents, Slots
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.telemetry.stats import Stats
from shadeproxy.tiers.base import Location
from shadeproxy.tiers.rows import ROW, Contents, Rows

_log = structlog.get_logger(__name__)


class Recovery:
    """Recovers pages of ``media`` into ``residents``. ``tick``: returns the number of demand reads so far.
    ``pinned``: returns which rows of a tier to pin, as bool[n]. ``entered``: called with the slots of
    recovered pages. ``erasing``: called when a tier's writer has got work that must be on the medium before
    the origin's object may change.
    """

    def __init__(
        self,
        media: Sequence[Medium],
        residents: Residents,
        groups: PrefixGroups,
        *,
        tick: Callable[[], float],
        pinned: Callable[[int, Rows, list[GroupName]], NDArray[np.bool_]],
        entered: Callable[[Slots], None],
        erasing: Callable[[], None],
        stats: Stats,
    ) -> None:
        self._media = media
        self._residents = residents
        self._groups = groups
        self._tick = tick
        self._pinned = pinned
        self._entered = entered
        self._erasing = erasing
        self._stats = stats
        self.coming = False
        """True while this process still recovers pages. It is an attribute, because each miss reads it, and a
        call would cost more.
        """
        self.doubted: Callable[[str, str], None] = lambda _bucket, _namespace: None
        """Called with the bucket and the namespace of an object whose pages were marked stale here."""
        self._halted = False
        self._news: dict[int, int] = {}  # By object hash: the ETag hash of the version that the origin named.
        self._stale_buckets: set[tuple[str, str]] = set()  # Bucket and namespace of each.
        self._all_stale = False
        self._mixed: set[int] = set()  # Objects of which pages of several versions were recovered.
        self._task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ life

    @property
    def pending_segments(self) -> int:
        """Number of segments that recovery has not read yet."""
        return sum(medium.tier.pending_segments for medium in self._media)

    def open(self) -> None:
        """Open the tiers (blocking). Raises ConfigError."""
        for medium in self._media:
            medium.tier.open()
        self.coming, self._halted = self.pending_segments > 0, False

    def run(self) -> None:
        """Recover all pages (blocking)."""
        for index, medium in enumerate(self._media):
            for arrival in medium.tier.arrivals():
                for contents in medium.tier.take_in(arrival):
                    self._take_in(index, contents)
                self._erasing()
            self._count_excess(index)
        self._end()

    def start(self) -> None:
        """Recover all pages in the background, those of the fastest tier first."""
        self._task = asyncio.create_task(self._work(), name="recovery")

    async def over(self) -> None:
        """Return when recovery has ended."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def stop(self) -> None:
        """Stop recovery. The next start recovers the rest."""
        self._halted = True
        for medium in self._media:
            medium.tier.halt()
        await self.over()

    async def _work(self) -> None:
        for index, medium in enumerate(self._media):
            arrivals = medium.tier.arrivals()
            while (arrival := await asyncio.to_thread(next, arrivals, None)) is not None:
                for contents in medium.tier.take_in(arrival):
                    self._take_in(index, contents)
                    await asyncio.sleep(0)
                self._erasing()
            self._count_excess(index)
        if not (self._halted and self.pending_segments):
            self._end()
            _log.info("recovered", pages=len(self._residents), unreadable_segments=self.pending_segments)

    def _end(self) -> None:
        # This process recovers no more pages. Segments that could not be read are tried again at the next
        # start.
        self.coming = False
        self._news.clear()
        self._stale_buckets.clear()
        self._all_stale = False
        self._mixed.clear()

    # ------------------------------------------------------------------ changes during recovery

    def disown(self, object_hash: int) -> None:
        """Let no page of an object be recovered, now or after a restart."""
        submitted = [medium.tier.disown(object_hash) for medium in self._media]
        if any(submitted):
            self._erasing()

    def note_version(self, object_hash: int, etag_hash: int) -> None:
        """Note the version of an object that the origin named. Recovery adds no page of another version."""
        self._news[object_hash] = etag_hash

    def mark_stale(self, bucket: str, namespace: str) -> None:
        """Mark the pages of a bucket stale that are recovered from now on."""
        if self.coming:
            self._stale_buckets.add((bucket, namespace))

    def mark_all_stale(self) -> None:
        """Mark all pages stale that are recovered from now on."""
        self._all_stale = self.coming

    # ------------------------------------------------------------------ pages

    def _take_in(self, index: int, contents: Contents) -> None:
        rows = contents.rows
        if not len(rows):
            return
        release = self._media[index].tier.release
        if self._news:
            rows, outdated = self._without_outdated(rows)
            for hashed, location in outdated[["object_hash", "location"]].tolist():
                self.disown(hashed)
                release(Location(location))
        groups = self._groups.of_names(contents.names)[rows["group"]]
        if self._all_stale:
            rows["validated_s"] = 0.0
        elif self._stale_buckets:
            stale = [
                number
                for number, (bucket, _, namespace) in enumerate(contents.names)
                if (bucket, namespace) in self._stale_buckets
            ]
            rows["validated_s"][np.isin(rows["group"], stale)] = 0.0
        pinned = self._pinned(index, rows, contents.names)
        mixed = self._of_mixed_objects(rows)
        slots, left_out = self._residents.take_in(rows, groups, index, self._tick(), pinned)
        self._entered(slots)
        fields = ["object_hash", "number", "etag", "group", "location"]
        for hashed, number, etag, group, location in rows[left_out][fields].tolist():
            if self._differs(hashed, number, etag):
                mixed[hashed] = group
            release(Location(location))
        for hashed, group in mixed.items():
            # All these pages were recovered, because ``note_version`` leaves no other page to compare. So it
            # is unknown which version is current, also if a resident page was read meanwhile.
            self._mixed.add(hashed)
            self._residents.mark_stale(np.array(self._residents.pages_of(hashed), np.int64))
            bucket, _, namespace = contents.names[group]
            self.doubted(bucket, namespace)

    def _count_excess(self, index: int) -> None:
        tier = self._media[index].tier
        if tier.dropped.excess:
            self._stats.record_eviction(tier.name, "capacity lowered", tier.dropped.excess)

    def _without_outdated(self, rows: Rows) -> tuple[Rows, Rows]:
        known = np.isin(rows["object_hash"], np.fromiter(self._news, np.uint64, len(self._news)))
        for position in np.flatnonzero(known).tolist():
            # The metadata in these records may have changed under this ETag. So drop the first page in any
            # case, and let the metadata of the other pages be checked before they answer.
            current = self._news[int(rows["object_hash"][position])] == int(rows["etag"][position])
            known[position] = not current or rows["number"][position] == 0
            rows["validated_s"][position] = 0.0
        return rows[~known], rows[known]

    def _differs(self, object_hash: int, number: int, etag: int) -> bool:
        """Return whether the resident page of a record that was left out is of another version."""
        slot = self._residents.occupant(object_hash, number)
        return slot is not None and int(self._residents.etag[slot]) != etag

    def _of_mixed_objects(self, rows: Rows) -> dict[int, int]:
        """Return the objects of which ``rows`` has another version than a resident page, or several versions,
        with the group of each. Objects of one page are left out: ``_differs`` compares them.
        """
        others = self._residents.other_pages
        mixed, versions = dict[int, int](), dict[int, int]()
        if not others and not rows["number"].any():
            return mixed
        for hashed, etag, group in rows[["object_hash", "etag", "group"]].tolist():
            if (known := versions.get(hashed)) is None:
                # One page stands for all: the resident pages of other objects have one version.
                number = next(iter(others.get(hashed, (0,))))
                slot = self._residents.occupant(hashed, number)
                known = versions[hashed] = etag if slot is None else int(self._residents.etag[slot])
            if known != etag or hashed in self._mixed:
                mixed[hashed] = group
        return mixed

    def pages_of(self, index: int) -> Contents:
        """Return all pages of a tier in the form in which the next process recovers them."""
        table, tick = self._residents, self._tick()
        slots = table.ready()
        slots = slots[table.tier[slots] == index]
        rows = np.zeros(len(slots), ROW)
        for name in (
            "location",
            "object_hash",
            "etag",
            "number",
            "group",
            "body_bytes",
            "uses",
            "validated_s",
        ):
            rows[name] = getattr(table, name)[slots]
        rows["idle"] = tick - table.last_use[slots]
        rows["age"] = tick - table.admitted[slots]
        return Contents(rows, self._groups.names)
