"""The epochs of all runs, as a table and a picture of two plots for each data set."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from shadeproxy_bench.studies.training.runs import MODES, Epoch
from shadeproxy_bench.tables import table

# The colours of Okabe and Ito, which colour-blind readers can tell apart.
_COLOURS = ("#000000", "#E69F00", "#0072B2", "#D55E00", "#009E73", "#CC79A7")
_MARKERS = "s^DovP"


class Curves(NamedTuple):
    """The curves of one mode on one data set. Each is f64 of shape (seeds, epochs). ``origin_bytes`` are
    summed over the epochs so far.
    """

    accuracy: NDArray[np.float64]
    origin_bytes: NDArray[np.float64]
    hit_ratio: NDArray[np.float64]
    distinct: NDArray[np.float64]


def curves(epochs: Iterable[Epoch], data_set: str, mode: str) -> Curves:
    """Return the curves of one mode on one data set. ``distinct`` is a share of all samples of the
    data set.
    """
    runs: dict[int, list[Epoch]] = {}
    for one in epochs:
        if one.data_set == data_set and one.mode == mode:
            runs.setdefault(one.seed, []).append(one)

    def table(value: str) -> NDArray[np.float64]:
        return np.array([[getattr(one, value) for one in run] for run in runs.values()], dtype=np.float64)

    return Curves(
        table("accuracy"),
        np.cumsum(table("origin_bytes"), axis=1),
        table("hits") / table("reads"),
        table("distinct") / table("samples"),
    )


def accuracy_at(found: Curves, budget_bytes: float) -> NDArray[np.float64]:
    """Return, for each seed, the accuracy after the last epoch that ended within a budget of origin bytes;
    nan if none did.
    """
    within = (found.origin_bytes <= budget_bytes).sum(axis=1)
    return np.array([
        accuracy[count - 1] if count else np.nan
        for accuracy, count in zip(found.accuracy, within.tolist(), strict=True)
    ])  # fmt: skip


def modes_table(epochs: list[Epoch], data_set: str) -> str:
    """Return a Markdown table with a line for each mode of training: means and standard deviations over the
    seeds.
    """
    found = {mode.name: curves(epochs, data_set, mode.name) for mode in MODES}
    budget_bytes = min(float(one.origin_bytes[:, -1].mean()) for one in found.values())
    head = [
        "mode",
        "accuracy at the end",
        f"at {budget_bytes / 1e6:.1f} MB from the origin",
        "origin MB in all",
        "hits from the 2nd epoch",
        "distinct samples an epoch",
    ]
    rows = []
    for mode in MODES:
        one = found[mode.name]
        equal = accuracy_at(one, budget_bytes * 1.005)
        rows.append([
            mode.words,
            _spread(one.accuracy[:, -1]),
            _spread(equal),
            f"{one.origin_bytes[:, -1].mean() / 1e6:.1f}",
            f"{one.hit_ratio[:, 1:].mean():.1%}",
            f"{one.distinct.mean():.1%}",
        ])  # fmt: skip
    return "\n".join(table(head, rows))


def plots(epochs: list[Epoch], data_set: str, directory: Path) -> Path:
    """Plot the accuracy of each mode by epoch and by origin bytes. Return the path of the picture."""
    figure = Figure(figsize=(10, 4.2), dpi=120, layout="constrained")
    by_epoch, by_bytes = figure.subplots(1, 2, sharey=True)
    for mode, colour, marker in zip(MODES, _COLOURS, _MARKERS, strict=False):
        one = curves(epochs, data_set, mode.name)
        accuracy = one.accuracy.mean(axis=0)
        style = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.5}
        by_epoch.plot(np.arange(1, len(accuracy) + 1), accuracy, label=mode.words, **style)
        by_bytes.plot(one.origin_bytes.mean(axis=0) / 1e6, accuracy, **style)
    by_epoch.set_xlabel("epoch")
    by_epoch.set_ylabel("accuracy on the test split, mean of the seeds")
    by_bytes.set_xlabel("MB from the origin so far")
    for axes in (by_epoch, by_bytes):
        axes.grid(color="#DDDDDD")
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    path = directory / f"{data_set}.png"
    figure.savefig(path)
    return path


def _spread(values: NDArray[np.float64]) -> str:
    if np.isnan(values).any():
        return "-"
    return f"{values.mean():.1%} ± {100 * values.std(ddof=1) if len(values) > 1 else 0:.1f}"
