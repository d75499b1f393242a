"""Hints of jobs, as arrays in a trace file. The number of a job is part of the names of its arrays."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import ConfigError
from shadeproxy.simulate.trace import JobHints, Jobs

Arrays = Mapping[str, NDArray[Any]]

_NAME = re.compile(r"(dataset|order|known|scores|scored)_(\d{1,3})")


def is_hint(name: str) -> bool:
    """Return whether an array of this name is part of a job's hints."""
    return _NAME.fullmatch(name) is not None


def job_hints(path: Path, arrays: Arrays, jobs: Jobs | None) -> tuple[JobHints, ...]:
    """Return the hints in a file, as one ``JobHints`` for each job. Raises ConfigError that names the fault.

    Job j has these arrays. ``dataset_j``: two ids, the first one and the one after the last. ``order_j``: the
    announced ids. ``known_j``: rows of two numbers, r and a: once the job has finished r reads, the first a
    ids of its order are announced. ``scores_j``: rows of scores for the dataset. ``scored_j``: for each of
    these rows, the read of the trace before which the row is posted.
    """
    numbers = sorted({int(found[2]) for name in arrays if (found := _NAME.fullmatch(name))})
    known = {0} if jobs is None else set(np.unique(jobs).tolist())
    for job in numbers:
        if job not in known:
            raise ConfigError(f"{path}: there are hints of job {job}, which reads nothing in this trace")
    return tuple(_job_hints(path, arrays, job) for job in numbers)


def _job_hints(path: Path, arrays: Arrays, job: int) -> JobHints:
    dataset = _whole(path, arrays, f"dataset_{job}", 1)
    if len(dataset) != 2 or dataset[0] > dataset[1]:
        raise ConfigError(f"{path}: dataset_{job} must be two ids, the first one and the one after the last")
    first, stop = dataset.tolist()
    order = _whole(path, arrays, f"order_{job}", 1) if f"order_{job}" in arrays else np.zeros(0, np.int64)
    if len(order) and not first <= order.min() <= order.max() < stop:
        raise ConfigError(f"{path}: order_{job} has ids that are not in dataset_{job}")
    known = (
        _whole(path, arrays, f"known_{job}", 2)
        if f"known_{job}" in arrays
        else np.array([[0, len(order)]], dtype=np.int64)
    )
    if known.shape[1:] != (2,) or not len(known) or known[0, 0] or (np.diff(known[:, 0]) < 0).any():
        raise ConfigError(
            f"{path}: known_{job} must be rows of finished reads, rising from 0, and announced reads"
        )
    if known[:, 1].max() > len(order):
        raise ConfigError(f"{path}: known_{job} announces more reads than order_{job} has")
    scores = scored = None
    if f"scores_{job}" in arrays:
        scored = _whole(path, arrays, f"scored_{job}", 1)
        scores = arrays[f"scores_{job}"]
        if scores.dtype.kind not in "fiu" or scores.shape != (len(scored), stop - first):
            raise ConfigError(
                f"{path}: scores_{job} must be numbers of shape ({len(scored)}, {stop - first}): a row"
                f" for each of scored_{job}, with a score for each id of dataset_{job}"
            )
        scores = scores.astype(np.float32)
        if np.isinf(scores).any() or (scores < 0).any():
            raise ConfigError(f"{path}: scores_{job} must be finite and not negative, nan where unknown")
        if (np.diff(scored) < 0).any():
            raise ConfigError(f"{path}: scored_{job} must not fall")
    return JobHints(
        job, first, stop, order.astype(np.uint32), known[:, 0].copy(), known[:, 1].copy(), scores, scored
    )


def _whole(path: Path, arrays: Arrays, name: str, dimensions: int) -> NDArray[np.int64]:
    if name not in arrays:
        raise ConfigError(f"{path}: the array {name} is missing")
    array = arrays[name]
    if array.dtype.kind not in "iu" or array.ndim != dimensions:
        raise ConfigError(f"{path}: {name} must hold whole numbers in {dimensions} dimensions")
    if len(array) and not 0 <= array.min() <= array.max() <= np.iinfo(np.int64).max:
        raise ConfigError(f"{path}: {name} holds numbers out of range")
    return array.astype(np.int64)
