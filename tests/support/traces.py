"""Writes traces into files."""

from pathlib import Path
from typing import Any

import numpy as np

from shadeproxy.simulate.trace import JobHints, Trace

COLUMNS = ("jobs", "epochs", "sources", "ranks", "ids", "sizes", "weights", "times", "prefixes")


def save_trace(trace: Trace, path: Path) -> None:
    """Write a trace to a file that ``load_trace`` reads."""
    columns = {name: getattr(trace, name) for name in COLUMNS}
    arrays: dict[str, Any] = {name: column for name, column in columns.items() if column is not None}
    if trace.stock:
        arrays["stock"] = np.array(trace.stock, dtype=np.uint8)
    np.savez(path, **(arrays | _hint_arrays(trace.hints)))


def _hint_arrays(hints: tuple[JobHints, ...]) -> dict[str, Any]:
    """Return the arrays in which a file of a trace has ``hints``."""
    found: dict[str, Any] = {}
    for hint in hints:
        found[f"dataset_{hint.job}"] = np.array([hint.first, hint.stop])
        found[f"order_{hint.job}"] = hint.order
        found[f"known_{hint.job}"] = np.stack([hint.since, hint.known], axis=1)
        if hint.scores is not None and hint.scored_at is not None:
            found[f"scores_{hint.job}"], found[f"scored_{hint.job}"] = hint.scores, hint.scored_at
    return found
