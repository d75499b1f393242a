"""Reads trace files.

A trace file is an .npz file of one of two kinds. The first has ``ids`` and, as far as they are known, the
other columns of ``Trace`` and hints of jobs (hint_arrays.py). The second is the recording of a proxy
(recorded.py).
"""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import ConfigError
from shadeproxy.simulate.hint_arrays import is_hint, job_hints
from shadeproxy.simulate.recorded import is_recording, numbered
from shadeproxy.simulate.trace import Epochs, Ids, Jobs, Times, Trace, Weights

_BY_READ = {"jobs": np.uint8, "epochs": np.uint16, "sources": np.uint8, "ranks": np.uint16}
_OTHERS = {"ids": 1, "sizes": 1, "weights": 2, "times": 1, "prefixes": 1, "stock": 1}
_ARRAYS = _OTHERS | dict.fromkeys(_BY_READ, 1)
_MOST_IDS = 1 << 28
_ONE_ARRAY = b"\x93NUMPY"
# Errors that zipfile and numpy raise for damaged files: RuntimeError for an encrypted file, and its subclass
# NotImplementedError for an unknown compression method.
_DAMAGE = (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
_WRITE_IT = "write it with numpy.savez(path, ids=...)"


def load_trace(path: Path) -> Trace:
    """Load a trace. Raises ConfigError that names the fault of the file."""
    arrays = _read(path)
    ids = _numbers(path, "ids", arrays["ids"], np.uint32)
    if not len(ids):
        raise ConfigError(f"{path}: ids is empty: there is nothing to simulate")
    columns = _by_read(path, arrays, len(ids))
    jobs, epochs = columns.get("jobs"), columns.get("epochs")
    if epochs is not None:
        _check_epochs(path, jobs, epochs)
    sizes = None if "sizes" not in arrays else _numbers(path, "sizes", arrays["sizes"], np.int64)
    if sizes is not None and sizes.min(initial=1) < 1:
        raise ConfigError(
            f"{path}: sizes[{int(sizes.argmin())}] is {sizes.min()}; an object has 1 byte or more"
        )
    weights = None if "weights" not in arrays else _weights(path, arrays["weights"], epochs)
    prefixes = None if "prefixes" not in arrays else _numbers(path, "prefixes", arrays["prefixes"], np.uint16)
    objects = _objects(path, ids, {"sizes": sizes, "weights": weights, "prefixes": prefixes})
    times = None if "times" not in arrays else _times(path, arrays["times"], len(ids))
    stock = _stock(path, arrays, jobs)
    hints = job_hints(path, arrays, jobs)
    for hint in hints:
        if hint.stop > objects:
            raise ConfigError(f"{path}: dataset_{hint.job} ends at {hint.stop}, but there are {objects} ids")
    if sizes is None and weights is None and prefixes is None and not hints:
        # Number only the ids that are read, because a cache size such as 20 % means a share of these objects.
        present, ids = np.unique(ids, return_inverse=True)
        objects, ids = len(present), ids.astype(np.uint32)
    return Trace(
        ids,
        objects,
        sizes=sizes,
        weights=weights,
        times=times,
        prefixes=prefixes,
        prefix_names=tuple(arrays.get("prefix_names", np.zeros(0, np.str_)).tolist()),
        job_names=tuple(arrays.get("job_names", np.zeros(0, np.str_)).tolist()),
        stock=stock,
        hints=hints,
        **columns,
    )


def _by_read(path: Path, arrays: Mapping[str, NDArray[Any]], reads: int) -> dict[str, Any]:
    """Return those columns in ``arrays`` that have a whole number for each read. Raises ConfigError."""
    for name in _BY_READ:
        if name in arrays and len(arrays[name]) != reads:
            raise ConfigError(f"{path}: {name} has {len(arrays[name])} entries for {reads} reads in ids")
    return {
        name: _numbers(path, name, arrays[name], dtype) for name, dtype in _BY_READ.items() if name in arrays
    }


def _stock(path: Path, arrays: Mapping[str, NDArray[Any]], jobs: Jobs | None) -> tuple[int, ...]:
    numbers = _numbers(path, "stock", arrays.get("stock", np.zeros(0, np.uint8)), np.uint8).tolist()
    if numbers and jobs is None and numbers != [0]:
        raise ConfigError(f"{path}: stock names other numbers than 0, but there is no array jobs")
    return tuple(numbers)


def _read(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as opened:
            _check_archive(path, opened)
            file = np.load(opened, allow_pickle=False)
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except _DAMAGE as error:
        raise ConfigError(f"{path}: not an .npz of plain arrays ({error}); {_WRITE_IT}") from None
    if is_recording(arrays):
        return numbered(path, arrays)
    if "ids" not in arrays:
        found = ", ".join(arrays) or "nothing"
        raise ConfigError(f"{path}: the array ids is missing (found: {found}); {_WRITE_IT}")
    unknown = sorted(name for name in set(arrays) - set(_ARRAYS) if not is_hint(name))
    if unknown:
        raise ConfigError(f"{path}: unknown array {unknown[0]}; known are {', '.join(_ARRAYS)}")
    for name, array in arrays.items():
        dimensions = _ARRAYS.get(name, array.ndim)
        if array.ndim != dimensions:
            raise ConfigError(f"{path}: {name} has {array.ndim} dimensions; it must have {dimensions}")
    return arrays


def _check_archive(path: Path, opened: BinaryIO) -> None:
    """Check that a file that was just opened is an archive. Raises ConfigError."""
    start = opened.read(len(_ONE_ARRAY))
    if start == _ONE_ARRAY:
        raise ConfigError(f"{path}: one array, not an .npz of named arrays; {_WRITE_IT}")
    if not zipfile.is_zipfile(opened):
        raise ConfigError(f"{path}: not an .npz, or cut short; {_WRITE_IT}")
    opened.seek(0)


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


def _times(path: Path, array: NDArray[Any], reads: int) -> Times:
    if array.dtype.kind not in "fiu" or len(array) != reads:
        raise ConfigError(f"{path}: times must hold the seconds of each of the {reads} reads")
    times = array.astype(np.float64)
    if not np.isfinite(times).all() or (np.diff(times) < 0).any():
        raise ConfigError(f"{path}: times must be finite seconds that never fall")
    return times


def _objects(path: Path, ids: Ids, columns: Mapping[str, NDArray[Any] | None]) -> int:
    """Return the number of objects. ``columns``: the columns that have a value for each object."""
    largest = int(ids.max())
    known = {name: column.shape[-1] for name, column in columns.items() if column is not None}
    for name, length in known.items():
        if largest >= length:
            raise ConfigError(f"{path}: {name} is for {length} ids, but ids holds {largest}")
    if len(set(known.values())) > 1:
        (one, length), *_, (other, more) = known.items()
        raise ConfigError(f"{path}: {one} is for {length} ids and {other} for {more}; they must agree")
    objects = max(known.values(), default=largest + 1)
    if known and objects > _MOST_IDS:
        raise ConfigError(f"{path}: {objects} ids are too many; number objects from 0, at most {_MOST_IDS}")
    return objects
