"""Walk along one announced order, ahead of its reader: finds the pages that its next samples lack.

Plain state, used on the event loop: the cost of a look depends on what is new in it, not on its length. Law:
samples that are no longer coming are forgotten, so the next look drops the pages of a withdrawn or replaced
order.
"""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.types import Span
from shadeproxy.engine.read.prefetch_port import Need, PrefetchPort
from shadeproxy.hints.datasets import Sample
from shadeproxy.hints.order.upcoming import Outlook, Upcoming
from shadeproxy.prefetch.pace import FetchPace
from shadeproxy.prefetch.ready import ReadyPages

_MOST_NEW = 512
"""Samples looked up in one look: about 2 ms."""

_MOST_PAGES = 1024
"""Pages looked up in one look, as many ms. Also the most pages prefetched of one sample."""

_MOST_WANTED = 1024
"""Maximum missing pages remembered: more than are fetched before the next look."""

_TRUST_S = 1.0
"""Time for which resident pages are assumed to stay, and failed ones to be of no use."""

_UNKNOWN, _THERE, _LACKS = range(3)


class Wanted(NamedTuple):
    """A page that a coming sample lacks, and the estimated seconds until it is due."""

    need: Need
    job: str
    sample: int
    due_s: float


class Walk:
    """Walk along the order of job ``job``."""

    def __init__(self, job: str, now_s: float) -> None:
        self.job = job
        self.pace = FetchPace(now_s)
        self.complete = True
        """True if the last look covered all that it had to."""
        self.ready = ReadyPages()
        self._left: int | None = None
        self._read = 0
        self._state = np.zeros(0, dtype=np.uint8)  # by sample
        self._needs: dict[int, list[Need]] = {}  # missing pages, by sample
        self._known_s = now_s
        self._looks = 0
        self._looked = np.zeros(0, dtype=np.uint32)  # by sample: the last look that listed it
        self._listed = np.zeros(0, dtype=np.uint32)

    def note(self, outlook: Outlook, now_s: float) -> None:
        """Note the job's progress."""
        read = 0 if self._left is None else max(self._left - outlook.left, 0)
        self._read += read
        self._left = outlook.left
        self.pace.note_reads(read, outlook.rate_per_s, now_s)

    def look(
        self, upcoming: Upcoming, port: PrefetchPort, count: int, most: int, now_s: float
    ) -> list[Wanted]:
        """Return the missing pages of the next ``count`` samples, soonest first: about ``most`` pages."""
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
        new = ids[self._state[ids] == _UNKNOWN]
        self.complete = len(new) <= _MOST_NEW
        if len(new):
            self._look_up(upcoming, port, list(dict.fromkeys(new[:_MOST_NEW].tolist())))
        rate = self.pace.rate_per_s
        per_sample_s = 1 / rate if rate > 0 else 0.0
        places = np.flatnonzero(self._state[ids] == _LACKS)[:most]
        due: dict[int, int] = {}
        for sample, place in zip(ids[places].tolist(), places.tolist(), strict=True):
            due.setdefault(sample, place)
        return [
            Wanted(need, self.job, sample, place * per_sample_s)
            for sample, place in due.items()
            for need in self._needs[sample][:most]
        ]

    def fetched(self, wanted: Wanted, size_bytes: int) -> None:
        """Count a page that is on its way, unless its sample was read since the last look."""
        if self._looked[wanted.sample] == self._looks:
            self.ready.add((wanted.need.object_hash, wanted.need.number), wanted.sample, size_bytes)

    def issued(self, wanted: Wanted) -> None:
        """Remove a page that is on its way, or need not be fetched."""
        needs = self._needs.get(wanted.sample)
        if needs is None:
            return
        if wanted.need in needs:
            needs.remove(wanted.need)
        if not needs:
            del self._needs[wanted.sample]
            self._state[wanted.sample] = _THERE

    def forget(self, sample: int) -> None:
        """Look a sample up again, because its object's size is now known."""
        self._needs.pop(sample, None)
        self._state[sample] = _UNKNOWN

    def _make_room(self, count: int) -> None:
        if count > len(self._state):
            self._state = np.append(self._state, np.zeros(count, dtype=np.uint8))
            self._looked = np.append(self._looked, np.zeros(count, dtype=np.uint32))

    def _note_reach(self, ids: NDArray[np.uint32]) -> None:
        """Note the furthest place in the last look of a sample that is no longer coming."""
        self._looks += 1
        self._looked[ids] = self._looks
        gone = np.flatnonzero(self._looked[self._listed] != self._looks)
        if len(gone):
            self.pace.note_reach(int(gone[-1]))
            # By the next epoch its page may have been evicted.
            self._state[self._listed[gone]] = _UNKNOWN
            for sample in self._listed[gone].tolist():
                self._needs.pop(sample, None)
                self.ready.drop_sample(sample)
        if self._read > len(gone):
            # Other samples were read beyond the end of the last look.
            self.pace.note_reach(2 * len(self._listed))
        self._listed = ids
        self._read = 0

    def _look_up(self, upcoming: Upcoming, port: PrefetchPort, ids: list[int]) -> None:
        room = _MOST_WANTED - sum(map(len, self._needs.values()))
        if room <= 0:
            self.complete = True
            return
        samples = upcoming.samples(self.job, np.array(ids, dtype=np.uint32))
        left, looked, missing = _MOST_PAGES, 0, 0
        for sample, where in zip(ids, samples, strict=False):
            pages = list(islice(pages_of(port, where), left))
            if looked and len(pages) == left:
                self.complete = False  # the next look goes on with the rest
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
        self.pace.note_misses(missing, looked)


def pages_of(port: PrefetchPort, sample: Sample) -> Iterator[Need | None]:
    """Yield the missing pages of a sample, and None for each that need not be fetched."""
    if sample.length is None:
        return port.missing(sample.ref)
    return port.missing(sample.ref, Span(sample.offset, sample.offset + sample.length))
