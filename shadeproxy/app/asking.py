"""Computes the demands of each job: how many samples per second it needs over the link to the origin, and how
much room in the cache its data set needs.
"""

from collections.abc import Mapping

import numpy as np

from shadeproxy.app.measuring import MeasuredJob
from shadeproxy.core.units import format_count
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.policy.sharing import Demands

_UNCOUNTED = 1e15
"""Number of samples that a job without a data set is taken to have. With so many, the cache holds hardly any
part of them.
"""


def samples_of(hints: HintRegistry, dataset: str | None) -> float:
    """Return the number of samples of a data set. For a job without a data set, return a very large
    number.
    """
    known = hints.datasets.get(dataset or "")
    return _UNCOUNTED if known is None else float(known.count)


def length_in(hints: HintRegistry, dataset: str | None, jobs: Mapping[str, MeasuredJob]) -> float:
    """Return the mean length of the samples of a data set: from its manifest if that states lengths, else
    from what one of ``jobs`` has read. Return 0 if neither is known.
    """
    known = hints.datasets.get(dataset or "")
    if known is None:
        return 0.0
    if known.length is not None and len(stated := known.length[known.length > 0]):
        return float(stated.mean())
    readers = (jobs.get(job.name) for job in hints.jobs if job.dataset == dataset)
    return next((one.sample_bytes for one in readers if one is not None and one.sample_bytes), 0.0)


def needed_rate(job: Job, measured: MeasuredJob, samples: float, now_s: float) -> float:
    """Return the need of a job in samples per second; 0 if the need is not known, or if the job has nothing
    left to read. ``samples``: number of samples of its data set. ``now_s``: Unix time.
    """
    need = job.need
    if need is None:
        return 0.0
    if need.slowdown is not None:
        return measured.rate / need.slowdown
    if need.samples_per_s is not None:
        return need.samples_per_s
    places = job.progress.values()
    read = samples * sum(at.epoch for at in places) / max(len(places), 1) + sum(at.position for at in places)
    left, left_s = need.epochs * samples - read, (need.deadline_s or 0.0) - now_s
    return left / left_s if left > 0 and left_s > 0 else 0.0


def demands_of(rows: list[list[float]]) -> Demands:
    """Turn rows of (rate, need, sample_bytes, data_bytes), one for each job, into the columns of
    ``Demands``.
    """
    columns = np.array(rows, dtype=np.float64).reshape(-1, len(Demands._fields)).T
    return Demands(*columns)


def reason_of(
    job: Job,
    measured: MeasuredJob,
    needed: float,
    *,
    is_admitted: bool | None,
    is_link_known: bool,
    missed: str,
) -> str:
    """Return in words the reason for the share of the link that a job gets. ``is_admitted``: whether its need
    is admitted; None if the job is not in use. ``missed``: why it gets less than it needs; "" if it does not.
    """
    reasons = [
        (job.best_effort, "it has given up its need"),
        (job.need is None, "it states no need"),
        (is_admitted is None, "the job is not in use, or its need is new"),
        (not measured.rate, "nothing of it is measured yet"),
        (measured.is_gone, "it has read nothing for a minute"),
        (not needed, "its deadline is over, or all its epochs are read"),
        (not is_admitted, "its need does not fit beside those that were admitted before it"),
        (
            0 < measured.compute < needed,
            f"it computes {format_count(measured.compute, 'sample', '.4g')} a second, fewer than it needs",
        ),
        (bool(missed), missed),
        (not is_link_known, "the origin's link was never seen full, so its need is admitted for now"),
    ]
    return next((words for holds, words in reasons if holds), "it fits beside the others")


def words_of_sharing(needs: int, others: int) -> str:
    """Return the words for ``needs`` jobs with a need that share the link with ``others`` without one."""
    verb = "shares" if needs == 1 else "share"
    return f"{format_count(needs, 'need')} {verb} the link with {format_count(others, 'job')} without one"
