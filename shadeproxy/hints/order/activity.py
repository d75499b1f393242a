"""Activity of a job in ticks: its pace, its silence, and how far its hints are believed.

Laws: no clock: ticks (demand reads of the proxy) come in. A new name is believed by half; belief follows
what the job's reads confirm, within about a hundred reads. Silence is measured against the job's own pace, so
that a slow job is not silent, and nothing fades while nothing is read.
"""

from shadeproxy.policy.base import Column
from shadeproxy.policy.expected import JobColumns

_PACE_READS = 256.0
_CLIPPED = 16.0  # mean gaps: a pause counts as this long, and silence begins here
_TRUST_READS = 128.0
_SCORE_READS = 512.0
_LEAST_EXPECTED = 1.01  # below this, scores are so alike that any reads would seem to follow them
_MOST_DRAWN = 4.0  # in multiples of the mean score: one heavy sample proves little
_FIRST_TRUST = 0.5
_TRUSTED_SCORES = 0.5
_TRUSTED_ORDER = 0.25
LEAST_TRUST = 1e-3


class JobActivity:
    """Pace, silence and trust of one job. reads: number of its reads. gap: mean ticks between two of them, 0
    before the first.
    """

    def __init__(self) -> None:
        self.reads = 0
        self.gap = 0.0
        # Averages of what chance is subtracted from: they may fall below 0, or rise above 1.
        self._order = self._scores = _FIRST_TRUST
        self._last: float | None = None
        self._measured = 0

    def read(self, reads: int, tick: float) -> None:
        """Note reads of the job, the latest at ``tick``."""
        self.reads += reads
        if self._last is None:
            self._last, self.gap = tick, 1.0
            return
        gap = max(tick - self._last, 0.0) / reads
        self._last = max(tick, self._last)
        if self._measured:
            gap = min(gap, self.usual_silence)
        self._measured += reads
        # The first reads count in full: else a slow job would look fast for hundreds of reads.
        self.gap += (gap - self.gap) * max(_moved(reads, _PACE_READS), reads / self._measured)

    def ordered(self, found: int, others: int, chance: float = 0.0) -> None:
        """Note the numbers of reads that the order announced near the job's place, and of other reads.
        ``chance``: the share that would be near it in an order drawn at random, below 1.
        """
        if reads := found + others:
            share = (found / reads - chance) / (1 - chance)
            self._order += (share - self._order) * _moved(reads, _TRUST_READS)

    def drawn(self, weights: list[float], expected: float) -> None:
        """Note the weights of samples that were read. ``expected``: the mean weight of samples drawn by
        weight; the mean of samples read for other reasons is 1.
        """
        if expected < _LEAST_EXPECTED:
            return
        for weight in weights:
            drawn = (min(weight, _MOST_DRAWN * expected) - 1) / (expected - 1)
            self._scores += (drawn - self._scores) / _SCORE_READS

    @property
    def order_trust(self) -> float:
        """Share of the job's reads that its order announced, less those that any order would have: 1 for an
        order that is kept, 0 for a lie.
        """
        return min(max(self._order, 0.0), 1.0)

    @property
    def score_trust(self) -> float:
        """How much heavier the job's reads are than any reads: 1 where they are drawn by its scores."""
        return min(max(self._scores, 0.0), 1.0)

    @property
    def order_explains(self) -> bool:
        """True if the job reads by its order, so that announced reads teach nothing else."""
        return self._order > _TRUSTED_ORDER

    @property
    def scores_explain(self) -> bool:
        """True if the job reads by its scores, so that its reads teach nothing else."""
        return self._scores > _TRUSTED_SCORES

    def columns(
        self, left: Column, draws: Column, *, coming: int, silent: float, weight: float = 1.0
    ) -> JobColumns:
        """Return the job's part in n pages, in ticks. left: f64[n], its reads until a page's announced one,
        inf where there is none. draws: f64[n], draws of a page in one of its reads. ``coming``: announced
        reads that are left; ``silent``: ticks of silence; ``weight``: times are divided by it.
        """
        gap, trust = max(self.gap, 1.0), self.order_trust
        distance = (left * gap + silent) / (weight * max(trust, LEAST_TRUST))
        return JobColumns(distance, draws * (weight / gap), silent + coming * gap * trust, 1 - trust)

    def silence(self, tick: float) -> float:
        """Return the ticks since the job's last read; 0 as long as they are usual at its pace."""
        if self._last is None:
            return 0.0
        silent = tick - self._last
        return silent if silent > self.usual_silence else 0.0

    @property
    def usual_silence(self) -> float:
        """Ticks without a read of the job that are usual at its pace."""
        return _CLIPPED * self.gap + _CLIPPED


def _moved(reads: int, memory: float) -> float:
    """Return by how much an average over ``memory`` reads moves with so many."""
    return 1 - (1 - 1 / memory) ** reads
