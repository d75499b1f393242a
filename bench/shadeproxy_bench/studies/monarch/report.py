"""Tables and a picture of the measured epochs. Each figure is the median over the seeds."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shadeproxy_bench.studies.monarch.runs import WAYS, Point, Scale
from shadeproxy_bench.tables import table

# The colours of Okabe and Ito, which colour-blind readers can tell apart.
_COLOURS = ("#000000", "#E69F00", "#D55E00", "#999999", "#56B4E9", "#0072B2", "#009E73")
_MARKERS = "xs^PvoD"

Value = Callable[[Point], float]


def needed_s(scale: Scale, point: Point) -> float:
    """Return the time that an epoch needs at least: to compute, or to carry its bytes over the link,
    whichever is longer.
    """
    return max(point.compute_s, point.bytes / scale.link_bytes_per_s)


def by_epoch(points: Sequence[Point], way: str, value: Value) -> list[float]:
    """Return the median of ``value`` over the seeds, for each epoch that was run."""
    mine = [point for point in points if point.way == way]
    epochs = sorted({point.epoch for point in mine})
    return [median(value(point) for point in mine if point.epoch == epoch) for epoch in epochs]


def epochs_table(points: Sequence[Point], value: Value, form: str) -> str:
    """Return a Markdown table of ``value``, with a line for each way that was run and a column for each
    epoch.
    """
    epochs = sorted({point.epoch for point in points})
    rows = []
    for way in WAYS:
        found = by_epoch(points, way.name, value)
        if found:
            rows.append([way.name, *(format(one, form) for one in found)])
    return "\n".join(table(["", *(f"epoch {epoch + 1}" for epoch in epochs)], rows))


def plot(points: Sequence[Point], scale: Scale, path: Path) -> None:
    """Plot the time of each epoch, its operations at the origin and its bytes from the origin."""
    figure = Figure(figsize=(12, 4.2), dpi=120, layout="constrained")
    panels = figure.subplots(1, 3)
    values: tuple[tuple[str, Value], ...] = (
        ("epoch, s", lambda one: one.wall_s),
        ("operations on the origin, thousands", lambda one: one.operations / 1e3),
        ("bytes from the origin, % of the data", lambda one: 100 * one.bytes / scale.data_bytes),
    )
    for axes, (label, value) in zip(panels, values, strict=True):
        for way, colour, marker in zip(WAYS, _COLOURS, _MARKERS, strict=True):
            found = by_epoch(points, way.name, value)
            at = [epoch + 1 for epoch in range(len(found))]
            axes.plot(at, found, label=way.name, color=colour, marker=marker, markersize=5, linewidth=1.5)
        _dress(axes, label, scale.epochs)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path)


def _dress(axes: Axes, label: str, epochs: int) -> None:
    axes.set_xticks(range(1, epochs + 1))
    axes.set_xlabel("epoch")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.grid(color="#DDDDDD")
    axes.spines[["top", "right"]].set_visible(False)
