"""Traces: the order of reads of objects, with job and epoch, and the files that hold them.

A file is an .npz with ``ids`` and, where they are known, ``sizes``, ``jobs``, ``epochs`` and ``weights``; or
the recording of a proxy.
"""

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import ConfigError

Ids = NDArray[np.uint32]
Jobs = NDArray[np.uint8]
Epochs = NDArray[np.uint16]
Weights = NDArray[np.float32]
Sizes = NDArray[np.int64]

_ARRAYS = {"ids": 1, "sizes": 1, "jobs": 1, "epochs": 1, "weights": 2}
_MOST_IDS = 1 << 28
_WRITE_IT = "write it with numpy.savez(path, ids=...)"


Arrays = dict[str, NDArray[Any]]
COLUMNS = {"objects": "u", "bytes": "u", "jobs": "u", "epochs": "u"}


def is_recording(arrays: Arrays) -> bool:
    """Return whether these are of a proxy (``[telemetry] trace``): for each read ``objects`` (the hash
    of the object), ``bytes``, ``jobs`` and ``epochs``.
    """
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


@dataclass(frozen=True, slots=True)
class Trace:
    """n reads of ``objects`` objects, in the order in which they came.

    ids: u32[n], each below ``objects``. sizes: i64[objects] bytes; None: all alike. jobs: u8[n]; None: one.
    epochs: u16[n], never falling within a job; None: not known. weights: f32[epochs, objects], the importance
    known while an epoch is read, nan where it is not; None: nothing is known.
    """

    ids: Ids
    objects: int
    sizes: Sizes | None = None
    jobs: Jobs | None = None
    epochs: Epochs | None = None
    weights: Weights | None = None

    @property
    def total_bytes(self) -> int:
        """Bytes of all objects; where sizes are not known, their number."""
        return self.objects if self.sizes is None else int(self.sizes.sum())

    @property
    def one_size(self) -> int | None:
        """The size of every object; None when they differ."""
        if self.sizes is None:
            return 1
        return int(self.sizes[0]) if (self.sizes == self.sizes[0]).all() else None

    def counted(self) -> NDArray[np.bool_]:
        """Return the reads that count: from each job's second epoch on; all if there is only one epoch."""
        if self.epochs is None:
            return np.ones(len(self.ids), dtype=np.bool_)
        jobs = np.zeros(len(self.ids), dtype=np.uint8) if self.jobs is None else self.jobs
        first = np.full(256, np.iinfo(np.uint16).max, dtype=np.uint16)
        np.minimum.at(first, jobs, self.epochs)
        later: NDArray[np.bool_] = self.epochs > first[jobs]
        return later if later.any() else ~later


def load_trace(path: Path) -> Trace:
    """Load a trace. Raises ConfigError that names the fault of the file."""
    arrays = _read(path)
    ids = _numbers(path, "ids", arrays["ids"], np.uint32)
    if not len(ids):
        raise ConfigError(f"{path}: ids is empty: there is nothing to simulate")
    for name in ("jobs", "epochs"):
        if name in arrays and len(arrays[name]) != len(ids):
            raise ConfigError(f"{path}: {name} has {len(arrays[name])} entries for {len(ids)} reads in ids")
    jobs, epochs = (
        None if name not in arrays else _numbers(path, name, arrays[name], dtype)
        for name, dtype in (("jobs", np.uint8), ("epochs", np.uint16))
    )
    if epochs is not None:
        _check_epochs(path, jobs, epochs)
    sizes = None if "sizes" not in arrays else _numbers(path, "sizes", arrays["sizes"], np.int64)
    if sizes is not None and sizes.min(initial=1) < 1:
        raise ConfigError(
            f"{path}: sizes[{int(sizes.argmin())}] is {sizes.min()}; an object has 1 byte or more"
        )
    weights = None if "weights" not in arrays else _weights(path, arrays["weights"], epochs)
    objects = _objects(path, ids, sizes, weights)
    if sizes is None and weights is None:
        # Ids that are never read are no objects: a cache's share refers to the objects that are read.
        present, ids = np.unique(ids, return_inverse=True)
        objects, ids = len(present), ids.astype(np.uint32)
    return Trace(ids, objects, sizes, jobs, epochs, weights)


