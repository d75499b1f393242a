"""A table and a picture of the results with one link."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from matplotlib.figure import Figure

from shadeproxy_bench.studies.needs.model import Found, Loop
from shadeproxy_bench.tables import table

# The colours of Okabe and Ito, which colour-blind readers can tell apart.
_COLOURS = ("#D55E00", "#56B4E9", "#009E73", "#0072B2")
_COUNTED_FROM = 2


class Result(NamedTuple):
    """The result of one way to share the link. Only epochs that ended after ``since_s`` count."""

    name: str
    found: Found
    since_s: float


def rows(results: Sequence[Result], loops: Sequence[Loop]) -> list[str]:
    """Return a table with a line for each way to share the link. A line has the mean slowdown of each loop,
    how many epochs missed a need, and the MB read in a second.
    """
    lines = []
    for name, found, since_s in results:
        means, count, epochs = [], 0, 0
        for loop in loops:
            slowdowns = found.slowdowns(loop.name, _COUNTED_FROM, since_s)
            means.append(f"{fmean(slowdowns):.2f}" if slowdowns else "-")
            if loop.need is not None and loop.need.slowdown is not None:
                count += sum(one > loop.need.slowdown for one in slowdowns)
                epochs += len(slowdowns)
        missed = f"{count} of {epochs}" if epochs else "-"
        lines.append([name, *means, missed, f"{found.read_per_s / 1e6:.2f}"])
    return table(["", *(loop.name for loop in loops), "needs missed", "MB/s read"], lines)


def picture(results: Sequence[Result], loops: Sequence[Loop], path: Path) -> Path:
    """Plot the slowdown of each epoch at the time of its end. Each of ``results`` is a panel. Return
    ``path``.
    """
    figure = Figure(figsize=(10, 4), dpi=120, layout="constrained")
    panels = figure.subplots(1, len(results), sharey=True)
    for axes, result in zip(panels, results, strict=True):
        for loop, colour in zip(loops, _COLOURS, strict=True):
            epochs = result.found.epochs[loop.name]
            at, slowdowns = [one.ended_s for one in epochs], [one.slowdown for one in epochs]
            need = "" if loop.need is None else f", at most {loop.need.slowdown:g}"
            axes.plot(at, slowdowns, ".-", color=colour, linewidth=1.2, label=f"{loop.name}{need}")
            if loop.need is not None and loop.need.slowdown is not None:
                axes.axhline(loop.need.slowdown, color=colour, linestyle=":", linewidth=1)
        axes.set_title(result.name, loc="left", fontsize=10)
        axes.set_xlabel("s")
        axes.set_ylim(bottom=0.9)
        axes.grid(color="#DDDDDD")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("slowdown of the epoch")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path)
    return path
