"""Announces the order of any sampler to the proxy (``shade.announce``), for training loops that keep their
own Dataset.

Law: ``Announced`` yields exactly the items of the wrapped sampler, and leaves random number generators in the
same state as that sampler would. It raises nothing into a running loop: if an order cannot be announced, it
logs a warning. Coming epochs are announced early only if the sampler draws from a generator of its own, or
from none. If an order that was announced early proves wrong when its epoch begins, the right order replaces
it, and no further epoch is announced early.
"""

import copy
import logging
import operator
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from shadeproxy_sdk.errors import ConfigError
from shadeproxy_sdk.job import OPEN_JOBS, Job
from shadeproxy_sdk.state import check_count, check_job

_LOG = logging.getLogger("shadeproxy_sdk")
_ITEMS_ALONE = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def announce(
    sampler: Iterable[Any],
    job: Job | None = None,
    *,
    ids: ArrayLike | None = None,
    ahead: int | None = None,
    announce_epochs: int = 2,
) -> "Announced":
    """Return a sampler that yields the items of ``sampler`` and announces its order. Pass it to the
    DataLoader in place of ``sampler``.

    ``sampler``: yields indices, or batches of them (lists, arrays, tensors) like a BatchSampler. ``job``: the
    job that the order belongs to; by default the only open job of this process. ``ids``: the sample id, in
    ``job``'s dataset, of each index: integers (n,), like ``subset.indices``. None means that indices are
    sample ids. ``ahead``: number of indices that the loader takes before training needs them: num_workers x
    prefetch_factor x batch_size. With ``ahead``, this sampler reports the position of training. Without it,
    the proxy infers the position from the reads and from the samples that ``job.report``, ``job.timed`` or
    ``job.progress`` count.
    ``announce_epochs``: number of coming epochs to announce early. That works only for samplers whose draws
    can be computed early: DistributedSampler, torch's random samplers with a generator of their own,
    SequentialSampler, and BatchSamplers of them.

    Each iteration first draws all items of ``sampler``, and then yields them. So memory holds one epoch of
    items, and the first batch waits until they are drawn. A sampler that chooses its items while training
    goes on, for example by the latest losses, then chooses all of them before the epoch.

    Raises ConfigError for a sampler without a length. If ``job`` is None, raises it also unless exactly one
    job is open.
    """
    job = OPEN_JOBS.only() if job is None else job
    return Announced(sampler, job, ids=ids, ahead=ahead, announce_epochs=announce_epochs)