def _read(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as opened:
            file = np.load(opened, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ConfigError(f"{path}: one array, not an .npz of named arrays; {_WRITE_IT}")
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path}: not an .npz of plain arrays ({error}); {_WRITE_IT}") from None
    if is_recording(arrays):
        return numbered(path, arrays)
    if "ids" not in arrays:
        found = ", ".join(arrays) or "nothing"
        raise ConfigError(f"{path}: the array ids is missing (found: {found}); {_WRITE_IT}")
    unknown = sorted(set(arrays) - set(_ARRAYS))
    if unknown:
        raise ConfigError(f"{path}: unknown array {unknown[0]}; known are {', '.join(_ARRAYS)}")
    for name, array in arrays.items():
        if array.ndim != _ARRAYS[name]:
            raise ConfigError(f"{path}: {name} has {array.ndim} dimensions; it must have {_ARRAYS[name]}")
    return arrays


def _numbers(path: Path, name: str, array: NDArray[Any], dtype: Any) -> NDArray[Any]:
    if array.dtype.kind not in "iu":
        raise ConfigError(f"{path}: {name} holds {array.dtype}; it must hold whole numbers")
    limits = np.iinfo(dtype)
    low, high = (int(array.min()), int(array.max())) if len(array) else (0, 0)
    if low < max(limits.min, 0) or high > limits.max:
        bad = low if low < 0 else high
        raise ConfigError(f"{path}: {name} holds {bad}; it must lie between 0 and {limits.max}")
    return array.astype(dtype, copy=False)


def _weights(path: Path, array: NDArray[Any], epochs: Epochs | None) -> Weights:
    if array.dtype.kind not in "fiu":
        raise ConfigError(f"{path}: weights holds {array.dtype}; it must hold numbers")
    if epochs is None:
        raise ConfigError(f"{path}: weights are by epoch, so the array epochs is needed too")
    if len(array) <= int(epochs.max()):
        raise ConfigError(f"{path}: weights has {len(array)} rows, but epochs goes up to {int(epochs.max())}")
    weights = array.astype(np.float32)
    if np.isinf(weights).any() or (weights < 0).any():
        raise ConfigError(f"{path}: weights must be finite and not negative; nan where nothing is known")
    return weights


def _check_epochs(path: Path, jobs: Jobs | None, epochs: Epochs) -> None:
    for job in [None] if jobs is None else np.unique(jobs).tolist():
        mine = np.flatnonzero(jobs == job) if job is not None else np.arange(len(epochs))
        falls = np.flatnonzero(np.diff(epochs[mine].astype(np.int64)) < 0)
        if len(falls):
            raise ConfigError(
                f"{path}: epochs falls at read {mine[falls[0] + 1]}; within a job it may only rise"
            )


def _objects(path: Path, ids: Ids, sizes: Sizes | None, weights: Weights | None) -> int:
    largest = int(ids.max())
    lengths = {"sizes": sizes, "weights": None if weights is None else weights[0]}
    known = {name: len(column) for name, column in lengths.items() if column is not None}
    for name, length in known.items():
        if largest >= length:
            raise ConfigError(f"{path}: {name} is for {length} ids, but ids holds {largest}")
    if len(set(known.values())) > 1:
        raise ConfigError(
            f"{path}: sizes is for {known['sizes']} ids and weights for {known['weights']}; they must agree"
        )
    objects = max(known.values(), default=largest + 1)
    if known and objects > _MOST_IDS:
        raise ConfigError(f"{path}: {objects} ids are too many; number objects from 0, at most {_MOST_IDS}")
    return objects
