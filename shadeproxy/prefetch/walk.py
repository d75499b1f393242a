"""Walks along one announced order, ahead of the job's reads, and finds the missing pages of its next samples.

A *look* lists the next samples of the order; its cost depends on how many of them are new, not on how many it
lists. Laws: plain state, used on the event loop. A sample that is no longer upcoming is forgotten. So the
next look drops the pages of a withdrawn or replaced order.
"""

from collections.abc import Iterator
from copy import copy
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.types import Span
from shadeproxy.engine.read.prefetch_port import Need, PrefetchPort
from shadeproxy.hints.datasets import Sample
from shadeproxy.hints.order.upcoming import Outlook, Upcoming
from shadeproxy.prefetch.fetched import ReadyPages
from shadeproxy.prefetch.pace import FetchPace, Latency
from shadeproxy.prefetch.resident_samples import ResidentSamples

MOST_NEW = 512
"""Most samples that all walks search for by name in one round: about 2 ms."""

_LEAST_NEW = 16
"""Samples that a walk may search for by name in one round, however many walks there are."""

_MOST_PAGES = 1024
"""Most pages looked up in one look: about 1 ms. Also the most pages prefetched for one sample."""

_MOST_WANTED = 1024
"""Most missing pages that are remembered: more than can be fetched before the next look."""

_TRUST_S = 1.0
"""Seconds for which a resident page is assumed to stay resident, and a failed page to fail again."""

_UNKNOWN, _THERE, _LACKS = range(3)


class Wanted(NamedTuple):
    """A page that a coming sample needs. ``place``: how many coming samples are before it.
    ``due_s``: the estimated seconds until it is read.
    """

    need: Need
    job: str
    sample: int
    place: int
    due_s: float


