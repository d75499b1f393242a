"""Notices ranks whose samplers draw from different seeds.

Such ranks read some samples several times in an epoch and never read others, and no rank can see that alone.
The proxy has the orders of all ranks, and counts the different samples in them. So rank 0 asks the proxy,
until the orders of one epoch were complete and fitted together. Law: nothing here is raised or makes training
wait.
"""

import json
import logging
from typing import NamedTuple

import numpy as np

from shadeproxy_sdk.manifest import Manifest
from shadeproxy_sdk.progress import Progress
from shadeproxy_sdk.registration import Registration

_LOG = logging.getLogger("shadeproxy_sdk")
_ENOUGH = 2
"""The number of answers that must show a difference. After a restart, the proxy may for a moment have the
order of a rank that was killed.
"""


class _Dealt(NamedTuple):
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
        self._asks = rank == 0 and world_size > 1
        self._expected: _Dealt | None = None
        self._differences = 0

    def expect(self, epoch: int, length: int) -> None:
        """Expect that one permutation of ``epoch`` is dealt, in ``length`` ids for each rank."""
        if self._asks:
            ids = length * self._world_size
            self._expected = _Dealt(epoch, ids, min(ids, len(self._manifest)))

    def check(self) -> None:
        """Ask the proxy if that is due. If the orders do not fit together, warn once. Only the background
        thread calls this.
        """
        expected, progress = self._expected, self._progress
        # Once a rank has finished a batch, all ranks have announced the epoch: they train in lock step.
        if not self._asks or expected is None or progress.epoch != expected.epoch or not progress.position:
            return
        found = self._different(expected)
        if found is None:
            return
        # The orders may be padded with a few ids, and the manifest may name a sample twice.
        if found + self._world_size >= expected.different or found >= expected.different - self._repeated():
            self._asks = False
            return
        self._differences += 1
        if self._differences == _ENOUGH:
            self._asks = False
            _LOG.warning(
                "Job %s: all ranks together read only %d different samples in epoch %d, not %d, because "
                "their samplers draw differently. Give the samplers of all ranks the same seed and settings",
                self._proxy.name,
                found,
                expected.epoch,
                expected.different,
            )

    def _different(self, expected: _Dealt) -> int | None:
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
