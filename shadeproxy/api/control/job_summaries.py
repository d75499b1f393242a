"""Shapes of answers about jobs."""

import msgspec


class RankProgress(msgspec.Struct):
    epoch: int
    position: int


class ScoreSummary(msgspec.Struct):
    known: int
    mean: float | None


class OrderSummary(msgspec.Struct):
    """``epochs``: announced ids, by epoch, of epochs not over yet. ``left``: those not read yet.
    ``believed``: reads follow the order; otherwise it is not used. ``found``: reads close to their announced
    position; ``surprises``: other reads; ``missed``: announced ids that were passed by unread. ``silent_s``:
    seconds since the job's last read. After ``lapses_after_s`` of silence, or when all its ranks have ended,
    the order is ``lapsed``: nothing is fetched for it until the job reads again.
    """

    epochs: dict[str, int]
    epoch: int | None
    position: int | None
    left: int
    believed: bool
    rate_per_s: float | None
    found: int
    surprises: int
    missed: int
    silent_s: float
    lapses_after_s: float
    lapsed: bool


class JobSummary(msgspec.Struct):
    """``order_trust`` and ``score_trust``: how far reads bear out its order and its scores, from 0 to 1.
    ``gap_reads``: reads of all clients from one of its reads to the next. ``silent_reads``: those since its
    last read, 0 as long as that is usual. ``trust_reason``: why, in words.
    """

    job: str
    dataset: str | None
    digest: str | None
    count: int
    world_size: int
    weight: float
    expires_s: float
    silent_s: float
    live: bool
    in_use: bool
    scores: ScoreSummary
    progress: dict[str, RankProgress]
    order_trust: float
    score_trust: float
    gap_reads: float | None
    silent_reads: int
    trust_reason: str
    order: OrderSummary | None = None


class JobList(msgspec.Struct):
    jobs: list[JobSummary]
