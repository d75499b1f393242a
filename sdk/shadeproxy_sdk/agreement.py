"""Notices ranks that do not share the samples of an epoch as their samplers mean it.

If samplers draw from different seeds, ranks read some samples several times in an epoch and never read
others, and no rank can see that alone. The proxy has the orders of all ranks, and counts the different
samples in them. So rank 0 asks the proxy, until the orders of one epoch were complete and fitted together. If
a framework deals the batches of a loader whose sampler has dealt them already, most samples are never read;
the loader shows that. Law: nothing here is raised or makes training wait.
"""

import json
import logging
from typing import Any, NamedTuple

import numpy as np

from shadeproxy_sdk.manifest import Manifest
from shadeproxy_sdk.progress import Progress
from shadeproxy_sdk.registration import Registration

_LOG = logging.getLogger("shadeproxy_sdk")
_ENOUGH = 2
"""The number of answers that must show a difference. After a restart, the proxy may for a moment have the
order of a rank that was killed.
"""
_MOST_QUESTIONS = 100
"""After so many answers rank 0 gives up, as when other ranks announce their orders to other proxies."""
_MOST_WRAPPERS = 5


class _EpochOrder(NamedTuple):
    """The expected orders of an epoch: how many ids all ranks announce, and how many of them differ."""

    epoch: int
    ids: int
    different: int


class RankAgreement:
    """Compares the orders of all ranks with what they must be if one permutation was dealt to the ranks."""

    def __init__(
        self, proxy: Registration, manifest: Manifest, progress: Progress, *, rank: int, world_size: int
    ) -> None:
        self._proxy = proxy
        self._manifest = manifest
        self._progress = progress
        self._world_size = world_size
        self._warns = rank == 0 and world_size > 1  # One rank's warning is enough.
        self._questions_left = _MOST_QUESTIONS if self._warns else 0
        self._expected: _EpochOrder | None = None
        self._differences = 0

    def reads_by(self, loader: Any) -> None:
        """Note that this rank reads by ``loader``, a DataLoader or its iterator. If a framework deals the
        loader's batches to the ranks once more, warn once.
        """
        self._progress.reads_by(loader)
        if self._warns and deals_again(loader):
            self._warns = False
            _LOG.warning(
                "Job %s: the batches of the loader are dealt to the ranks a second time, so samples are left "
                "out in each epoch. The sampler deals them already: give Lightning's Trainer "
                "use_distributed_sampler=False; do not let accelerate prepare the loader; with Trainer of "
                "Hugging Face, use ShadeTrainerMixin",
                self._proxy.name,
            )

    def expect(self, epoch: int, length: int) -> None:
        """Expect that one permutation of ``epoch`` is dealt, in ``length`` ids for each rank."""
        if self._questions_left:
            ids = length * self._world_size
            self._expected = _EpochOrder(epoch, ids, min(ids, len(self._manifest)))

    def check(self) -> None:
        """Ask the proxy if that is due. If the orders do not fit together, warn once. Only the background
        thread calls this.
        """
        expected, progress = self._expected, self._progress
        # Once a rank has finished a batch, all ranks have announced the epoch: they train in lock step.
        if not self._questions_left or expected is None:
            return
        if progress.epoch != expected.epoch or not progress.position:
            return
        self._questions_left -= 1
        found = self._different(expected)
        if found is None:
            return
        # The orders may be padded with a few ids, and the manifest may name a sample twice.
        if found + self._world_size >= expected.different or found >= expected.different - self._repeated():
            self._questions_left = 0
            return
        self._differences += 1
        if self._differences == _ENOUGH:
            self._questions_left = 0
            _LOG.warning(
                "Job %s: all ranks together read only %d different samples in epoch %d, not %d, because "
                "their samplers draw differently. Give the samplers of all ranks the same seed and settings",
                self._proxy.name,
                found,
                expected.epoch,
                expected.different,
            )

    def _different(self, expected: _EpochOrder) -> int | None:
        """Return how many different samples the orders of all ranks have; None if that is not known yet."""
        answer = self._proxy.fetch("")
        if answer is None:
            return None
        try:
            order = json.loads(answer.body)["order"]
            complete = order["epochs"].get(str(expected.epoch)) == expected.ids
            return int(order["distinct"]) if complete and order["epoch"] == expected.epoch else None
        except (ValueError, KeyError, TypeError, AttributeError):
            return None  # The proxy knows no order, or is of another version.

    def _repeated(self) -> int:
        """Return how many samples of the manifest occur in it earlier, too."""
        samples = len(self._manifest)
        return samples - np.unique(np.fromiter(map(hash, self._manifest), np.int64, samples)).size


def deals_again(loader: Any) -> bool:
    """Return whether a framework deals the batches of ``loader``, a DataLoader or its iterator, to several
    ranks, beside a sampler of this package. accelerate wraps the loader's batch sampler or the whole loader
    for that, Lightning the sampler.
    """
    if type(loader).__name__ == "DataLoaderDispatcher":
        return True
    at = getattr(loader, "batch_sampler", getattr(loader, "_index_sampler", None))
    for _ in range(_MOST_WRAPPERS):
        if at is None or hasattr(at, "job"):  # Samplers of this package have a job.
            break
        ranks = [getattr(at, name, 1) for name in ("num_processes", "num_replicas")]
        if any(isinstance(many, int) and many > 1 for many in ranks):
            return True
        inner = getattr(at, "batch_sampler", None)
        at = getattr(at, "sampler", None) if inner is None else inner
    return False
