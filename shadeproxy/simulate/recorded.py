"""Reads recordings of a proxy (``[telemetry] trace``) as the arrays of a trace.

For each read, version 2 has its object, bytes, epoch, time, source, prefix group and reader
(telemetry/recording.py). Version 1 had only object, bytes, job and epoch.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import ConfigError
from shadeproxy.telemetry.recording import GROUP_BITS, NO_GROUP, SOURCES, VERSION

Arrays = dict[str, NDArray[Any]]

_FIRST = {"objects": "u", "bytes": "u", "jobs": "u", "epochs": "u"}
_SECOND = {"objects": "u", "bytes": "u", "readers": "u", "epochs": "u", "times_ms": "u", "places": "u"}
_TABLES = {"version": "i", "reader_jobs": "u", "reader_ranks": "u", "job_names": "U", "group_names": "U"}


def is_recording(arrays: Arrays) -> bool:
    """Return whether these arrays are the recording of a proxy. A recording has an array ``objects``, with
    the hash of the object of each read.
    """
    return "objects" in arrays


def numbered(path: Path, arrays: Arrays) -> Arrays:
    """Return the recording as arrays of a trace, with object hashes replaced by small numbers, ``ids``.

    ``sizes``: for each object, the largest number of bytes that one read of it returned. Within a job the
    epoch never falls: a late read of an earlier epoch is counted in the present one. ``jobs``, ``epochs`` and
    ``prefixes`` are left out if all their values are equal. In a recording of version 2, reads that name no
    job count as those of a stock client, which gives no hints. Raises ConfigError.
    """
    version = 2 if "version" in arrays else 1
    columns = _SECOND if version == VERSION else _FIRST
    tables = _TABLES if version == VERSION else {}
    kinds = columns | tables
    if set(arrays) != set(kinds) or len({arrays[name].shape for name in columns}) > 1:
        raise _unlike(path)
    if any(arrays[name].ndim != 1 or arrays[name].dtype.kind != kind for name, kind in kinds.items()):
        raise _unlike(path)
    objects, ids = np.unique(arrays["objects"], return_inverse=True)
    sizes = np.ones(len(objects), dtype=np.int64)
    np.maximum.at(sizes, ids, arrays["bytes"].astype(np.int64))
    found: Arrays = {"ids": ids.astype(np.uint32), "sizes": sizes}
    jobs = arrays["jobs"] if version == 1 else _second(path, arrays, ids, found)
    epochs = arrays["epochs"].copy()
    for job in np.unique(jobs):
        mine = jobs == job
        epochs[mine] = np.maximum.accumulate(epochs[mine])
    if len(present := np.unique(jobs)) > 1:
        found["jobs"] = jobs
    elif version == VERSION:
        found["job_names"] = found["job_names"][present]
    if len(np.unique(epochs)) > 1:
        found["epochs"] = epochs
    return found


def _second(path: Path, arrays: Arrays, ids: NDArray[np.intp], found: Arrays) -> NDArray[np.uint8]:
    """Add to ``found`` the arrays that only a recording of version 2 gives. Return the job of each read."""
    readers, places, ranks = arrays["readers"], arrays["places"], arrays["reader_ranks"]
    jobs_of, names = arrays["reader_jobs"], arrays["job_names"].tolist()
    sources, groups = places >> GROUP_BITS, places & NO_GROUP
    if (
        arrays["version"].tolist() != [VERSION]
        or len(jobs_of) != len(ranks)
        or readers.max(initial=0) >= len(jobs_of)
        or jobs_of.max(initial=0) >= len(names)
        or sources.max(initial=0) >= len(SOURCES)
    ):
        raise _unlike(path)
    jobs: NDArray[np.uint8] = jobs_of[readers]
    found["times"] = np.maximum.accumulate(arrays["times_ms"]) / 1000.0
    found["sources"] = sources.astype(np.uint8)
    found["ranks"] = ranks[readers]
    if "" in names:
        # If all reads are of one job, the array jobs will be left out; a trace without it has only job 0.
        stock = names.index("") if len(np.unique(jobs)) > 1 else 0
        found["stock"] = np.array([stock], dtype=np.uint8)
    prefixes = np.full(len(found["sizes"]), NO_GROUP, dtype=np.uint16)
    known = groups != NO_GROUP
    prefixes[ids[known]] = groups[known]
    if len(np.unique(prefixes)) > 1:
        found["prefixes"] = prefixes
    found["prefix_names"], found["job_names"] = arrays["group_names"], arrays["job_names"]
    return jobs


def _unlike(path: Path) -> ConfigError:
    return ConfigError(f"{path}: not a recording as this version writes it; record it again")
