"""Which samples an epoch reads, in which order, on this rank: a torch Sampler over a Job.

Law: an epoch is planned once, for all ranks, and never changes afterwards, so that what is announced, trained
and resumed is one order. Every rank gets equally many samples, as torch's DistributedSampler deals them.
"""

import math
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Sampler

from shadeproxy_sdk.draw import importance_order, probabilities, shade_order, smooth
from shadeproxy_sdk.errors import ConfigError
from shadeproxy_sdk.job import Job

Mode = Literal["uniform", "importance", "shade"]
_MAX_REPEAT = 4
_STATE_VERSION = 1


class Plan(NamedTuple):
    """One epoch over all ranks: ids uint32 (total,), correction float32 (samples,) or None when all are
    one.
    """

    order: NDArray[np.uint32]
    correction: NDArray[np.float32] | None


class ShadeSampler(Sampler[int]):
    """Sample ids of ``job``'s dataset for its rank.

    ``mode``: "uniform" is DistributedSampler(shuffle=True) index by index. "importance" draws by SHADE's
    ranks with replacement; any ``coverage_epochs`` epochs in a row read every sample, and ``weight_of``
    corrects the bias. "shade" is the paper's cache-aware PADS, for comparison: cached draws occur
    ``repeat`` times (at most 4), no floor, no correction. Until losses were reported, all modes are
    uniform. ``batch_size``: the loader's, from which ``batches`` follows. ``drop_last``: as in
    DistributedSampler. Raises ConfigError.
    """

    def __init__(
        self,
        job: Job,
        mode: Mode = "uniform",
        seed: int = 0,
        *,
        batch_size: int = 1,
        drop_last: bool = False,
        coverage_epochs: int = 5,
        repeat: int = 2,
    ) -> None:
        if mode not in get_args(Mode):
            raise ConfigError(f"mode {mode!r} does not exist: choose one of {', '.join(get_args(Mode))}")
        if batch_size < 1 or coverage_epochs < 1 or not 1 <= repeat <= _MAX_REPEAT:
            raise ConfigError(
                f"batch_size {batch_size}, coverage_epochs {coverage_epochs} and repeat {repeat}: "
                f"the first two must be at least 1, the last in 1 .. {_MAX_REPEAT}"
            )
        self.job = job
        self.mode = mode
        self.seed = seed
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.coverage_epochs = coverage_epochs
        self.repeat = repeat
        self.epoch = 0
        samples, ranks = len(job.manifest), job.world_size
        self.num_samples = samples // ranks if drop_last else math.ceil(samples / ranks)
        self._samples = samples
        self._total = self.num_samples * ranks
        self._plans: dict[int, Plan] = {}
        self._smoothing: float | None = None
        self._smoothed_loss: float | None = None
        self._start = 0
        self._given = 0
        self._distinct = 0

    # ------------------------------------------------------------------ torch's side

    def set_epoch(self, epoch: int) -> None:
        """Begin ``epoch``; reads and reports from now on belong to it. A resumed epoch keeps its position."""
        if epoch != self.epoch:
            self.epoch, self._start, self._given = epoch, 0, 0
            self._plans = {known: plan for known, plan in self._plans.items() if known >= epoch}
        self.job.begin(epoch, self._start)

    def __iter__(self) -> Iterator[int]:
        """This rank's ids of the epoch, from where ``load_state_dict`` left it."""
        order = self.order(self.epoch)
        self.job.begin(self.epoch, self._start)
        start, self._start, self._given = self._start, 0, self._start
        for sample in order[start:].tolist():
            self._given += 1
            yield sample
        self._distinct = int(np.unique(self._plans[self.epoch].order).size)

    def __len__(self) -> int:
        """Samples of a whole epoch on this rank, also when one is resumed; equal on all ranks."""
        return self.num_samples

    @property
    def batches(self) -> int:
        """Batches of a whole epoch on this rank, as a DataLoader with the same ``drop_last`` makes them."""
        whole = self.num_samples / self.batch_size
        return math.floor(whole) if self.drop_last else math.ceil(whole)

    # ------------------------------------------------------------------ what was drawn

    def order(self, epoch: int) -> NDArray[np.uint32]:
        """This rank's ids of ``epoch``, uint32 (num_samples,): what it will read, in order.

        A coming epoch is planned with what is known at the first call, and then read so. Raises ValueError
        for a past epoch whose weights are gone (never in mode "uniform").
        """
        plan = self._plans.get(epoch)
        if plan is None:
            if self.mode != "uniform" and epoch < self.epoch:
                raise ValueError(f"epoch {epoch} is over: its order was drawn from weights that are not kept")
            plan = self._plan(epoch)
            if epoch >= self.epoch:
                self._plans[epoch] = plan
        return plan.order[self.job.rank :: self.job.world_size]

    def weight_of(self, ids: Any) -> torch.Tensor:
        """The correction 1 / (N p) for samples drawn in this epoch: float32, shaped and placed like ``ids``.

        Multiply each sample's loss by it, and the mean over a batch is an unbiased estimate of the mean
        over the data set. Its expectation over draws is one, so the learning rate stays as it is. All ones
        when uniform, and in mode "shade", which the paper leaves uncorrected.
        """
        chosen = torch.as_tensor(ids)
        self.order(self.epoch)
        correction = self._plans[self.epoch].correction
        if correction is None:
            return torch.ones(chosen.shape, dtype=torch.float32, device=chosen.device)
        return torch.from_numpy(correction[chosen.cpu().numpy()]).to(chosen.device)

    @property
    def distinct_samples(self) -> int:
        """Different samples that all ranks together read in the last epoch that was iterated to its end; 0
        before.
        """
        return self._distinct

    def _plan(self, epoch: int) -> Plan:
        weights = None if self.mode == "uniform" else self.job.weights(epoch)
        if weights is None:
            return Plan(self._permutation(epoch), None)
        mean_loss = self.job.mean_loss
        if mean_loss is not None:
            self._smoothing = smooth(mean_loss, self._smoothed_loss, self._smoothing)
            self._smoothed_loss = mean_loss
        chances = probabilities(weights, self._smoothing or 0.0)
        if self.mode == "importance":
            drawn = importance_order(
                chances, self._total, coverage_epochs=self.coverage_epochs, seed=self.seed, epoch=epoch
            )
            return Plan(*drawn)
        resident = self.job.residency()
        if resident is None:
            resident = np.zeros(self._samples, dtype=np.bool_)
        order = shade_order(chances, resident, self._total, repeat=self.repeat, seed=self.seed, epoch=epoch)
        return Plan(order, None)

    def _permutation(self, epoch: int) -> NDArray[np.uint32]:
        """As torch's DistributedSampler before it deals: randperm by seed + epoch, padded from its own
        start or cut.
        """
        generator = torch.Generator()
        generator.manual_seed(self.seed + epoch)
        shuffled = torch.randperm(self._samples, generator=generator).numpy()
        return np.resize(shuffled, self._total).astype(np.uint32)

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """Everything needed to go on at the same sample with the same draws; tensors and numbers only.

        ``position``: samples of this epoch that this rank's training finished. By default what
        ``job.report``, ``job.timed`` or ``job.progress`` counted; where none is used, what the sampler gave
        out, which is right for ``num_workers=0`` only, because workers run ahead.
        """
        if position is None:
            position = self.job.position
        if position is None:
            position = max(self._given, self._start)
        state: dict[str, Any] = {
            "version": _STATE_VERSION,
            "mode": self.mode,
            "seed": self.seed,
            "samples": self._samples,
            "world_size": self.job.world_size,
            "epoch": self.epoch,
            "position": position,
        }
        if self.mode != "uniform":
            self.order(self.epoch)
            plan = self._plans[self.epoch]
            weights, losses = self.job.scores_state()
            state |= {
                "order": torch.from_numpy(plan.order.astype(np.int32)),
                "correction": None if plan.correction is None else torch.from_numpy(plan.correction.copy()),
                "weights": torch.from_numpy(weights),
                "losses": losses,
                "smoothing": self._smoothing,
                "smoothed_loss": self._smoothed_loss,
            }
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict`` was taken. Raises ConfigError when it is of another run's shape."""
        own = {
            "version": _STATE_VERSION,
            "mode": self.mode,
            "seed": self.seed,
            "samples": self._samples,
            "world_size": self.job.world_size,
        }
        for name, value in own.items():
            if state.get(name) != value:
                raise ConfigError(
                    f"the checkpoint's sampler has {name} {state.get(name)!r}, this one {value!r}: "
                    "resume with what it was saved with, or start the epoch anew without it"
                )
        self._plans = {}
        if self.mode != "uniform":
            correction = state["correction"]
            order = state["order"].numpy().astype(np.uint32)
            self._plans[state["epoch"]] = Plan(order, None if correction is None else correction.numpy())
            self.job.restore_scores(state["weights"].numpy(), state["losses"])
            self._smoothing, self._smoothed_loss = state["smoothing"], state["smoothed_loss"]
        self.epoch = state["epoch"]
        self._start = self._given = min(state["position"], self.num_samples)
        self.job.begin(self.epoch, self._start)
