"""Taking in what an earlier process left, while the proxy serves already.

Laws: what the origin said since the start beats what is found: a page that is there stays, and of an object
that somebody asked the origin about only pages of that version come in. What was written or purged through
the proxy since then never comes in (the tier remembers it, over kill -9 too). Steps on the event loop take
about 2 ms each; reading is done on a thread.
"""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
import structlog
from numpy.typing import NDArray

from shadeproxy.core.identity import GroupName
from shadeproxy.engine.groups import PrefixGroups
from shadeproxy.engine.residents import Residents
from shadeproxy.engine.transfers import Medium
from shadeproxy.tiers.base import Location
from shadeproxy.tiers.rows import ROW, Contents, Rows

_log = structlog.get_logger(__name__)


class Recovery:
    """From ``media`` into ``residents``. ``tick`` tells the number of demand reads so far, ``pinned`` which
    rows of a tier are to be held, as bool[n]. ``erasing`` is told whenever something was given to the writers
    of the tiers that must be on the media before the origin changes.
    """

    def __init__(
        self,
        media: Sequence[Medium],
        residents: Residents,
        groups: PrefixGroups,
        *,
        tick: Callable[[], float],
        pinned: Callable[[int, Rows, list[GroupName]], NDArray[np.bool_]],
        erasing: Callable[[], None],
    ) -> None:
        self._media = media
        self._residents = residents
        self._groups = groups
        self._tick = tick
        self._pinned = pinned
        self._erasing = erasing
        self._coming = False  # whether this process takes anything more in
        self._halted = False
        self._news: dict[int, int] = {}  # object hash -> hash of the version that the origin has
        self._distrusted: set[tuple[str, str]] = set()  # buckets with their namespaces
        self._all_distrusted = False
        self._task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ life

    @property
    def awaited_segments(self) -> int:
        """Segments that are yet to be taken in."""
        return sum(medium.tier.awaited_segments for medium in self._media)

    def open(self) -> None:
        """Open the tiers (blocking). Raises ConfigError."""
        for medium in self._media:
            medium.tier.open()
        self._coming, self._halted = self.awaited_segments > 0, False

    def run(self) -> None:
        """Take in everything now (blocking)."""
        for index, medium in enumerate(self._media):
            for arrival in medium.tier.arrivals():
                for contents in medium.tier.take_in(arrival):
                    self._take_in(index, contents)
                self._erasing()
        self._end()

    def start(self) -> None:
        """Take in everything in the background, fastest tier first."""
        self._task = asyncio.create_task(self._work(), name="recovery")

    async def over(self) -> None:
        """Return once everything is taken in."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def stop(self) -> None:
        """End where it is; what is not taken in is left for the next start."""
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
        if not (self._halted and self.awaited_segments):
            self._end()
            _log.info("recovered", pages=len(self._residents), unreadable_segments=self.awaited_segments)

    def _end(self) -> None:
        # Segments that could not be read are left for the next start: nothing of them comes in now.
        self._coming = False
        self._news.clear()
        self._distrusted.clear()
        self._all_distrusted = False

    # ------------------------------------------------------------------ news while it runs

    def disown(self, object_hash: int) -> None:
        """Nothing of that object comes in any more, and nothing comes back after a restart."""
        submitted = [medium.tier.disown(object_hash) for medium in self._media]
        if any(submitted):
            self._erasing()

    def note_version(self, object_hash: int, etag_hash: int) -> None:
        """The origin said which version of an object it has."""
        if self._coming:
            self._news[object_hash] = etag_hash

    def distrust(self, bucket: str, namespace: str) -> None:
        """What comes in of a bucket is to be checked before it is served."""
        if self._coming:
            self._distrusted.add((bucket, namespace))

    def distrust_all(self) -> None:
        """Distrust pages that come in of every bucket, as ``distrust`` does those of one."""
        self._all_distrusted = self._coming

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
        if self._all_distrusted:
            rows["validated_s"] = 0.0
        elif self._distrusted:
            doubted = [
                number
                for number, (bucket, _, namespace) in enumerate(contents.names)
                if (bucket, namespace) in self._distrusted
            ]
            rows["validated_s"][np.isin(rows["group"], doubted)] = 0.0
        pinned = self._pinned(index, rows, contents.names)
        left_out = self._residents.take_in(rows, groups, index, self._tick(), pinned)
        for row in rows[left_out][["object_hash", "number", "etag", "location"]].tolist():
            self._resolve(*row[:3])
            release(Location(row[3]))

    def _without_outdated(self, rows: Rows) -> tuple[Rows, Rows]:
        known = np.isin(rows["object_hash"], np.fromiter(self._news, np.uint64, len(self._news)))
        for position in np.flatnonzero(known).tolist():
            # The first page tells the metadata, which may have changed under the same ETag.
            current = self._news[int(rows["object_hash"][position])] == int(rows["etag"][position])
            known[position] = not current or rows["number"][position] == 0
        return rows[~known], rows[known]

    def _resolve(self, object_hash: int, number: int, etag: int) -> None:
        """Two records of one page, of two versions, neither read since the start: nobody knows which holds,
        and the origin will be asked.
        """
        slot = self._residents.occupant(object_hash, number)
        if slot is not None and self._residents.unverified[slot] and int(self._residents.etag[slot]) != etag:
            self._residents.validated_s[slot] = 0.0

    def pages_of(self, index: int) -> Contents:
        """Every page of a tier, for the next process."""
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
