"""Plots hit ratio against cache size, one line for each policy.

Lines have Okabe and Ito's colours and a marker each, so that colour-blind readers can tell them apart. Only
this module of the package needs matplotlib, and it imports matplotlib when it draws.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.simulate.run import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLE_CHARACTERS = 48

_STYLES = {
    "lru": ("#E69F00", "^", "--"),
    "lfu": ("#56B4E9", "v", "--"),
    "fifo": ("#999999", "<", "--"),
    "random": ("#999999", "x", ":"),
    "static": ("#CC79A7", "s", ":"),
    "importance": ("#D55E00", "p", "-."),
    "shade": ("#F0E442", "h", "-."),
    "s3-fifo": ("#009E73", "P", "--"),
    "w-tinylfu": ("#009E73", "X", "-."),
    "arc": ("#D55E00", "d", "--"),
    "2q": ("#CC79A7", "+", "--"),
    "sieve": ("#009E73", ">", ":"),
    "default": ("#0072B2", "o", "-"),
    "min": ("#000000", "D", "-"),
}


def has_matplotlib() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def require_matplotlib(otherwise: str = "write --no-plot") -> None:
    """Raise ShadeProxyError if matplotlib is missing. The error names the package to install, and
    ``otherwise``, the way to do without.
    """
    if not has_matplotlib():
        raise ShadeProxyError(
            f"the plot needs matplotlib; install with: pip install matplotlib, or {otherwise}"
        )


def write_plot(panels: Sequence[tuple[str, Sequence[Row]]], path: Path) -> None:
    """Write a plot whose panels stand side by side. ``panels``: title and rows of each panel. Raises
    ShadeProxyError if matplotlib is missing or the file cannot be written.
    """
    require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415  an optional library
    from matplotlib.ticker import PercentFormatter  # noqa: PLC0415  as above

    columns = min(len(panels), 3)
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(max(7.2, 4.6 * columns), 0.8 + 3.8 * lines), dpi=120, layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for (title, rows), axes in zip(panels, grid.flat, strict=False):
        for name, (colour, marker, line) in _STYLES.items():
            points = sorted((row.cache, row.hit_ratio) for row in rows if row.policy == name)
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, marker=marker, linestyle=line, label=name)
        axes.set_title(fill(title, _TITLE_CHARACTERS), loc="left", fontsize=10)
        axes.set_xlabel("cache, share of the data")
        axes.set_ylabel("hit ratio")
        axes.set_xlim(left=0)
        axes.set_ylim(0, 1)
        axes.xaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
        axes.grid(color="#DDDDDD")
        axes.spines[["top", "right"]].set_visible(False)
    handles = {
        label: handle
        for axes in grid.flat
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=9, frameon=False)
    save(figure, path)


def save(figure: "Figure", path: Path) -> None:
    """Write a figure. Raises ShadeProxyError if the file cannot be written."""
    try:
        figure.savefig(path)
    except OSError as error:
        raise ShadeProxyError(f"the plot cannot be written to {path}: {error.strerror or error}") from None
    except ValueError:  # Matplotlib chooses the format by the extension of the file name.
        raise ShadeProxyError(
            f"the plot cannot be written to {path}: write a name that ends in .png, .svg or .pdf"
        ) from None