class Announced(Sampler[Any]):
    """The sampler that ``announce`` returns. Its epoch is the one given to ``set_epoch``. If that is never
    called, each iteration is the next epoch, from 0 on. It has all attributes of the wrapped sampler except
    ``state_dict`` and ``load_state_dict``: once an epoch is drawn, the wrapped sampler is at its end.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        job: Job,
        *,
        ids: ArrayLike | None,
        ahead: int | None,
        announce_epochs: int,
    ) -> None:
        if not _has_length(sampler):
            raise ConfigError(
                f"{type(sampler).__name__} has no length, so its epochs have no end: give it a __len__"
            )
        check_job(job)
        check_count("announce_epochs", announce_epochs)
        if ahead is not None:
            check_count("ahead", ahead)
        self.sampler = sampler
        self.job = job
        self._ids = None if ids is None else _checked(ids)
        self._ahead = ahead
        self._announce_epochs = announce_epochs
        self._epoch = 0
        self._twin: Any = None
        self._foretold: dict[int, NDArray[np.uint32]] = {}
        self._complained = False

    def __len__(self) -> int:
        length: int = len(self.sampler)  # type: ignore[arg-type]  # checked at construction
        return length

    def __getattr__(self, name: str) -> Any:
        # Unpickling asks for the attribute ``sampler`` before ``__init__`` has run.
        if name in {"sampler", "state_dict", "load_state_dict"}:
            raise AttributeError(name)
        return getattr(self.sampler, name)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, also on the wrapped sampler. If that is a BatchSampler, set it
        on the sampler inside it.
        """
        self._epoch = epoch
        _set_epoch(self.sampler, epoch)

    def __iter__(self) -> Iterator[Any]:
        """Yield the sampler's items. Nothing is drawn before the loader asks for an item."""
        states: list[Any] = []
        return AnnouncedItems(self.sampler, self._items(states), states)

    def _items(self, states: list[Any]) -> Iterator[Any]:
        # The loop may have set the epoch on the wrapped sampler instead of on this one, so use the later of
        # both epochs.
        epoch = max(self._epoch, _number(getattr(_drawing(self.sampler), "epoch", 0)))
        self._epoch = epoch + 1
        items = iter(self.sampler)
        # Ask for one item more than the length says: some samplers draw from their generator once more at
        # their end, and the state of that generator must be the same as without this class.
        drawn = list(islice(items, 1))
        states.append(_state(self.sampler))
        drawn += islice(items, len(self))
        self._begin(epoch, drawn)
        given = 0
        try:
            for item in drawn:
                yield item
                if self._ahead is not None:
                    given += len(_indices(item))
                    self.job.gave(given - self._ahead)
            yield from items
        finally:
            self.job.exhausted(epoch)

    def _begin(self, epoch: int, drawn: list[Any]) -> None:
        try:
            order = self._sample_ids(drawn)
            foretold = self._foretold.pop(epoch, None)
            if foretold is not None and np.array_equal(foretold, order):
                order = foretold
            elif foretold is not None:
                self._announce_epochs = 0
            self._foretold = {known: value for known, value in self._foretold.items() if known > epoch}
            self._twin = _twin(self.sampler) if self._announce_epochs else None
            self.job.begin(epoch, length=order.size, ahead=lambda: self._foretell(epoch), sampler=self)
            self.job.announce(epoch, order, dealt=self._is_dealt())
        except Exception as error:  # noqa: BLE001 (the law: nothing we do may stop training; it is logged)
            if not self._complained:
                self._complained = True
                _LOG.warning("Job %s: the order is not announced: %s", self.job.name, error)

    def _is_dealt(self) -> bool:
        """Return whether the sampler deals one permutation to the ranks of the job."""
        drawing = _drawing(self.sampler)
        if type(drawing) is not DistributedSampler or self._ids is not None:
            return False
        return drawing.num_replicas == self.job.world_size and len(drawing.dataset) == len(self.job.manifest)  # type: ignore[arg-type]  # such a sampler has one

    def _sample_ids(self, drawn: list[Any]) -> NDArray[np.uint32]:
        flat = chain.from_iterable(map(_indices, drawn))
        indices = np.fromiter(map(int, flat), dtype=np.int64)
        if self._ids is not None:
            indices = self._ids[indices]
        samples = len(self.job.manifest)
        if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < samples:
            raise ValueError(
                f"an index is outside 0 .. {samples - 1}, the ids of {self.job.manifest!r}: give "
                "announce(ids=...) the sample id of each index"
            )
        return indices.astype(np.uint32)

    def _foretell(self, epoch: int) -> None:
        """Announce the epochs after ``epoch``. Only the job's background thread calls this. Once ``_begin``
        has made the copy of the sampler (``_twin``), the copy belongs to that thread alone.
        """
        twin, self._twin = self._twin, None
        if twin is None:
            return
        for coming in range(epoch + 1, epoch + 1 + self._announce_epochs):
            _set_epoch(twin, coming)
            order = self._sample_ids(list(twin))
            known = self._foretold.get(coming)
            if known is None or not np.array_equal(order, known):
                self._foretold[coming] = order
                self.job.announce(coming, order)


