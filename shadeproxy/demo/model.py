"""The model that the demo trains. It is so small that one core trains it on 10,000 images in a few
seconds.
"""

import torch
from torch import nn


class SmallNet(nn.Module):
    """Three convolutions and a linear layer: float32 (b, 1, 24, 24) to ten logits (b, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *_block(1, 8),
            *_block(8, 16),
            *_block(16, 32),
            nn.Flatten(),
            nn.Linear(32 * 3 * 3, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of ``images``."""
        logits: torch.Tensor = self.layers(images)
        return logits


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of ``images`` for which the model's largest logit is that of the right label.
    Afterwards the model is in the same mode (training or evaluation) as before.
    """
    training = model.training
    model.eval()
    with torch.no_grad():
        guesses = torch.cat([model(some).argmax(1) for some in torch.split(images, 512)])
    model.train(training)
    return float((guesses == labels).float().mean())


def _block(channels_in: int, channels_out: int) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(channels_in, channels_out, 3, padding=1),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