class Walk:
    """Walks along the order of one job, ahead of its reads, and finds the pages that are missing."""

    def __init__(self, job: str, latency: Latency, now_s: float) -> None:
        self.job = job
        self.latency = copy(latency)
        """Mean latency of this job's fetches. It starts with the mean over all fetches. Each job has its own,
        because jobs that share the origin's link wait for different times.
        """
        self.pace = FetchPace(now_s)
        self.complete = True
        """False if the last look stopped at its limit of samples or pages: look again soon. True if it looked
        up everything, or has no room for more missing pages.
        """
        self.searched = 0
        """Number of samples that the last look searched for by name."""
        self.ready = ReadyPages()
        self._left: int | None = None
        self._read = 0
        self._state = np.zeros(0, dtype=np.uint8)  # By sample.
        self._needs: dict[int, list[Need]] = {}  # By sample: its missing pages.
        self._residents = ResidentSamples()
        self._known_s = now_s
        self._looks = 0
        self._looked = np.zeros(0, dtype=np.uint32)  # By sample: the last look that listed it.
        self._listed = np.zeros(0, dtype=np.uint32)

    def is_early(self, place: int) -> bool:
        """Return whether a page of the coming sample at ``place`` could be fetched later and be in time."""
        return self.pace.is_early(place, self.latency.mean_s)

    def note(self, outlook: Outlook, residents: ResidentSamples, now_s: float) -> None:
        """Record the job's progress. ``residents``: the samples of its dataset known to be resident."""
        self._residents = residents
        read = 0 if self._left is None else max(self._left - outlook.left, 0)
        self._read += read
        self._left = outlook.left
        self.pace.note_reads(read, outlook.rate_per_s, now_s)

    def look(
        self,
        upcoming: Upcoming,
        port: PrefetchPort,
        count: int,
        most: int,
        now_s: float,
        *,
        new: int,
    ) -> list[Wanted]:
        """Return the missing pages of the next ``count`` samples, soonest first. ``most``: how many pages are
        wanted; the result may be longer. ``new``: how many samples to search for by name, at least
        ``_LEAST_NEW``.
        """
        self.searched = 0
        ids = upcoming.coming(self.job, count)
        if not len(ids):
            self.ready.clear()
            return []
        self._make_room(int(ids.max()) + 1)
        self._note_reach(ids)
        if now_s - self._known_s > _TRUST_S:
            self._known_s = now_s
            self._state[:] = _UNKNOWN
            self._needs.clear()
        unknown = ids[self._state[ids] == _UNKNOWN]
        self.complete = True
        if len(unknown):
            self._look_up(upcoming, port, unknown, max(new, _LEAST_NEW))
        rate = self.pace.rate_per_s
        per_sample_s = 1 / rate if rate > 0 else 0.0
        places = np.flatnonzero(self._state[ids] == _LACKS)[:most]
        due: dict[int, int] = {}
        for sample, place in zip(ids[places].tolist(), places.tolist(), strict=True):
            due.setdefault(sample, place)
        return [
            Wanted(need, self.job, sample, place, place * per_sample_s)
            for sample, place in due.items()
            for need in self._needs[sample][:most]
        ]

    def fetched(self, wanted: Wanted, size_bytes: int) -> None:
        """Count a page whose fetch has started as unread, unless its sample was no longer upcoming at the
        last look.
        """
        if self._looked[wanted.sample] == self._looks:
            self.ready.add((wanted.need.object_hash, wanted.need.number), wanted.sample, size_bytes)

    def issued(self, wanted: Wanted) -> None:
        """Remove a page from the missing ones, because its fetch has started or is not needed."""
        needs = self._needs.get(wanted.sample)
        if needs is None:
            return
        if wanted.need in needs:
            needs.remove(wanted.need)
        if not needs:
            del self._needs[wanted.sample]
            self._state[wanted.sample] = _THERE

    def forget(self, sample: int) -> None:
        """Forget which pages of a sample are missing, so that the next look finds all of its pages. Call this
        when the size of the sample's object has become known.
        """
        self._needs.pop(sample, None)
        self._state[sample] = _UNKNOWN

    def _make_room(self, count: int) -> None:
        if count > len(self._state):
            self._state = np.append(self._state, np.zeros(count, dtype=np.uint8))
            self._looked = np.append(self._looked, np.zeros(count, dtype=np.uint32))

    def _note_reach(self, ids: NDArray[np.uint32]) -> None:
        """Record how far ahead the job reads: the furthest place, in the last look, of a sample that is no
        longer upcoming.
        """
        self._looks += 1
        self._looked[ids] = self._looks
        gone = np.flatnonzero(self._looked[self._listed] != self._looks)
        if len(gone):
            self.pace.note_reach(int(gone[-1]))
            # Look the pages of a read sample up again: they may be evicted before its next use.
            self._state[self._listed[gone]] = _UNKNOWN
            for sample in self._listed[gone].tolist():
                self._needs.pop(sample, None)
                self.ready.drop_sample(sample)
        if self._read > len(gone):
            # Samples were read that the last look did not list: they lie beyond its end. So the reach is
            # longer than that look.
            self.pace.note_reach(2 * len(self._listed))
        self._listed = ids
        self._read = 0

    def _look_up(
        self,
        upcoming: Upcoming,
        port: PrefetchPort,
        ids: NDArray[np.uint32],
        most: int,
    ) -> None:
        """Find out which of these coming samples have missing pages. Search for at most ``most`` of them by
        name.
        """
        still = self._residents.are_still(ids, port)
        self._state[ids[still]] = _THERE
        places = np.flatnonzero(~still)
        if not len(places):
            self.pace.note_misses(0, len(ids))
        elif (room := _MOST_WANTED - sum(map(len, self._needs.values()))) > 0:
            self.complete = len(places) <= most
            new: dict[int, int] = {}
            for sample, place in zip(ids[places[:most]].tolist(), places[:most].tolist(), strict=True):
                new.setdefault(sample, place)
            missing, looked = self._search(upcoming, port, list(new), room)
            last = list(new.values())[looked - 1]
            self.pace.note_misses(missing, looked + int(np.count_nonzero(still[:last])))

    def _search(
        self,
        upcoming: Upcoming,
        port: PrefetchPort,
        ids: list[int],
        room: int,
    ) -> tuple[int, int]:
        """Search for pages of the samples, until ``room`` missing pages are found. Return how many samples
        lack pages, and how many were searched.
        """
        column = np.array(ids, dtype=np.uint32)
        samples = upcoming.samples(self.job, column)
        found = self._residents.find(column, samples, port).tolist()
        self.searched = len(ids)
        left, looked, missing = _MOST_PAGES, 0, 0
        for sample, where, is_there in zip(ids, samples, found, strict=True):
            pages = [] if is_there else list(islice(pages_of(port, where), left))
            if looked and len(pages) == left:
                self.complete = False  # The next look continues here.
                break
            needs = [need for need in pages if need is not None]
            self._state[sample] = _LACKS if needs else _THERE
            if needs:
                self._needs[sample] = needs
            left -= len(pages)
            room -= len(needs)
            looked += 1
            missing += bool(needs)
            if room <= 0:
                self.complete = True
                break
        return missing, looked


def pages_of(port: PrefetchPort, sample: Sample) -> Iterator[Need | None]:
    """Yield a ``Need`` for each missing page of a sample, and None for a page that need not be fetched."""
    if sample.length is None:
        return port.missing(sample.ref)
    return port.missing(sample.ref, Span(sample.offset, sample.offset + sample.length))
