"""A torch Sampler over a Job: it yields the samples that this rank reads in an epoch, in their order.

Law: an epoch is planned once (planner.py), announced as soon as its order is known, and read as announced.
The job's background thread plans coming epochs under a lock, and may wait for the proxy meanwhile. The
training loop takes this lock in two cases. The first is that it needs a plan that does not exist yet. The
second is that it changes or saves the data of plans: it begins an epoch, reports a validation result, or
saves or loads a checkpoint.
"""

import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Sampler

from shadeproxy_sdk.errors import ConfigError
from shadeproxy_sdk.fork_lock import ForkLock
from shadeproxy_sdk.job import Job
from shadeproxy_sdk.planner import EpochPlan, Mode, Planner, Settings
from shadeproxy_sdk.state import check_count, check_epoch, check_job, check_state, explained

_STATE_VERSION = 2
_DRAWN = ("plans", "weights", "losses", "smoothing", "smoothed_loss", "trend")
"""Fields that a state has in every mode but "uniform": those from which epochs are planned."""


class ShadeSampler(Sampler[int]):
    """Yields the ids of the samples that the rank of ``job`` reads in an epoch.

    ``mode``: "uniform" yields the indices of DistributedSampler(shuffle=True), in its order. "importance"
    draws with replacement by SHADE's weights, which grow with a sample's loss; any ``coverage_epochs`` epochs
    in a row read every sample, and ``weight_of`` corrects the bias. "shade" is PADS, the cache-aware sampling
    of the SHADE paper, for comparison: it draws with replacement from the first epoch on, cached draws occur
    ``repeat`` times (at most 4) and come first, and there is neither a floor nor a correction. "reorder" is
    "uniform" with the rank's cached samples moved forward: every second sample is cached, until no cached one
    is left. "substitute" replaces uncached samples of low weight by cached ones of high weight, at most 30 %
    of each batch; there is no correction, and any two epochs in a row read every sample. "importance" and
    "substitute" are uniform until losses were reported. ``batch_size``: the batch size of the loader.
    ``drop_last``: as in DistributedSampler; give the loader the same. Each epoch then leaves out some
    samples. In mode "importance", any ``coverage_epochs`` epochs in a row still read every sample, provided
    that an epoch reads at least one in ``coverage_epochs`` of all samples; for that, a few samples of its
    uniform epochs change places with others. In mode "substitute", a sample that is left out in one epoch may
    be left out or replaced in the next.

    The order of an epoch is announced to the proxy when the epoch begins. Mode "uniform" also announces
    ``announce_epochs`` coming epochs. Mode "importance" also announces the next epoch, as soon as losses of
    half of the current one were reported. ``epochs``: number of epochs of the whole run; no epoch beyond it
    is announced. Raises ConfigError.
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
        announce_epochs: int = 2,
        epochs: int | None = None,
    ) -> None:
        settings = Settings(
            mode=mode,
            seed=seed,
            batch_size=batch_size,
            drop_last=drop_last,
            coverage_epochs=coverage_epochs,
            repeat=repeat,
        )
        check_job(job)
        check_count("announce_epochs", announce_epochs)
        if epochs is not None:
            check_count("epochs", epochs)
        self.job = job
        self.mode = mode
        self.seed = int(seed)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.epoch = 0
        self._announce_epochs = announce_epochs
        self._epochs = epochs
        self._planner = Planner(job, settings)
        self.num_samples = self._planner.num_samples
        self._plans: dict[int, EpochPlan] = {}
        self._planning = ForkLock(threading.RLock)
        self._start = 0
        self._reported: int | None = None
        self._skips = False
        self._given = 0
        self._distinct = 0
        self._resumed: int | None = None  # The resumed epoch, while its first iteration is the latest one.

    # ------------------------------------------------------------------ torch's side

    def set_epoch(self, epoch: int) -> None:
        """Begin ``epoch``: reads and reports from now on belong to it. A resumed epoch keeps its position,
        even if its iteration began before this call, as in Lightning. Raises ConfigError unless ``epoch`` is
        a whole number from 0 on.
        """
        epoch = check_epoch(epoch)
        if epoch == self.epoch and epoch == self._resumed:
            return
        if epoch != self.epoch:
            with self._planning:
                self.epoch, self._given = epoch, 0
                self._start, self._reported, self._skips = 0, None, False
                self._plans = {known: plan for known, plan in self._plans.items() if known >= epoch}
        self._begin()

    def __iter__(self) -> Iterator[int]:
        """Yield the ids of this rank's samples in the epoch, from the position that ``load_state_dict`` set
        on.
        """
        return EpochIds(self, self._ids())

    def _ids(self) -> Iterator[int]:
        epoch, plan = self.epoch, self._planned(self.epoch)
        self._begin()
        # A plan of mode "reorder" has the samples that were dealt to this rank, in another order.
        dealt = plan.correction is None and (plan.whole is not None or self.mode == "reorder")
        self.job.announce(epoch, plan.order, dealt=dealt)
        start, skips = self._start, self._skips
        self._start, self._reported, self._skips = 0, None, False
        self._resumed = epoch if start else None
        if skips:
            start = 0
        self._given = start
        try:
            for sample in plan.order[start:].tolist():
                self._given += 1
                yield sample
        finally:
            self.job.exhausted(epoch)
        self._distinct = plan.distinct

    def __len__(self) -> int:
        """Return the number of samples of this rank in a whole epoch, even if the epoch is resumed. It is the
        same on all ranks.
        """
        return self.num_samples

    @property
    def yielded(self) -> int:
        """Number of ids of this epoch that were yielded. A resumed epoch counts from its beginning."""
        return max(self._given, self._start)

    @property
    def batches(self) -> int:
        """Number of batches in a whole epoch of this rank, for a DataLoader with the same ``drop_last``."""
        whole = self.num_samples / self.batch_size
        return math.floor(whole) if self.drop_last else math.ceil(whole)

    # ------------------------------------------------------------------ the draw

    def order(self, epoch: int) -> NDArray[np.uint32]:
        """Return the ids that this rank reads in ``epoch``, uint32 (num_samples,), in reading order. Do not
        change the array.

        The first call for a coming epoch plans that epoch; its plan then stays. Raises ValueError for a past
        epoch whose weights were not kept (never in mode "uniform").
        """
        return self._planned(epoch).order

    def weight_of(self, ids: Any) -> torch.Tensor:
        """Return the correction 1 / (N p) for samples drawn in this epoch: float32, with the shape and device
        of ``ids``. In mode "importance", raises ConfigError for ids that no sample has.

        Multiply each sample's loss by it: the mean over a batch is then an unbiased estimate of the mean over
        the dataset. The correction's expectation over draws is one, so the learning rate stays as it is. In
        all modes except "importance", the correction of every sample is one: uniform epochs need none, and
        "shade" and "substitute" are biased, as published.
        """
        chosen = torch.as_tensor(ids)
        correction = self._planned(self.epoch).correction
        if correction is None:  # Do not read the ids. If they are on a GPU, that would wait for it.
            return torch.ones(chosen.shape, dtype=torch.float32, device=chosen.device)
        rows = chosen.cpu().numpy()
        if rows.size and (rows.dtype.kind not in "iu" or not 0 <= rows.min() <= rows.max() < correction.size):
            raise ConfigError(
                f"ids of type {rows.dtype}, {rows.min()} .. {rows.max()}: give the sample ids that the "
                f"loader yields, integers from 0 to {correction.size - 1}"
            )
        return torch.from_numpy(correction[rows.astype(np.int64)]).to(chosen.device)

    @property
    def distinct_samples(self) -> int:
        """Number of different samples read in the last epoch that was iterated to its end; 0 before. The
        samples of all ranks are counted, or only those of this rank in modes "shade" and "substitute". The
        number holds for a DataLoader with the same ``drop_last``.
        """
        return self._distinct

    def validated(self, *, accuracy: float | None = None, loss: float | None = None) -> float:
        """Report a validation result, which must be the same on every rank. Return the new aggressiveness a
        (1.0 to 0.0).

        While results improve, draws follow importance as far as possible (SHADE's switch). Each result that
        is no new best lowers a by 0.25, towards uniform draws; each new best raises a by 0.25. "importance"
        draws with chances a q + (1 - a) / N; "substitute" replaces at most 30 % x a of a batch. "shade" has
        the published switch: a is 1 while the mean of the latest three changes is above 0, else 0. While a is
        1, each rank reads the samples that it drew most often. Announced plans stay as they are. Raises
        ConfigError unless exactly one of ``accuracy`` and ``loss`` is given.
        """
        with self._planning:
            return self._planner.control.validated(accuracy=accuracy, loss=loss)

    def _planned(self, epoch: int) -> EpochPlan:
        if (known := self._plans.get(epoch)) is not None:
            return known
        with self._planning:
            plan = self._plans.get(epoch)
            if plan is None and epoch < self.epoch:
                if self.mode != "uniform":
                    raise ValueError(
                        f"epoch {epoch} is over: its order was drawn from weights that are not kept"
                    )
                return self._planner.uniform(epoch)
            if plan is None:
                plan = self._plans[epoch] = self._planner.plan(epoch)
            return plan

    # ------------------------------------------------------------------ ahead of training

    def _begin(self) -> None:
        self.job.begin(
            self.epoch,
            self._start,
            length=self.num_samples,
            reported=self._reported,
            ahead=self._plan_ahead,
            sampler=self,
        )

    def _plan_ahead(self) -> None:
        """Announce coming epochs whose orders are known by now. The job's background thread calls this. It
        does not wait for the planning lock, because the thread that holds the lock may be waiting for the
        background thread.
        """
        if not self._planning.acquire(blocking=False):
            return
        try:
            for epoch in range(self.epoch + 1, self._known_until()):
                plan = self._plans.get(epoch)
                if plan is None and self._planner.drawn_from_weights:
                    plan = self._planner.plan_early(epoch)
                elif plan is None:
                    plan = self._planner.uniform(epoch)
                if plan is None:
                    return
                self._plans[epoch] = plan
                self.job.announce(epoch, plan.order)
        finally:
            self._planning.release()

    def _known_until(self) -> int:
        """Return the first coming epoch whose order is not known yet, or the end of the run if that is
        earlier.
        """
        if self.mode == "uniform":
            ahead = self._announce_epochs
        else:
            ahead = int(self._planner.drawn_from_weights and self.job.half_reported(self.epoch))
        end = self.epoch + 1 + ahead
        return end if self._epochs is None else min(end, self._epochs)

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """Return the state from which a run continues at the same sample with the same draws. It has only
        tensors and numbers.

        ``position``: number of samples of this epoch that training has finished on this rank. The default is
        the count of ``job.report``, ``job.timed`` or ``job.progress``. If nothing counts, the default is the
        number of ids that the sampler has yielded. That is right only for ``num_workers=0``, because workers
        take ids ahead of training. Any rank may load the state. But in modes "shade", "reorder" and
        "substitute", each rank plans for itself, and only the rank that saved a state may load it.
        """
        if position is not None:
            check_count("position", position)
        else:
            position = self.job.position
        if position is None:
            position = self.yielded
        state: dict[str, Any] = self._shape() | {"epoch": self.epoch, "position": position}
        if self.mode == "uniform":
            return state
        with self._planning:
            self._planned(self.epoch)
            if self._planner.drawn_from_weights and self.job.half_reported(self.epoch):
                # The next epoch can be drawn by now, so plan it. The state keeps its plan, but not the scores
                # from which it was drawn.
                self._planned(self.epoch + 1)
            weights, losses, reported = self.job.scores_state()
            state |= self._planner.state()
            state |= {
                "plans": {epoch: self._planner.pack(plan) for epoch, plan in self._plans.items()},
                "weights": torch.from_numpy(weights),
                "losses": losses,
                "reported": min(reported, position),
            }
        return state

    def load_state_dict(self, state: dict[str, Any], *, skips: bool = False) -> None:
        """Continue where ``state_dict`` was called. ``skips``: the loop itself takes and drops the ids before
        the saved position, so yield the epoch from its first id on. Raises ConfigError, and changes nothing,
        if the state is of a run with other settings or another dataset, or no state of a sampler.
        """
        check_state(state, self._shape(), () if self.mode == "uniform" else _DRAWN)
        with self._planning:
            plans: dict[int, EpochPlan] = {}
            if self.mode != "uniform":
                with explained():  # Read all of the state before using any of it.
                    plans = {int(epoch): self._planner.unpack(plan) for epoch, plan in state["plans"].items()}
                    weights = state["weights"].numpy().astype(np.float32)
                    if weights.shape != (samples := len(self.job.manifest),):
                        raise ValueError(f"{len(weights)} weights for {samples} samples")
                    losses = {int(at): (float(sum_), int(n)) for at, (sum_, n) in state["losses"].items()}
                    self._planner.restore(state)
                self.job.restore_scores(weights, losses)
            self._plans = plans
            self.epoch = int(state["epoch"])
            self._start = self._given = min(int(state["position"]), self.num_samples)
            self._reported, self._skips = state.get("reported"), skips
        self._begin()

    def resume_at(self, epoch: int, position: int) -> None:
        """Continue ``epoch`` after the first ``position`` samples of this rank, by this rank's own plan. Call
        this if a checkpoint has only the state of another rank, so that all ranks read equally many samples.
        Raises as ``set_epoch``.
        """
        check_count("position", position)
        self.set_epoch(epoch)
        with self._planning:
            self._start = self._given = min(int(position), self.num_samples)

    def _shape(self) -> dict[str, Any]:
        """Return the settings that must be the same in a checkpoint and in this sampler."""
        shape: dict[str, Any] = {
            "version": _STATE_VERSION,
            "mode": self.mode,
            "seed": self.seed,
            "samples": len(self.job.manifest),
            "digest": self.job.manifest.digest,
            "world_size": self.job.world_size,
            "drop_last": self.drop_last,
        }
        if self.mode != "uniform":  # Orders in mode "uniform" do not depend on batches.
            shape |= {"batch_size": self.batch_size} | self._planner.shape
        alone = self.mode in {"shade", "reorder", "substitute"}
        return shape | {"rank": self.job.rank} if alone else shape


class EpochIds(Iterator[int]):
    """The iterator of a ShadeSampler. ``ids``: the ids of an epoch, not begun yet.

    It has a state for StatefulDataLoader of torchdata, which saves and loads the states of a sampler and of
    its iterator together. Such a loader goes on behind the ids that it has taken, and the sampler's own state
    behind the samples that training has finished. So the iterator's position is the one that counts.
    """

    def __init__(self, sampler: ShadeSampler, ids: Iterator[int]) -> None:
        self._sampler = sampler
        self._ids = ids

    def __next__(self) -> int:
        return next(self._ids)

    def state_dict(self) -> dict[str, int]:
        """Return how many ids of the epoch were yielded."""
        return {"position": self._sampler.yielded}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue the epoch of the sampler behind the ids that were yielded. If these were all, the sampler
        begins the next epoch.
        """
        sampler, position = self._sampler, state["position"]
        if position < sampler.num_samples:
            sampler.resume_at(sampler.epoch, position)
        else:
            self._ids = iter(())
            sampler.set_epoch(sampler.epoch + 1)
