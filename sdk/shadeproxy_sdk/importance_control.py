"""SHADE's switch between aggressive and relaxed draws: importance counts for less while validation does not
improve. Pure arithmetic.

There are STEPS + 1 levels. Training starts at the most aggressive; a validation that does not beat the best
so far relaxes by one level, one that does tightens by one. At level 0 draws are uniform.
"""

import math
from typing import Any

from shadeproxy_sdk.errors import ConfigError

STEPS = 4


class ImportanceControl:
    """``level``: 0 .. STEPS. ``best``: the best value so far, larger being better; None before the first."""

    def __init__(self) -> None:
        self.level = STEPS
        self.best: float | None = None

    @property
    def aggressiveness(self) -> float:
        """The share of importance in a draw: level / STEPS, 1.0 to 0.0."""
        return self.level / STEPS

    def validated(self, *, accuracy: float | None, loss: float | None) -> float:
        """Take one validation result, ``accuracy`` (larger is better) or ``loss`` (smaller is better). Return
        the new aggressiveness. nan counts as not improved. Raises ConfigError unless exactly one is given.
        """
        if (accuracy is None) == (loss is None):
            raise ConfigError("validated() takes either accuracy=... or loss=..., and always the same one")
        value = float(accuracy) if accuracy is not None else -float(loss or 0.0)
        improved = math.isfinite(value) and (self.best is None or value > self.best)
        if improved:
            self.best = value
        self.level = min(self.level + 1, STEPS) if improved else max(self.level - 1, 0)
        return self.aggressiveness

    def state(self) -> dict[str, Any]:
        """Return numbers for a checkpoint."""
        return {"level": self.level, "best": self.best}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the result of ``state``."""
        self.level, self.best = state["level"], state["best"]
