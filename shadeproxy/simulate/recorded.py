"""Turns the recording of a running proxy (``[telemetry] trace``) into the arrays of a trace.

A recording has for each read ``objects`` (the hash of the object), ``bytes``, ``jobs`` and ``epochs``.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import ConfigError

Arrays = dict[str, NDArray[Any]]
COLUMNS = {"objects": "u", "bytes": "u", "jobs": "u", "epochs": "u"}


def is_recording(arrays: Arrays) -> bool:
    return "objects" in arrays


def numbered(path: Path, arrays: Arrays) -> Arrays:
    """Return ``ids`` in the order of the hashes, and ``sizes``: the most bytes of one read of an object.

    Within a job the epoch never falls: a read that is late for its own counts for the present one. ``jobs``
    and ``epochs`` are left out where they are all alike. Raises ConfigError.
    """
    if set(arrays) != set(COLUMNS) or len({array.shape for array in arrays.values()}) > 1:
        raise ConfigError(f"{path}: not a recording as this version writes it; record it again")
    if any(array.ndim != 1 or array.dtype.kind != COLUMNS[name] for name, array in arrays.items()):
        raise ConfigError(f"{path}: not a recording as this version writes it; record it again")
    jobs, epochs = arrays["jobs"], arrays["epochs"].copy()
    objects, ids = np.unique(arrays["objects"], return_inverse=True)
    sizes = np.ones(len(objects), dtype=np.int64)
    np.maximum.at(sizes, ids, arrays["bytes"].astype(np.int64))
    for job in np.unique(jobs):
        mine = jobs == job
        epochs[mine] = np.maximum.accumulate(epochs[mine])
    found: Arrays = {"ids": ids.astype(np.uint32), "sizes": sizes}
    if len(np.unique(jobs)) > 1:
        found["jobs"] = jobs
    if len(np.unique(epochs)) > 1:
        found["epochs"] = epochs
    return found
