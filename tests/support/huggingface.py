"""The names of transformers and of the SDK's mixin for it that tests use.

The import takes seconds, so a fixture imports this module, and not the file of the tests at its collection.
"""

from transformers import Trainer, TrainerCallback, TrainingArguments, default_data_collator

from shadeproxy_sdk.huggingface import (
    SAMPLE_IDS,
    ShadeTrainerCallback,
    ShadeTrainerMixin,
    causal_lm_losses,
    class_losses,
)

__all__ = [
    "SAMPLE_IDS", "RecordingTrainer", "ShadeTrainerCallback", "Trainer", "TrainerCallback",
    "TrainingArguments", "causal_lm_losses", "class_losses", "default_data_collator",
]  # fmt: skip


class RecordingTrainer(ShadeTrainerMixin, Trainer):
    """A Trainer that records the ids of each batch that it trains on."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.ids = []

    def compute_loss(self, model, inputs, *args, **kwargs):
        if model.training:
            self.ids.append(inputs[SAMPLE_IDS].tolist())
        return super().compute_loss(model, inputs, *args, **kwargs)
