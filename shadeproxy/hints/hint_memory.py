"""Counts the memory of registered hints: datasets, and the scores and orders of jobs.

Law: each dataset counts once, however many jobs use it. Sizes are computed from numbers of samples, and are
rather too high than too low.
"""

from collections import Counter

from shadeproxy.hints.datasets import Dataset
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.registry import HintRegistry

_INDEX_BYTES = 64
"""Bytes a sample of the indexes that a dataset gets when jobs use it."""
_SCORE_BYTES, _PAGE_SCORE_BYTES, _FROZEN_BYTES = 12, 24, 4
"""Bytes a sample, or a page of parts, of a score column, and of a frozen one. More than half of the twelve is
the copy that waits to be stored.
"""
_ID_BYTES, _PLACE_BYTES, _SCORED_OBJECT_BYTES = 20, 8, 128


def hint_bytes(hints: HintRegistry) -> int:
    """Return the bytes that all registered hints take. Event loop only."""
    datasets = sum(one.column_bytes + _INDEX_BYTES * one.count for one in hints.datasets.values())
    frozen = Counter(name for name, _ in hints.frozen.names())
    return datasets + sum(_job_bytes(hints, job, frozen[job.name]) for job in hints.jobs)


def _job_bytes(hints: HintRegistry, job: Job, frozen: int) -> int:
    """Return the bytes that a job takes beside its dataset. ``frozen``: number of its frozen columns."""
    space = hints.space(job.name)
    held_bytes = _FROZEN_BYTES * frozen * space.count
    if job.name in hints.scoreboard:
        pages = len(space.pages) if isinstance(space, Dataset) and space.pages is not None else 0
        held_bytes += _SCORE_BYTES * space.count + _PAGE_SCORE_BYTES * pages
    if not isinstance(space, Dataset):
        held_bytes += _SCORED_OBJECT_BYTES * space.count
    if job.name in hints.orders.announced or job.name in hints.orders.trackers:
        held_bytes += _PLACE_BYTES * space.count + _ID_BYTES * hints.orders.announced.count(job.name)
    return held_bytes
