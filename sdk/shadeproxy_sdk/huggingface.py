"""A callback for Trainer of Hugging Face transformers, and a mixin for Trainer that finds the loss of each
sample.

Neither of them raises into the training loop: callbacks.py logs failures instead. Trainer asks the model for
one loss a batch, and its callbacks never see the batch, so only the mixin can report scores. The callback
begins epochs and passes on validation results.
"""

import json
import logging
from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, cast

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from shadeproxy_sdk.callbacks import Better, Companion
from shadeproxy_sdk.errors import ConfigError

try:
    from transformers import TrainerCallback, set_seed
except ImportError:
    raise ConfigError(
        "ShadeTrainerCallback needs transformers: pip install transformers accelerate"
    ) from None

_LOG = logging.getLogger("shadeproxy_sdk")
SAMPLE_IDS = "shade_sample_ids"
"""The key under which a batch holds its sample ids. The mixin removes the ids before the model sees the
batch.
"""

SampleLosses = Callable[[Any, torch.Tensor], torch.Tensor]
"""The type of a function that takes the model's outputs and the labels, and returns one loss a sample: float
(batch,).
"""


class ShadeTrainerCallback(TrainerCallback):
    """Begins epochs, passes evaluations to the sampler, and saves the sampler's state beside each checkpoint.

    ``sampler``: the sampler of the training loader. ``monitor``: a metric of ``evaluate``, such as
    "eval_loss", that shows whether validation improves, for samplers that adapt to that. ``better``: whether
    a smaller ("min") or larger ("max") value is an improvement. ``checkpoint``: the directory from which a
    run resumes, as given to ``Trainer.train``; the mixin sets it. Trainer itself does not tell it to
    callbacks. So by default, the state is loaded from ``args.resume_from_checkpoint``, which scripts of
    Hugging Face set, if the checkpoint there is of the same step. Otherwise it is loaded from the checkpoint
    of that step in ``output_dir``.
    """

    def __init__(
        self,
        sampler: Any,
        *,
        monitor: str | None = None,
        better: Better = "min",
        checkpoint: str | PathLike[str] | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self._beside = Companion(sampler, monitor=monitor, better=better)

    def report(self, ids: Any, losses: Any) -> None:
        """Report the losses of one batch, for a Trainer without the mixin. Never raises."""
        self._beside.report(ids, losses)

    # ------------------------------------------------------------------ Trainer's side

    def on_train_begin(self, args: Any, state: Any, control: Any, **told: Any) -> None:  # noqa: ARG002 (Trainer's names, here and below)
        self._beside.safely(self._resume, args, state)
        self._beside.check_ranks(getattr(args, "world_size", 1), told.get("train_dataloader"))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:  # noqa: ARG002
        self._beside.begin_epoch(int(state.epoch))

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_kwargs: Any) -> None:  # noqa: ARG002
        self._beside.validated(metrics or {})

    def on_save(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:  # noqa: ARG002
        self._beside.safely(self._save, args, state)

    def on_train_end(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:  # noqa: ARG002
        self._beside.flush()

    def _save(self, args: Any, state: Any) -> None:
        if saved := self._beside.state_dict():
            torch.save(saved, _checkpoint(args, state) / self._file)

    def _resume(self, args: Any, state: Any) -> None:
        if not state.global_step:
            return
        path = Path(self.checkpoint or _named(args, state) or _checkpoint(args, state)) / self._file
        if not path.exists():
            if hasattr(self._beside.sampler, "load_state_dict"):
                self._beside.complain(
                    f"there is no {path}, so the sampler goes on without its saved scores and position. If "
                    "the checkpoint is elsewhere, write ShadeTrainerCallback(..., checkpoint=DIRECTORY)"
                )
            return
        saved = torch.load(path, weights_only=True)
        if args.ignore_data_skip:  # The epoch is trained again from its first batch on.
            saved |= {"position": 0, "reported": 0}
        # Otherwise Trainer itself skips the batches that were trained on before the checkpoint.
        self._beside.sampler.load_state_dict(saved, skips=not args.ignore_data_skip)

    @property
    def _file(self) -> str:
        return f"shade_sampler_{self._beside.sampler.job.rank}.pt"


class ShadeTrainerMixin:
    """``class MyTrainer(ShadeTrainerMixin, Trainer)``: trains on an S3Dataset in the sampler's order, and
    reports the loss of each sample.

    ``train_dataset``: an S3Dataset whose decode returns a dict of features. ``shade_sampler``: a ShadeSampler
    of a job on that dataset. If there are several processes, make the job with rank and world size, because
    the sampler deals the samples to the ranks itself. ``shade_losses``: a function from outputs and labels to
    one loss a sample; by default ``class_losses``. In mode "importance" the training loss is the mean of the
    corrected sample losses; in other modes it is the loss that Trainer computes. ``shade_monitor``,
    ``shade_better``: as ``monitor`` and ``better`` of ShadeTrainerCallback.
    """

    def __init__(
        self,
        *args: Any,
        shade_sampler: Any,
        shade_losses: SampleLosses | None = None,
        shade_monitor: str | None = None,
        shade_better: Better = "min",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        trainer = cast(Any, self)
        if _chooses_order(trainer.args):
            _LOG.warning("The order comes from shade_sampler, so Trainer's sampling strategy is not used")
        self._beside = Companion(shade_sampler, monitor=None, better=shade_better)
        self._sample_losses = shade_losses or class_losses
        self._corrects = getattr(shade_sampler, "mode", None) == "importance"
        if self._corrects:
            # The corrected loss is the mean of one batch, so Trainer must divide it by the number of
            # accumulation steps.
            trainer.model_accepts_loss_kwargs = False
            trainer.loss_is_scaled_for_ga = False
        trainer.data_collator = SampleCollator(trainer.data_collator)
        self._callback = ShadeTrainerCallback(shade_sampler, monitor=shade_monitor, better=shade_better)
        trainer.add_callback(self._callback)

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train as Trainer does. A run that resumes from a checkpoint loads the sampler's state from there,
        too.
        """
        above: Any = super()
        is_directory = isinstance(resume_from_checkpoint, str | PathLike)
        self._callback.checkpoint = resume_from_checkpoint if is_directory else None
        return above.train(resume_from_checkpoint, *args, **kwargs)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the loader of ``train_dataset``. Do not let accelerate prepare it: that would deal the
        samples to the ranks a second time.
        """
        trainer = cast(Any, self)
        args = trainer.args
        # Older versions of torch and transformers lack ``in_order``.
        newer: dict[str, Any] = {} if getattr(args, "dataloader_in_order", True) else {"in_order": False}
        return DataLoader(
            trainer.train_dataset,
            batch_size=trainer._train_batch_size,  # noqa: SLF001 (as Trainer's own method uses it)
            sampler=self._beside.sampler,
            collate_fn=trainer.data_collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory and torch.cuda.is_available(),
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            drop_last=args.dataloader_drop_last,
            multiprocessing_context=getattr(args, "dataloader_multiprocessing_context", None),
            worker_init_fn=partial(_seed_worker, others=args.dataloader_num_workers * args.process_index),
            **newer,
        )

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        """Return the loss that Trainer computes, or the corrected loss in mode "importance". Report the loss
        of each sample.
        """
        above: Any = super()
        ids = inputs.pop(SAMPLE_IDS, None)
        labels = inputs.get("labels")  # Take the labels now, because Trainer may remove them below.
        loss, outputs = above.compute_loss(model, inputs, return_outputs=True, **kwargs)
        if ids is not None and model.training:
            corrected = self._beside.safely(self._report, ids, outputs, labels)
            loss = loss if corrected is None else corrected
        return (loss, outputs) if return_outputs else loss

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Call Trainer's method with the sample ids removed from ``inputs``."""
        above: Any = super()
        inputs.pop(SAMPLE_IDS, None)
        return above.prediction_step(model, inputs, *args, **kwargs)

    def _report(self, ids: torch.Tensor, outputs: Any, labels: Any) -> torch.Tensor | None:
        with torch.set_grad_enabled(self._corrects):
            losses = self._sample_losses(outputs, labels)
        self._beside.sampler.job.report(ids, losses)
        return (losses * self._beside.sampler.weight_of(ids)).mean() if self._corrects else None


def _chooses_order(args: Any) -> bool:
    """Return whether the arguments ask for an order of their own."""
    strategy = getattr(args, "train_sampling_strategy", "random")
    return strategy != "random" or bool(getattr(args, "group_by_length", False))


def _named(args: Any, state: Any) -> str | None:
    """Return the checkpoint that the arguments name, if it is of the present step."""
    directory = getattr(args, "resume_from_checkpoint", None)
    if not isinstance(directory, str):
        return None
    try:
        saved = json.loads((Path(directory) / "trainer_state.json").read_bytes())
        return directory if saved["global_step"] == state.global_step else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _checkpoint(args: Any, state: Any) -> Path:
    """Return the directory where Trainer keeps the checkpoint of the present step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _seed_worker(_worker: int, *, others: int) -> None:
    """Seed the random numbers of a worker of a rank before which ``others`` workers of other ranks count.
    Trainer sets the same seed in all ranks.
    """
    set_seed((torch.initial_seed() + others) % (1 << 32))


class SampleCollator:
    """Collates samples ``(features, id)``: the features with ``collate``, and the ids under the key
    SAMPLE_IDS. Samples of another form go to ``collate`` unchanged.
    """

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Sequence[Any]) -> Any:
        if not isinstance(samples[0], tuple):
            return self._collate(list(samples))
        features, ids = zip(*samples, strict=True)
        batch = self._collate(list(features))
        batch[SAMPLE_IDS] = torch.tensor(ids, dtype=torch.int64, device="cpu")
        return batch


def class_losses(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of each sample, for classification. ``outputs``: has logits of the shape (b,
    classes). ``labels``: (b,).
    """
    return functional.cross_entropy(_logits(outputs), labels, reduction="none")


def causal_lm_losses(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of each sample's next tokens. ``outputs``: has logits of the shape (b, t,
    words). ``labels``: (b, t), where -100 marks a position without a label.
    """
    logits, coming = _logits(outputs)[:, :-1], labels[:, 1:]
    losses = functional.cross_entropy(logits.transpose(1, 2), coming, reduction="none", ignore_index=-100)
    return losses.sum(1) / (coming != -100).sum(1).clamp(min=1)


def _logits(outputs: Any) -> torch.Tensor:
    logits: torch.Tensor = outputs["logits"] if hasattr(outputs, "keys") else outputs[1]
    return logits
