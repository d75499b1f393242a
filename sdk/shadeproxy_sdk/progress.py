"""Counts this rank's position in its epoch, and how long the rank waited and computed since the last report.
No I/O.

The position counts the samples that training has *finished*, not those that the sampler has yielded, because
DataLoader workers take samples ahead of training.
"""

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from shadeproxy_sdk.fork_lock import ForkLock

_MOST_WRAPPERS = 4
_COMPARED = 16
"""Number of entries of a list whose types are compared. To compare all of a long list would cost milliseconds
at each step.
"""


class Step(NamedTuple):
    """A change of position to be reported. ``position``: number of samples of ``epoch`` that this rank has
    finished. ``stall_s``: seconds that it waited since the last Step. ``compute_s``: seconds that it computed
    since then; 0 if that was not measured.
    """

    epoch: int
    position: int
    stall_s: float
    compute_s: float = 0.0


def loader_settings(loader: Any) -> dict[str, int] | None:
    """Return the settings by which torch's DataLoader ``loader`` (or its iterator) reads: ``workers``,
    ``batch_size``, ``prefetch_factor``, and ``reads_at_once`` if its dataset tells how many samples of a
    batch it reads at a time. Return None if ``loader`` is something else.
    """
    workers = getattr(loader, "num_workers", getattr(loader, "_num_workers", None))
    if not isinstance(workers, int):
        return None
    sampler = getattr(loader, "batch_sampler", getattr(loader, "_index_sampler", None))
    settings = {
        "batch_size": getattr(loader, "batch_size", None) or getattr(sampler, "batch_size", None),
        "prefetch_factor": getattr(loader, "prefetch_factor", getattr(loader, "_prefetch_factor", None)),
        "reads_at_once": _reads_at_once(getattr(loader, "dataset", getattr(loader, "_dataset", None))),
    }
    return {"workers": workers} | {name: value for name, value in settings.items() if isinstance(value, int)}


def _reads_at_once(dataset: Any) -> int | None:
    for _ in range(_MOST_WRAPPERS):
        if isinstance(reads := getattr(dataset, "reads_at_once", None), int):
            return reads
        dataset = getattr(dataset, "dataset", None)  # A Subset wraps the whole dataset.
    return None


def count_ids(batch: Any) -> int:
    """Return the number of sample ids in ``batch``, a tuple or list whose last element has the ids, or
    anything else with an entry for each sample; 0 if there are none. A dict, the bytes of a sample, or a
    group of tensors has a length too, but not that of the batch.
    """
    try:
        last = batch[-1] if isinstance(batch, tuple | list) and batch else None
        if isinstance(last, Sequence):
            kinds = {type(entry) for entry in islice(last, _COMPARED)}
            return (
                len(last) if len(kinds) == 1 and not isinstance(last, str | bytes) and _is_one(last[0]) else 0
            )
        return len(last) if hasattr(last, "shape") else 0  # type: ignore[arg-type]  # a length may be missing
    except Exception:  # noqa: BLE001 (the type of a user's batch may raise anything)
        return 0


def _is_one(entry: Any) -> bool:
    """Return whether ``entry`` is of one sample: a number, a text or a dict (as of boxes in a
    picture), and no list or vector.
    """
    return isinstance(entry, str | dict) or not getattr(entry, "ndim", hasattr(entry, "__len__"))


