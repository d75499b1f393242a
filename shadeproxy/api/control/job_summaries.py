"""Shapes of what is shown of jobs."""

import msgspec


class RankProgress(msgspec.Struct):
    epoch: int
    position: int


class ScoreSummary(msgspec.Struct):
    known: int
    mean: float | None


class OrderSummary(msgspec.Struct):
    """``epochs``: ids announced, by epoch, of those not over yet. ``left``: of them not read yet.
    ``believed``: reads bear the order out; else it is not used. ``found``: reads that it named about where
    they came; ``surprises``: reads that it did not; ``missed``: announced and passed by unread.
    ``silent_s``: since the job read; after ``lapses_after_s`` of that, or when all its ranks have ended, it
    is ``lapsed``: nothing is kept or fetched for it until it reads on.
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
    order: OrderSummary | None = None


class JobList(msgspec.Struct):
    jobs: list[JobSummary]
