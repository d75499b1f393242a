"""Learns from reads how soon pages are read again, for pages about which no job says anything.

Reads of the pages in the reuse sample become evidence at once. Now and then ``Refresh.run`` makes from the
evidence, in any thread, a new table by which pages are ranked. Laws: no coroutines and no clock; time is in
ticks. While ``Refresh.run`` runs, the event loop does not touch its evidence.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.hints.reuse.sample import Hashes, Reads, ReuseSample, SampleState
from shadeproxy.policy.base import Column
from shadeproxy.policy.hazard import Evidence, Hazards, Index, Waits, learn
from shadeproxy.policy.history import AGE_BINS, STATES, Histories, age_bin, age_bins

MOST_PREFIXES = 64
# A group becomes a prefix of its own when it has had this many reads, and all other groups together have had
# this many too.
_LEAST_READS = 1024
_LEAST_REFRESH = 256.0
# The next table is due after this many reads: 1 / n of the number of resident pages. So several tables are
# made soon after readers change their habits.
_REFRESH_SHARE = 64


@dataclass(frozen=True, slots=True)
class Refresh:
    """The making of a new table: call ``run`` in any thread, and pass its result to
    ``ReuseLearner.finish``.
    """

    evidence: Evidence
    fresh: Evidence
    waits: Waits
    hazards: Hazards

    def run(self) -> Hazards:
        """Return the table. Until ``finish``, this refresh alone may use its evidence."""
        self.evidence.add(self.fresh)
        self.evidence.expose(self.waits, self.hazards)
        return learn(self.evidence)


class LearnerState(NamedTuple):
    """The state of a learner, to be stored. ``prefix_of`` and ``group_reads`` have an element for each group.
    A running refresh may still change ``evidence`` and ``fresh``: read them in its thread, after it.
    """

    sample: SampleState
    evidence: Evidence
    fresh: Evidence
    prefix_of: Index
    group_reads: Column


class ReuseLearner:
    """Learns how soon pages are read again. ``seed``: secret seed of the reuse sample."""

    def __init__(self, seed: int) -> None:
        self._sample = ReuseSample(seed)
        self._evidence, self._fresh = Evidence.empty(1), Evidence.empty(1)
        self._refreshing = False
        self._made_tick, self._due_tick = 0.0, _LEAST_REFRESH
        self.hazards = Hazards.unknown(1)
        self._prefixes = 1
        self.prefix_of: Index = np.zeros(16, dtype=np.intp)
        """The prefix of each group that was seen: 0 for all groups but those read often."""
        self._group_reads: Column = np.zeros(16)

    def observe(
        self, pages: Hashes, groups: NDArray[np.integer], ticks: Column, lasts: Column | None = None
    ) -> None:
        """Add reads that no hint explains, oldest first; all columns of shape (n,).

        ``lasts``: tick of each page's latest read, if several reads count as one. None means ``ticks``.
        """
        of = groups.astype(np.intp)
        self.make_room(int(of.max(initial=0)))
        np.add.at(self._group_reads, of, 1.0)
        self._sample.observe(
            Reads(pages, of, ticks, ticks if lasts is None else lasts),
            self._fresh,
            self.hazards,
            self.prefix_of,
        )

    def enter(self, pages: Hashes, groups: NDArray[np.integer], histories: Histories, tick: float) -> None:
        """Add pages that an earlier process read, so that the learner also sees which of them are not read
        again.
        """
        self.make_room(int(groups.max(initial=0)))
        self._sample.enter(pages, groups.astype(np.intp), histories, tick)

    def make_room(self, group: int) -> None:
        """Lengthen the columns that have an element for each group, so that ``group`` has one."""
        if group >= len(self.prefix_of):
            more = max(group + 1, 2 * len(self.prefix_of)) - len(self.prefix_of)
            self.prefix_of = np.append(self.prefix_of, np.zeros(more, dtype=np.intp))
            self._group_reads = np.append(self._group_reads, np.zeros(more))

    def prefixes(self, groups: NDArray[np.integer]) -> Index:
        """Return the prefix to which pages of each group count: 0 for all groups but those read often."""
        self.make_room(int(groups.max(initial=0)))
        return self.prefix_of.take(groups)

    def prefix(self, group: int) -> int:
        """Return the prefix of one group."""
        return self.prefix_of.item(group) if group < len(self.prefix_of) else 0

    def rates(
        self,
        prefixes: NDArray[np.integer],
        states: NDArray[np.integer],
        ages: Column,
        *,
        candidates: int = 0,
    ) -> Column:
        """Return the expected reads per tick of each page, by its prefix, its state and the ticks since its
        last read.

        The first ``candidates`` pages of the columns ask for a place. The price of storing a page is
        subtracted from their rates.
        """
        places = (prefixes * STATES + states) * AGE_BINS + age_bins(ages)
        if candidates >= len(places):
            return self.hazards.candidates.take(places)
        rates = self.hazards.rates.take(places)
        if candidates:
            rates[:candidates] = self.hazards.candidates.take(places[:candidates])
        return rates

    def rate(self, prefix: int, state: int, age: float, *, candidate: bool = False) -> float:
        """Return the reads per tick of one page, at a tenth of the cost of ``rates``."""
        table = self.hazards.candidates if candidate else self.hazards.rates
        return table.item((prefix * STATES + state) * AGE_BINS + age_bin(age))

    def is_due(self, tick: float) -> bool:
        """Return whether it is time for a new table."""
        return tick >= self._due_tick and not self._refreshing

    def put_off(self, reads: int) -> None:
        """Delay the next table until ``reads`` reads after the present table, if that is later than
        planned.
        """
        self._due_tick = max(self._due_tick, self._made_tick + reads)

    def begin(self, tick: float, pages: int) -> Refresh:
        """Begin the refresh that makes the next table, and return it; only one runs at a time.

        ``tick``: now. ``pages``: number of resident pages.
        """
        self._made_tick = tick
        self._due_tick = tick + max(_LEAST_REFRESH, pages / _REFRESH_SHARE)
        self._refreshing = True
        self._split()
        self.hazards = self._wide()
        evidence, fresh = self._evidence, self._fresh
        if evidence.prefixes < self._prefixes:
            evidence, fresh = evidence.grown(self._prefixes), fresh.grown(self._prefixes)
        self._fresh = Evidence.empty(self._prefixes)
        self._evidence = evidence
        return Refresh(evidence, fresh, self._sample.waiting(tick, self.prefix_of), self.hazards)

    def finish(self, hazards: Hazards) -> None:
        """Use a new table."""
        self.hazards = hazards
        self._refreshing = False

    def fail(self) -> None:
        """Keep the present table, and drop the evidence that a failed refresh left half changed."""
        self._evidence = Evidence.empty(self._prefixes)
        self._refreshing = False

    @property
    def sampled(self) -> int:
        """Number of pages in the reuse sample."""
        return len(self._sample)

    def learnt(self, groups: int) -> LearnerState:
        """Return the state for ``groups`` groups. A running refresh may still change its evidence (see
        ``LearnerState``).
        """
        self.make_room(groups)
        prefix_of, group_reads = self.prefix_of[:groups].copy(), self._group_reads[:groups].copy()
        return LearnerState(self._sample.state(), self._evidence, self._fresh, prefix_of, group_reads)

    def restore(self, learnt: LearnerState, groups: Index, tick: float) -> None:
        """Continue from the state of an earlier learner at ``tick``. groups: the present numbers of its
        groups.
        """
        self.make_room(int(groups.max(initial=0)))
        self.prefix_of[groups], self._group_reads[groups] = learnt.prefix_of, learnt.group_reads
        sample = learnt.sample
        self._sample = ReuseSample.restored(sample._replace(groups=groups[sample.groups]))
        learnt.evidence.add(learnt.fresh)
        self._evidence, self._fresh = learnt.evidence, Evidence.empty(learnt.evidence.prefixes)
        self._prefixes, self.hazards = learnt.evidence.prefixes, learn(learnt.evidence)
        self._made_tick, self._due_tick = tick, tick + _LEAST_REFRESH

    def _split(self) -> None:
        """Make each group that is read often enough a prefix of its own."""
        total = self._group_reads.sum()
        often = (self.prefix_of == 0) & (self._group_reads >= _LEAST_READS)
        for group in np.flatnonzero(often & (total - self._group_reads >= _LEAST_READS)).tolist():
            if self._prefixes >= MOST_PREFIXES:
                return
            self.prefix_of[group] = self._prefixes
            self._prefixes += 1

    def _wide(self) -> Hazards:
        """Return the present table with rows for every prefix. New prefixes start with the rows of prefix 0,
        to which their pages counted before.
        """
        cells = STATES * AGE_BINS
        missing = self._prefixes - len(self.hazards.rates) // cells
        if not missing:
            return self.hazards
        known = self.hazards.rates, self.hazards.candidates, self.hazards.hazards
        return Hazards(*(np.concatenate([column, np.tile(column[:cells], missing)]) for column in known))
