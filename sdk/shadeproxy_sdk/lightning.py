"""A callback for Lightning (packages ``lightning`` and ``pytorch_lightning``). It makes the calls to the SDK
that the training loop in the README makes by hand.

It never raises into the training loop: callbacks.py logs failures instead.
"""

from typing import Any

from shadeproxy_sdk.callbacks import Better, Companion
from shadeproxy_sdk.errors import ConfigError

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    try:
        from pytorch_lightning.callbacks import Callback
    except ImportError:
        raise ConfigError("ShadeCallback needs Lightning: pip install lightning") from None


class ShadeCallback(Callback):
    """Reports losses, begins epochs, and keeps the sampler's state in checkpoints.

    ``training_step`` returns ``{"loss": ..., "ids": ids, "losses": losses}``, where ``losses`` has one loss a
    sample; or it calls ``report(ids, losses)``. ``sampler``: the sampler of the training loader. ``monitor``:
    a logged metric that shows whether validation improves, for samplers that adapt to that. ``better``:
    whether a larger ("max") or smaller ("min") value is an improvement. With several devices, use
    ``Trainer(use_distributed_sampler=False)``, and make the job with rank and world size, because the sampler
    deals the samples to the ranks itself.
    """

    def __init__(self, sampler: Any, *, monitor: str | None = None, better: Better = "max") -> None:
        super().__init__()
        self._beside = Companion(sampler, monitor=monitor, better=better)
        self._epoch_is_over = False

    def report(self, ids: Any, losses: Any) -> None:
        """Report the losses of one batch, if ``training_step`` cannot return them. Never raises."""
        self._beside.report(ids, losses)

    # ------------------------------------------------------------------ Lightning's side

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 (Lightning's names)
        self._epoch_is_over = False
        self._beside.begin_epoch(trainer.current_epoch)
        self._beside.check_ranks(trainer.world_size, getattr(trainer, "train_dataloader", None))

    def on_train_batch_end(
        self,
        trainer: Any,
        pl_module: Any,  # noqa: ARG002 (Lightning's names, here and below)
        outputs: Any,
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        self._epoch_is_over = getattr(trainer, "is_last_batch", False)
        if isinstance(outputs, dict) and "ids" in outputs and "losses" in outputs:
            self._beside.report(outputs["ids"], outputs["losses"])

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        if not trainer.sanity_checking:
            self._beside.validated(trainer.callback_metrics)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._beside.flush()

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state for a checkpoint; empty if it has none, or if that fails."""
        state = self._beside.state_dict()
        if self._epoch_is_over and "position" in state:
            # A loader with drop_last, or Trainer(limit_train_batches=...), leaves the last samples out. If a
            # resumed run began with them, Lightning would take them for the next epoch.
            state["position"] = len(self._beside.sampler)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where the checkpoint was taken. If that was the end of an epoch, begin the next epoch."""
        if state_dict:
            self._beside.safely(self._resume, state_dict)

    def _resume(self, state: dict[str, Any]) -> None:
        sampler = self._beside.sampler
        rank = getattr(sampler.job, "rank", 0)
        if state.get("rank", rank) == rank:
            sampler.load_state_dict(state)
        else:
            # Lightning keeps the callback's state of rank 0 alone. In modes whose ranks plan for themselves,
            # another rank cannot use it, but must continue at the same place: else the ranks would read
            # different numbers of batches, and wait for each other for ever.
            self._beside.complain(
                f"the checkpoint has the sampler's state of rank {state['rank']} alone, so this rank plans"
                " the rest of the epoch itself"
            )
            sampler.resume_at(state["epoch"], state["position"])
        if state["position"] >= len(sampler):
            # Lightning makes the first iterator before it sets the epoch, so set the epoch already here.
            sampler.set_epoch(state["epoch"] + 1)
