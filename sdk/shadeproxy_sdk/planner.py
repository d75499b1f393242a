"""Plans the order of one epoch for one rank, from the sampler's mode and from what the job knows.

Law: an epoch is planned once, and its plan never changes afterwards. So the orders that are announced,
trained and resumed are the same. Every rank gets equally many samples, dealt as in torch's
DistributedSampler. An order that depends on weights is drawn for all ranks together, from weights that they
share. An order that depends on the cache rearranges only the samples that were dealt to its rank (cached.py
says why).
"""

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from shadeproxy_sdk.cached import MOST_SUBSTITUTED, reorder, substitute
from shadeproxy_sdk.draw import (
    RankShare,
    floor_part,
    importance_order,
    probabilities,
    read_first,
    relax,
    shade_order,
    smooth,
)
from shadeproxy_sdk.errors import ConfigError
from shadeproxy_sdk.job import Job
from shadeproxy_sdk.snapshot import ScoreSnapshot

Mode = Literal["uniform", "importance", "shade", "reorder", "substitute"]
STEPS = 4
_LATEST = 3
_MAX_REPEAT = 4
_LARGEST_SEED = (1 << 63) - 1 - (1 << 31)
"""The largest seed that is accepted. Torch gets seed + epoch as its seed, which may have at most 63 bits."""
_UNSEEN = 1.0
"""The weight of a sample that was never drawn, as in SHADE's public code. Any other sample weighs at least ln
10 = 2.3.
"""
_SHARED_SMOOTHING = 0.01
"""The smoothing if the ranks share no mean loss. It is SHADE's first value for a mean loss of one."""


class EpochPlan(NamedTuple):
    """The plan of one epoch. ``order``: ids of this rank, uint32 (num_samples,). ``whole``: the order of all
    ranks, from which ``order`` is dealt; None if each rank plans for itself. ``correction``: by sample,
    float32 (samples,); None when all corrections are one. ``distinct``: number of different samples that all
    ranks together read; in modes "shade" and "substitute", the number that this rank alone reads.
    """

    order: NDArray[np.uint32]
    whole: NDArray[np.uint32] | None
    correction: NDArray[np.float32] | None
    distinct: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The arguments of ``ShadeSampler`` on which plans depend. Raises ConfigError for invalid ones."""

    mode: Mode
    seed: int
    batch_size: int
    drop_last: bool
    coverage_epochs: int
    repeat: int

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ConfigError(f"mode {self.mode!r} does not exist: choose one of {', '.join(get_args(Mode))}")
        if not _is_seed(self.seed):
            raise ConfigError(f"seed {self.seed!r}: give an integer from 0 to {_LARGEST_SEED}")
        numbers = (self.batch_size, self.coverage_epochs, self.repeat)
        is_whole = all(isinstance(number, Integral) for number in numbers)
        if not is_whole or min(numbers) < 1 or self.repeat > _MAX_REPEAT:
            raise ConfigError(
                f"batch_size {self.batch_size!r}, coverage_epochs {self.coverage_epochs!r} and repeat "
                f"{self.repeat!r}: the first two must be at least 1, the last in 1 .. {_MAX_REPEAT}, all of "
                "them whole numbers"
            )
        if self.mode == "substitute" and self.batch_size * MOST_SUBSTITUTED < 1:
            raise ConfigError(
                f"batch_size {self.batch_size}: mode 'substitute' replaces at most 30 % of a batch, so give "
                "the loader's batch_size, at least 4"
            )


class ImportanceControl:
    """SHADE's switch between draws by importance and uniform draws: importance counts less while validation
    does not improve. Pure arithmetic.

    There are STEPS + 1 levels, and training starts at the highest one, the most aggressive. A validation
    result that is a new best raises the level by one; any other result lowers it by one. At level 0 draws are
    uniform. ``level``: 0 .. STEPS. ``best``: the best result so far, as a number of which larger is better;
    None before the first.
    """

    def __init__(self) -> None:
        self.level = STEPS
        self.best: float | None = None

    @property
    def aggressiveness(self) -> float:
        """The share of importance in a draw: level / STEPS, from 1.0 down to 0.0."""
        return self.level / STEPS

    def validated(self, *, accuracy: float | None, loss: float | None) -> float:
        """Note one validation result: ``accuracy`` (larger is better) or ``loss`` (smaller is better). Return
        the new aggressiveness. A result of nan is no improvement. Raises ConfigError unless exactly one is
        given.
        """
        value = _larger_is_better(accuracy, loss)
        improved = math.isfinite(value) and (self.best is None or value > self.best)
        if improved:
            self.best = value
        self.level = min(self.level + 1, STEPS) if improved else max(self.level - 1, 0)
        return self.aggressiveness

    def state(self) -> dict[str, Any]:
        """Return the level and the best result, for a checkpoint."""
        return {"level": self.level, "best": self.best}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the numbers that ``state`` returned."""
        self.level, self.best = state["level"], state["best"]