class AnnouncedItems(Iterator[Any]):
    """The iterator of an Announced. ``items``: the items of an epoch of ``sampler``, not drawn yet.
    ``states``: gets the state of ``sampler`` when its first item is drawn; None if it has no state.

    This iterator has a state for StatefulDataLoader of torchdata: the number of items that were yielded, and
    the state of ``sampler``, from which the epoch's other items can be drawn again.
    """

    def __init__(self, sampler: Any, items: Iterator[Any], states: list[Any]) -> None:
        self._sampler = sampler
        self._items = items
        self._states = states
        self._given = self._again = 0

    def __next__(self) -> Any:
        for _ in islice(self._items, self._again):
            pass
        self._again = 0
        item = next(self._items)
        self._given += 1
        return item

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which a loader goes on behind the items that were yielded."""
        return {"given": self._given, "sampler": self._states[0] if self._states else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on behind the items that were yielded when ``state`` was saved. If these were all, this iterator
        is at its end, and the sampler will draw the next epoch.
        """
        self._given = self._again = state["given"]
        if state["sampler"] is not None:
            self._states.append(state["sampler"])
            self._sampler.load_state_dict(state["sampler"])
            # The restored sampler does not yield the epoch's first item.
            self._again = max(self._given - 1, 0)
        if self._given >= len(self._sampler):
            self._items = iter(())
            for _ in self._sampler:
                pass


def _has_length(sampler: Any) -> bool:
    """Return whether ``sampler`` has a length. A BatchSampler has none if the sampler inside it has none."""
    try:
        len(sampler)
    except (TypeError, NotImplementedError):
        return False
    except Exception:  # noqa: BLE001 (it may be known only when the epoch begins)
        return True
    return True


def _state(sampler: Any) -> Any:
    """Return a copy of the state of ``sampler``; None if it has none, or cannot say it."""
    try:
        return copy.deepcopy(sampler.state_dict()) if hasattr(sampler, "load_state_dict") else None
    except Exception:  # noqa: BLE001 (the law: most loops never resume by this state, and must not end for it)
        return None


def _checked(ids: ArrayLike) -> NDArray[np.int64]:
    """Return ``ids`` as an array. Raises ConfigError unless they are integers (n,)."""
    found = np.asarray(ids)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise ConfigError(
            f"ids {found.dtype}{list(found.shape)}: give one sample id, an integer, for each index"
        )
    return found.astype(np.int64)


def _indices(item: Any) -> Sequence[Any]:
    """Return the indices in ``item``, which a sampler yielded: one index, or a batch of them."""
    if isinstance(item, Sequence):
        return item
    return item.tolist() if getattr(item, "ndim", 0) else (item,)


def _drawing(sampler: Any) -> Any:
    """Return the sampler that draws the indices: ``sampler`` itself, or the sampler inside a BatchSampler."""
    return sampler.sampler if isinstance(sampler, BatchSampler) else sampler


def _number(epoch: Any) -> int:
    """Return a sampler's epoch as an int, whatever type of integer it is; 0 if it is no integer."""
    try:
        return operator.index(epoch)
    except Exception:  # noqa: BLE001 (the law: the loop's sampler is not ours, and nothing is raised into it)
        return 0


def _set_epoch(sampler: Any, epoch: int) -> None:
    told = sampler if hasattr(sampler, "set_epoch") else _drawing(sampler)
    if hasattr(told, "set_epoch"):
        told.set_epoch(epoch)


def _twin(sampler: Any) -> Any:
    """Return an independent copy of ``sampler`` that draws the same next items, or None if that is not
    possible. A subclass of torch's samplers is not copied, because it may draw in another way.
    """
    kind = type(sampler)
    if kind in {DistributedSampler, SequentialSampler}:
        return copy.copy(sampler)
    if kind in _ITEMS_ALONE and sampler.generator is not None:
        twin = copy.copy(sampler)
        twin.generator = torch.Generator(sampler.generator.device)
        twin.generator.set_state(sampler.generator.get_state())
        return twin
    if kind is BatchSampler:
        inner = _twin(sampler.sampler)
        return None if inner is None else BatchSampler(inner, sampler.batch_size, sampler.drop_last)
    return None
