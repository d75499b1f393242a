"""One announced order, walked ahead of its reader: which pages its next samples lack.

Plain state, asked on the event loop: a look costs what is new in it, not what it is long. Law: nothing is
remembered of a sample that is no longer coming, so what a withdrawn or replaced order wanted is gone with
the next look.
"""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from shadeproxy.core.types import Span
from shadeproxy.engine.ahead import Ahead, Need
from shadeproxy.engine.knowledge.datasets import Sample
from shadeproxy.engine.knowledge.upcoming import Outlook, Upcoming
from shadeproxy.prefetch.pace import Pace

_MOST_NEW = 512
"""Samples looked up in one look: about 2 ms."""

_MOST_PAGES = 1024
"""Pages looked up in one look, as many ms. Of a sample that has more these are all that is fetched ahead."""

_MOST_WANTED = 1024
"""Pages remembered as lacking: more than anybody fetches before the next look."""

_TRUST_S = 1.0
"""How long it is believed that a page which was there is still there."""


class Wanted(NamedTuple):
    """A page that a coming sample lacks, and in how many seconds that is due, as far as can be told."""

    need: Need
    job: str
    sample: int
    due_s: float


class Walk:
    """The order of job ``job``."""

    def __init__(self, job: str, now_s: float) -> None:
        self.job = job
        self.pace = Pace(now_s)
        self.complete = True
        """Whether the last look saw all that it was to see."""
        self._left: int | None = None
        self._seen: dict[int, list[Need]] = {}
        self._seen_s = now_s

    def note(self, outlook: Outlook, now_s: float) -> None:
        """How far the job is by now."""
        read = 0 if self._left is None else max(self._left - outlook.left, 0)
        self._left = outlook.left
        self.pace.note_reads(read, outlook.rate_per_s, now_s)

    def look(self, upcoming: Upcoming, ahead: Ahead, count: int, now_s: float) -> list[Wanted]:
        """What the next ``count`` samples lack, soonest first."""
        if now_s - self._seen_s > _TRUST_S:
            self._seen, self._seen_s = {}, now_s
        ids = upcoming.coming(self.job, count)
        listed = ids.tolist()
        seen = {sample: self._seen[sample] for sample in listed if sample in self._seen}
        new = [sample for sample in dict.fromkeys(listed) if sample not in seen]
        self.complete = len(new) <= _MOST_NEW
        if new:
            self._look_up(upcoming, ahead, new[:_MOST_NEW], seen)
        self._seen = seen
        rate = self.pace.rate_per_s
        wanted: list[Wanted] = []
        for place, sample in enumerate(listed):
            if len(wanted) >= _MOST_WANTED:
                break
            due_s = place / rate if rate > 0 else 0.0
            wanted += [Wanted(need, self.job, sample, due_s) for need in seen.get(sample, ())]
        return wanted

    def issued(self, wanted: Wanted) -> None:
        """A page is on its way, or need not be."""
        needs = self._seen.get(wanted.sample)
        if needs is not None and wanted.need in needs:
            needs.remove(wanted.need)

    def forget(self, sample: int) -> None:
        """More is known of a sample's object: look it up again."""
        self._seen.pop(sample, None)

    def _look_up(self, upcoming: Upcoming, ahead: Ahead, ids: list[int], seen: dict[int, list[Need]]) -> None:
        room = _MOST_WANTED - sum(map(len, seen.values()))
        if room <= 0:
            self.complete = True
            return
        samples = upcoming.samples(self.job, np.array(ids, dtype=np.uint32))
        left, looked, missing = _MOST_PAGES, 0, 0
        for sample, where in zip(ids, samples, strict=False):
            pages = list(islice(pages_of(ahead, where), left))
            if looked and len(pages) == left:
                self.complete = False  # more of it in the next look
                break
            seen[sample] = needs = [need for need in pages if need is not None]
            left -= len(pages)
            room -= len(needs)
            looked += 1
            missing += bool(needs)
            if room <= 0:
                self.complete = True
                break
        self.pace.note_misses(missing, looked)


def pages_of(ahead: Ahead, sample: Sample) -> Iterator[Need | None]:
    """The pages of a sample that it lacks, None for those that it does not."""
    if sample.length is None:
        return ahead.missing(sample.ref)
    return ahead.missing(sample.ref, Span(sample.offset, sample.offset + sample.length))