class PublishedControl:
    """The switch of SHADE's public code. Draws follow importance before the first validation result, and
    while the mean of the latest three changes of the result is above 0. The first result counts as a change
    of 0.
    """

    def __init__(self) -> None:
        self._latest: float | None = None
        self._changes: list[float] = []

    @property
    def aggressiveness(self) -> float:
        """The share of importance in a draw: 1.0 or 0.0."""
        return float(not self._changes or sum(self._changes) > 0)

    def validated(self, *, accuracy: float | None, loss: float | None) -> float:
        """Note one validation result, as ``ImportanceControl`` does. Return the new aggressiveness."""
        value = _larger_is_better(accuracy, loss)
        change = 0.0 if self._latest is None else value - self._latest
        self._changes = [*self._changes, change if math.isfinite(change) else 0.0][-_LATEST:]
        if math.isfinite(value):
            self._latest = value
        return self.aggressiveness

    def state(self) -> dict[str, Any]:
        """Return the latest result and changes, for a checkpoint."""
        return {"latest": self._latest, "changes": list(self._changes)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the numbers of ``state``. If it is a state of ``ImportanceControl``, begin as if
        there were no results.
        """
        self._latest, self._changes = state.get("latest"), list(state.get("changes", []))


class Planner:
    """Plans the epochs of ``job`` for its rank. Not thread-safe."""

    def __init__(self, job: Job, settings: Settings) -> None:
        self.control = PublishedControl() if settings.mode == "shade" else ImportanceControl()
        self._job = job
        self._settings = settings
        self._samples = len(job.manifest)
        per_rank = self._samples / job.world_size
        self.num_samples = math.floor(per_rank) if settings.drop_last else math.ceil(per_rank)
        self._total = self.num_samples * job.world_size
        # A loader with drop_last leaves out the last batch of a rank if that batch is incomplete.
        spare = self.num_samples % settings.batch_size if settings.drop_last else 0
        self._read = self.num_samples - spare
        self._smoothing: float | None = None
        self._smoothed_loss: float | None = None

    @property
    def drawn_from_weights(self) -> bool:
        """True if the order of an epoch depends on losses. The order of an epoch is then known only after
        half of the previous epoch was reported.
        """
        return self._settings.mode == "importance"

    def uniform(self, epoch: int) -> EpochPlan:
        """Return the plan of ``epoch`` in mode "uniform"."""
        return self._share(
            self._permutation(epoch), None, min(self._samples, self._read * self._job.world_size)
        )

    def plan(self, epoch: int) -> EpochPlan:
        """Return the plan of ``epoch``, from the present scores and the samples that are cached now."""
        mode = self._settings.mode
        if mode == "reorder":
            resident = self._job.residency()
            plan = self.uniform(epoch)
            if resident is None:
                return plan
            # A loader with drop_last leaves out the end of the order, so keep random samples there.
            read, left = np.split(plan.order, [self._read])
            return EpochPlan(np.concatenate((reorder(read, resident), left)), None, None, plan.distinct)
        if mode == "uniform":
            return self.uniform(epoch)
        known = self._job.known(epoch, snapshot=self.drawn_from_weights)
        if mode == "shade":
            return self._published(epoch, known)
        if mode == "substitute":
            return self._substituted(epoch, known)
        return self.uniform(epoch) if known is None else self._drawn(epoch, known)

    def plan_early(self, epoch: int) -> EpochPlan | None:
        """Return the plan of ``epoch``, drawn from the weights that all ranks share; None if these are not
        available yet.
        """
        known = self._job.known(epoch, snapshot=True, shared=True)
        return None if known is None else self._drawn(epoch, known)

    def _drawn(self, epoch: int, known: ScoreSnapshot) -> EpochPlan:
        settings = self._settings
        chances = relax(probabilities(known.weights, self._smooth(known)), self.control.aggressiveness)
        whole, correction = importance_order(
            chances,
            self._total,
            read=self._read * self._job.world_size,
            coverage_epochs=settings.coverage_epochs,
            seed=settings.seed,
            epoch=epoch,
        )
        return self._share(whole, correction, self._distinct(whole))

    def _published(self, epoch: int, known: ScoreSnapshot | None) -> EpochPlan:
        """Return the plan of ``epoch`` in mode "shade". Draws are with replacement, even in the first
        epoch.
        """
        if known is None:
            known = ScoreSnapshot(np.full(self._samples, np.nan, dtype=np.float32), None)
        resident = self._job.residency()
        if resident is None:
            resident = np.zeros(self._samples, dtype=np.bool_)
        order = shade_order(
            probabilities(known.weights, self._smooth(known), unknown=_UNSEEN),
            resident,
            RankShare(self._job.rank, self._job.world_size, self._total),
            repeat=self._settings.repeat,
            frequent=epoch > 0 and self.control.aggressiveness > 0,
            seed=self._settings.seed,
            epoch=epoch,
        )
        return EpochPlan(order, None, None, np.unique(order[: self._read]).size)

    def _substituted(self, epoch: int, known: ScoreSnapshot | None) -> EpochPlan:
        """Return the plan of ``epoch`` in mode "substitute". Without scores nothing is replaced."""
        whole = self._permutation(epoch)
        order = self._deal(whole)
        if known is None:
            return EpochPlan(order, whole, None, np.unique(order[: self._read]).size)
        resident = self._job.residency()
        if resident is not None:
            # The samples that pad the epoch are already read twice. Mark them as not cached, so that no rank
            # reads them once more as substitutes.
            resident[whole[self._samples :]] = False
            order = substitute(
                order,
                resident,
                known.weights,
                batch_size=self._settings.batch_size,
                share=MOST_SUBSTITUTED * self.control.aggressiveness,
                seed=self._settings.seed,
                epoch=epoch,
            )
        return EpochPlan(order, None, None, np.unique(order[: self._read]).size)

    def _smooth(self, known: ScoreSnapshot) -> float:
        if known.mean_loss is None:
            return _SHARED_SMOOTHING
        self._smoothing = smooth(known.mean_loss, self._smoothed_loss, self._smoothing)
        self._smoothed_loss = known.mean_loss
        return self._smoothing

    def _permutation(self, epoch: int) -> NDArray[np.uint32]:
        """Return the permutation that torch's DistributedSampler deals: randperm by seed + epoch, padded with
        its own first ids or cut to the epoch's length. In mode "importance", all ranks together read the
        floor's samples, even those that a loader with drop_last would leave out: these change places with
        others.
        """
        settings, read = self._settings, self._read * self._job.world_size
        generator = torch.Generator()
        generator.manual_seed(int(settings.seed) + epoch)
        # Name the device: ``torch.set_default_device`` may have set another one.
        shuffled = torch.randperm(self._samples, generator=generator, device="cpu").numpy()
        if settings.mode == "importance" and read < self._samples:
            part = floor_part(
                self._samples,
                coverage_epochs=settings.coverage_epochs,
                seed=settings.seed,
                epoch=epoch,
            )
            shuffled = read_first(shuffled, part, read)
        return np.resize(shuffled, self._total).astype(np.uint32)

    def _share(
        self, whole: NDArray[np.uint32], correction: NDArray[np.float32] | None, distinct: int
    ) -> EpochPlan:
        return EpochPlan(self._deal(whole), whole, correction, distinct)

    def _distinct(self, whole: NDArray[np.uint32]) -> int:
        """Return how many different samples of ``whole`` all ranks together read."""
        return np.unique(whole[: self._read * self._job.world_size]).size

    def _deal(self, whole: NDArray[np.uint32]) -> NDArray[np.uint32]:
        return whole[self._job.rank :: self._job.world_size]

    @property
    def shape(self) -> dict[str, Any]:
        """The settings that only this mode has, and that must be the same in a resumed run."""
        name = {"importance": "coverage_epochs", "shade": "repeat"}.get(self._settings.mode)
        return {} if name is None else {name: getattr(self._settings, name)}

    def state(self) -> dict[str, Any]:
        """Return the planner's numbers, for a checkpoint."""
        return {
            "smoothing": self._smoothing,
            "smoothed_loss": self._smoothed_loss,
            "trend": self.control.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the result of ``state``. If a part is missing, raise KeyError or TypeError and change
        nothing.
        """
        smoothing, smoothed_loss = state["smoothing"], state["smoothed_loss"]
        self.control.restore(state["trend"])
        self._smoothing, self._smoothed_loss = smoothing, smoothed_loss

    @staticmethod
    def pack(plan: EpochPlan) -> dict[str, Any]:
        """Return ``plan`` in the form for a checkpoint: as tensors and numbers."""
        ids = plan.order if plan.whole is None else plan.whole
        return {
            "ids": torch.from_numpy(ids.astype(np.int32)),
            "shared": plan.whole is not None,
            "correction": None if plan.correction is None else torch.from_numpy(plan.correction.copy()),
            "distinct": plan.distinct,
        }

    def unpack(self, packed: dict[str, Any]) -> EpochPlan:
        """Return the plan that was given to ``pack``. If all ranks share the plan, another rank may have
        packed it. Raises KeyError, TypeError, AttributeError or ValueError if ``packed`` is no such plan.
        """
        ids = packed["ids"].numpy().astype(np.uint32)
        if ids.ndim != 1 or (ids >= self._samples).any():
            raise ValueError(f"a plan must be of ids from 0 to {self._samples - 1}")
        correction = None if packed["correction"] is None else packed["correction"].numpy()
        if packed["shared"]:
            return self._share(ids, correction, packed["distinct"])
        return EpochPlan(ids, None, correction, packed["distinct"])


def _is_seed(value: Any) -> bool:
    return isinstance(value, Integral) and 0 <= int(value) <= _LARGEST_SEED


def _larger_is_better(accuracy: float | None, loss: float | None) -> float:
    if (accuracy is None) == (loss is None):
        raise ConfigError("validated() takes either accuracy=... or loss=..., and always the same one")
    return float(accuracy) if accuracy is not None else -float(loss or 0.0)
