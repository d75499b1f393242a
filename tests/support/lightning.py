"""The names of Lightning and of the SDK's callback for it that tests use, and a model.

The import takes seconds, so a fixture imports this module, and not the file of the tests at its collection.
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn import functional

from shadeproxy_sdk.lightning import ShadeCallback

__all__ = ["ModelCheckpoint", "Module", "ShadeCallback", "Trainer"]


class Module(LightningModule):
    def __init__(self, sampler, *, by_hand=None, fails=False):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.sampler, self.by_hand, self.fails, self.read = sampler, by_hand, fails, []

    def training_step(self, batch, _):
        x, y, ids = batch
        self.read.append((self.current_epoch, ids.tolist()))
        losses = functional.cross_entropy(self.layer(x), y, reduction="none")
        loss = (losses * self.sampler.weight_of(ids)).mean()
        if self.by_hand is not None:
            self.by_hand.report(ids, losses)
            return loss
        return {"loss": loss, "ids": ids, "losses": losses[:1] if self.fails else losses}

    def validation_step(self, batch, _):
        self.log("accuracy", 0.25 * (self.current_epoch + 1), batch_size=len(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

    def epochs(self):
        """Return the ids that each epoch has read, in order."""
        found = {}
        for epoch, ids in self.read:
            found.setdefault(epoch, []).extend(ids)
        return found
