"""Activity of a job in ticks: its pace, its silence, and how far its hints are believed.

Laws: there is no clock: callers pass the tick, which counts the demand reads of the proxy. A new job is
believed by a half; then trust follows the job's reads within about a hundred of them. Silence is measured
against the job's own pace, so that a slow job does not count as silent. Trust does not fade while the job
reads nothing.
"""

from shadeproxy.hints import job_state
from shadeproxy.hints.job_state import (
    CLIPPED,
    LEAST_EXPECTED,
    MOST_DRAWN,
    PACE_READS,
    SCORE_READS,
    TOGETHER,
    TRUST_READS,
    TRUSTED_ORDER,
    TRUSTED_SCORES,
    ActivityState,
)
from shadeproxy.hints.scoreboard import ScoreColumn
from shadeproxy.policy.expected import JobScale

_FIRST_TRUST = 0.5
LEAST_TRUST = 1e-3


class JobActivity(ActivityState):
    """Pace, silence and trust of one job. reads: number of its reads.

    Reads are counted at once, but taken into the averages later, many at a time or when an average is needed.
    """

    # Slots keep the fields of one job together in memory. Many jobs read in turn, and each read touches these
    # fields of its job.
    __slots__ = ()

    def __init__(self) -> None:
        self.raised = 1.0
        """The factor by which the job's need raises its weight (policy/sharing.py)."""
        self.reads = 0
        # Trust in the order and in the scores: averages, less the share that chance explains. So they may
        # fall below 0, or rise above 1.
        self._order = self._scores = _FIRST_TRUST
        self._gap = 0.0
        self._last: float | None = None
        self._averaged = 0.0  # The tick up to which reads are in the mean gap.
        self._waiting = self._measured = 0
        self._was_pause = False
        self._found = self._ordered = 0
        self._by_chance = 0.0
        self._drawn: list[int] = []  # Samples of reads that are not in ``_scores`` yet.
        self._scores_of: tuple[ScoreColumn, int] | None = None

    def read(self, reads: int, tick: float) -> None:
        """Note reads of the job, the latest at ``tick``."""
        self.reads += reads
        if self._last is None:
            self._last = self._averaged = tick
            self._gap = 1.0
            return
        if tick > self._last:
            # The ranks of a job read at almost the same ticks, so several reads enter the mean gap together.
            # A pause enters it alone, because it is clipped.
            is_pause = tick - self._last > self._unusual * reads
            if is_pause or self._was_pause or self._waiting >= TOGETHER:
                self._average()
            self._last, self._was_pause = tick, is_pause
        self._waiting += reads

    def ordered(self, found: int, others: int, chance: float = 0.0) -> None:
        """Note how many reads the order announced near the job's place (``found``), and how many it did not
        (``others``). ``chance``: the share of reads, below 1, that an order drawn at random would have near
        that place.
        """
        reads = found + others
        self._found += found
        self._ordered += reads
        self._by_chance += chance * reads
        if self._ordered >= TOGETHER:
            self._trust()

    def drawn_by(self, scores: ScoreColumn, count: int, samples: list[int]) -> None:
        """Note the samples of reads. Each is a whole object, and one of ``count`` samples with ``scores``."""
        self._scores_of = scores, count
        self._drawn += samples
        if len(self._drawn) >= TOGETHER:
            self._weigh()

    def drawn(self, weights: list[float], expected: float) -> None:
        """Note the weights of samples that were read. ``expected``: the mean weight of samples that are drawn
        by weight; samples read for other reasons have a mean of 1.
        """
        if expected < LEAST_EXPECTED:
            return
        most, excess = MOST_DRAWN * expected, expected - 1
        for weight in weights:
            drawn = (min(weight, most) - 1) / excess
            self._scores += (drawn - self._scores) / SCORE_READS

    @property
    def gap(self) -> float:
        """Mean ticks between two of the job's reads, 0 before the first."""
        self._average()
        return self._gap

    @property
    def order_trust(self) -> float:
        """Share of the job's reads that its order announced, less the share that any order would announce: 1
        if the job keeps to its order, 0 if the order is false.
        """
        self._trust()
        return min(max(self._order, 0.0), 1.0)

    @property
    def score_trust(self) -> float:
        """Excess of the weights that the job read over the mean weight, divided by the excess that draws by
        its scores would have: 1 if the job draws by its scores, 0 if it does not.
        """
        if self._drawn:
            self._weigh()
        return min(max(self._scores, 0.0), 1.0)

    @property
    def order_explains(self) -> bool:
        """True if the job reads by its order. The reuse learner then ignores the announced reads, because
        they say nothing about other reads of their pages.
        """
        return self._order > TRUSTED_ORDER

    @property
    def scores_explain(self) -> bool:
        """True if the job reads by its scores. The reuse learner then ignores the job's reads, because they
        say nothing about other reads of their pages.
        """
        return self._scores > TRUSTED_SCORES

    def scale(self, *, coming: int, silent: float, weight: float = 1.0) -> JobScale:
        """Return the scale that turns a count of the job's reads into ticks. ``coming``: number of announced
        reads that are left. ``silent``: ticks of silence. ``weight``: all times are divided by it.
        """
        gap, trust = max(self.gap, 1.0), self.order_trust
        divisor, horizon = weight * max(trust, LEAST_TRUST), silent + coming * gap * trust
        return JobScale(gap, silent, divisor, weight / gap, horizon, 1 - trust)

    def silence(self, tick: float) -> float:
        """Return the ticks since the job's last read; 0 while a gap of that length is usual for it."""
        if self._last is None:
            return 0.0
        silent = tick - self._last
        return silent if silent > self.usual_silence else 0.0

    @property
    def usual_silence(self) -> float:
        """Ticks without a read of the job that are usual at its pace."""
        self._average()
        return self._unusual

    @property
    def _unusual(self) -> float:
        return CLIPPED * self._gap + CLIPPED

    def _average(self) -> None:
        """Update the mean gap by the reads that it lacks."""
        reads, self._waiting = self._waiting, 0
        if not reads or self._last is None or self._last == self._averaged:
            return  # Reads in the tick of the first read say nothing about the pace.
        gap = (self._last - self._averaged) / reads
        self._averaged = self._last
        if self._measured:
            gap = min(gap, self._unusual)
        self._measured += reads
        # The first reads count in full: otherwise a slow job would look fast for hundreds of reads.
        self._gap += (gap - self._gap) * max(_moved(reads, PACE_READS), reads / self._measured)

    def _weigh(self) -> None:
        """Update the trust in the scores by the samples that it lacks."""
        if job_state.COMPILED:
            self.weigh()
            return
        samples, self._drawn = self._drawn, []
        assert self._scores_of is not None, "it came with the samples"
        scores, count = self._scores_of
        self.drawn(scores.few_weights(samples), scores.drawn_weight(count))

    def _trust(self) -> None:
        """Update the trust in the order by the reads that it lacks."""
        reads = self._ordered
        if reads:
            chance = self._by_chance / reads
            share = (self._found / reads - chance) / (1 - chance)
            self._order += (share - self._order) * _moved(reads, TRUST_READS)
            self._found, self._ordered, self._by_chance = 0, 0, 0.0


def _moved(reads: int, memory: float) -> float:
    """Return by how much ``reads`` reads move an average over ``memory`` reads."""
    return 1 - (1 - 1 / memory) ** reads