class Progress:
    """Thread-safe counters of one rank. Several ways of counting may be used at once; then the furthest of
    their positions counts.

    ``reported``: number of samples of this epoch whose loss was reported. Only the training loop adds to it,
    without a call, because a call would cost the loop 2.5 us a step.
    """

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._unsent: list[Step] = []
        self.loader: dict[str, int] | None = None
        """The settings of this rank's loader, as from ``loader_settings``; None if they are not known."""
        self.epoch = 0
        self._length = 0
        self._clear(0)

    def _clear(self, start: int) -> None:
        self._start = start
        self.reported = self._timed = self._told = self._given = 0
        self._counts = False
        self._stall_s = self._estimated_s = self._compute_s = 0.0
        self._sent = 0

    def begin(self, epoch: int, start: int, length: int = 0) -> None:
        """Begin an epoch of ``length`` samples (0: unknown), at sample ``start`` if the epoch is resumed.

        If the epoch is resumed, its start is reported at once, because the samples before it will not be
        read. Unsent Steps of the previous epoch are still sent.
        """
        with self._lock:
            self._note()
            # A loop may give integers of NumPy, which JSON cannot hold.
            self.epoch, self._length = int(epoch), int(length)
            self._clear(int(start))

    @property
    def position(self) -> int | None:
        """Number of samples finished in this epoch; None if no counter has moved since it began, and none
        will move when the present batch is finished. It is limited to the epoch's length, because a sample
        may be reported twice.
        """
        furthest = max(self.reported, self._timed, self._told) or self._given
        if not furthest and not self._counts:
            return None
        position = self._start + furthest
        return min(position, self._length) if self._length else position

    def comes(self, batch: Any) -> int:
        """Note that a timed loader has yielded ``batch``. Return how many samples it counts for once it is
        finished.
        """
        samples = count_ids(batch)
        # The first batch of an epoch is under way: no sample is finished, though workers have taken many.
        self._counts = self._counts or samples > 0
        return samples

    def timed(self, samples: int, stall_s: float, compute_s: float = 0.0) -> None:
        """Count ``samples`` more samples from a timed loader. The loop waited ``stall_s`` seconds for them,
        and was busy with them for ``compute_s`` seconds.
        """
        with self._lock:
            self._timed += samples
            self._stall_s += stall_s
            self._compute_s += compute_s

    def estimated(self, stall_s: float) -> None:
        """Add ``stall_s`` seconds of waiting. They are an estimate, for a loop that does not measure its
        waits.
        """
        with self._lock:
            self._stall_s += stall_s
            self._estimated_s += stall_s

    def reads_by(self, loader: Any) -> None:
        """Keep the settings of ``loader``, if that is a DataLoader or its iterator."""
        self.loader = loader_settings(loader) or self.loader

    def told(self, position: int, stall_s: float) -> None:
        """Set the ``position`` that the user reports, and add ``stall_s`` seconds of waiting. These seconds
        are measured, so they replace as many seconds that were estimated in this epoch. Raises ValueError for
        a number that is negative or not finite, and then changes nothing.
        """
        if position < 0 or not 0.0 <= stall_s < math.inf:
            raise ValueError(
                f"position {position} and stall_s {stall_s}: give how many samples of the epoch are "
                "finished, and how many seconds the loop waited since the last call"
            )
        with self._lock:
            self._told = position - self._start
            known_s = min(stall_s, self._estimated_s)
            self._estimated_s -= known_s
            self._stall_s += stall_s - known_s

    def gave(self, position: int) -> None:
        """Set the position as the sampler counts it. This count is used only if no other counter has moved.
        No lock is needed, because only one thread calls this.
        """
        self._given = max(int(position) - self._start, 0)

    def take(self) -> list[Step]:
        """Return the unsent Steps in order, at most one for each epoch."""
        with self._lock:
            self._note()
            unsent, self._unsent = self._unsent, []
        return unsent

    def put_back(self, steps: list[Step]) -> None:
        """Put back ``steps`` that did not arrive, so that the next ``take`` returns them."""
        with self._lock:
            self._unsent = steps + self._unsent

    def _note(self) -> None:
        """Make a Step of all changes in this epoch since the last Step. If a Step of this epoch is unsent,
        merge both into one.
        """
        position = self._start if self.position is None else self.position
        if position == self._sent and not self._stall_s and not self._compute_s:
            return
        waited_s, computed_s = self._stall_s, self._compute_s
        if self._unsent and self._unsent[-1].epoch == self.epoch:
            unsent = self._unsent.pop()
            waited_s, computed_s = waited_s + unsent.stall_s, computed_s + unsent.compute_s
        self._unsent.append(Step(self.epoch, position, waited_s, computed_s))
        self._sent, self._stall_s, self._compute_s = position, 0.0, 0.0
