"""Draws the plots of the report, in Okabe and Ito's colours. Each line also has its own markers, so that
lines can be told apart without colours.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from shadeproxy.demo.report import Epoch, Report


class _Style(NamedTuple):
    """The style of the line of one run. Lines of similar results cover each other, so later runs have smaller
    markers.
    """

    colour: str
    marker: str
    line: str
    size: float


_STYLES = {
    "direct": _Style("#000000", "s", ":", 11),
    "lru": _Style("#E69F00", "^", "--", 10),
    "default": _Style("#0072B2", "D", "-.", 6),
    "shade": _Style("#009E73", "o", "-", 6),
}


class _Plot(NamedTuple):
    file: str
    title: str
    label: str
    value: Callable[[Epoch], float]
    is_share: bool
    skip: tuple[str, ...] = ()
    bound: float | None = None
    from_zero: bool = True


def write_plots(report: Report, titles: dict[str, str], directory: Path) -> list[Path]:
    """Plot hit ratio, stall and accuracy by epoch, as PNG files, and return their paths. ``titles``: for each
    name of a run, the text that the legend shows.
    """
    share = report.cache_bytes / report.dataset.bytes
    plots = (
        _Plot(
            "hit_ratio.png",
            f"Reads answered by the cache (it holds {share:.0%} of the data)",
            "hit ratio",
            lambda epoch: epoch.hit_ratio,
            is_share=True,
            skip=("direct",),
            bound=share,
        ),
        _Plot(
            "stall.png",
            "Time that training waited for data",
            "stall per epoch (s)",
            lambda epoch: epoch.stall_s,
            is_share=False,
        ),
        _Plot(
            "accuracy.png",
            "Accuracy on digits that no run trained on",
            "accuracy",
            lambda epoch: epoch.accuracy,
            is_share=True,
            from_zero=False,
        ),
    )
    return [_draw(plot, report, titles, directory / plot.file) for plot in plots]


def _draw(plot: _Plot, report: Report, titles: dict[str, str], path: Path) -> Path:
    figure = Figure(figsize=(7.2, 4.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for run in report.runs:
        if run.name in plot.skip:
            continue
        style = _STYLES[run.name]
        values = [plot.value(epoch) for epoch in run.epochs]
        axes.plot(
            _numbers(values),
            values,
            color=style.colour,
            marker=style.marker,
            linestyle=style.line,
            linewidth=2,
            markersize=style.size,
            label=titles[run.name],
        )
    if plot.bound is not None:
        axes.axhline(plot.bound, color="#666666", linewidth=1, zorder=0)
        axes.annotate(
            "cached fraction",
            (1.0, plot.bound),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            horizontalalignment="right",
            color="#444444",
            fontsize=9,
        )
    axes.set_title(plot.title, loc="left")
    axes.set_xlabel("epoch")
    axes.set_ylabel(plot.label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if plot.from_zero:
        axes.set_ylim(0, 1.25 * max(axes.get_ylim()[1], plot.bound or 0))
    if plot.is_share:
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.grid(axis="y", color="#DDDDDD")
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[1]:
        figure.legend(loc="outside lower center", ncols=len(report.runs), frameon=False)
    figure.savefig(path)
    return path


def _numbers(values: Sequence[float]) -> range:
    return range(1, len(values) + 1)
