"""Tables and two pictures of the measured epochs."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shadeproxy_bench.studies.stall.grid import WAYS, Axis, Point
from shadeproxy_bench.tables import table

# The colours of Okabe and Ito, which colour-blind readers can tell apart.
_COLOURS = ("#000000", "#E69F00", "#0072B2", "#D55E00", "#009E73")
_MARKERS = "xs^Do"

Value = Callable[[Point], float]


def columns(points: Sequence[Point], axis: Axis) -> list[float]:
    """Return the values of ``axis`` for which there are points: milliseconds of latency, or MB/s of the
    link.
    """
    return sorted({_at(point) for point in points if point.axis == axis})


def by_origin(points: Sequence[Point], axis: Axis, value: Value, form: str) -> str:
    """Return a Markdown table of ``value``, with a line for each way to read and a column for each origin."""
    places = columns(points, axis)
    head = [f"{place:g} {'ms' if axis == 'latency' else 'MB/s'}" for place in places]
    rows = []
    for way in WAYS:
        found = {_at(point): value(point) for point in points if (point.axis, point.way) == (axis, way.name)}
        cells = [format(found[place], form) if place in found else "-" for place in places]
        rows.append([way.name, *cells])
    return "\n".join(table(["", *head], rows))


def plots(points: Sequence[Point], out: Path) -> list[Path]:
    """Plot stall and epoch time against latency and against the link. Return the paths of the two
    pictures.
    """
    return [
        _picture(points, "latency", "origin latency, ms", out / "latency.png"),
        _picture(points, "link", "link, MB/s", out / "link.png"),
    ]


def _picture(points: Sequence[Point], axis: Axis, label: str, path: Path) -> Path:
    figure = Figure(figsize=(10, 4.2), dpi=120, layout="constrained")
    stall, wall = figure.subplots(1, 2)
    for way, colour, marker in zip(WAYS, _COLOURS, _MARKERS, strict=True):
        mine = sorted((one for one in points if (one.axis, one.way) == (axis, way.name)), key=_at)
        style = {"color": colour, "marker": marker, "markersize": 5, "linewidth": 1.5}
        at = [_at(one) for one in mine]
        stall.plot(at, [one.stall for one in mine], label=way.name, **style)
        wall.plot(at, [one.later.wall_s for one in mine], **style)
    best = sorted((one for one in points if (one.axis, one.way) == (axis, WAYS[-1].name)), key=_at)
    needed = [one.needed_s for one in best]
    wall.plot([_at(one) for one in best], needed, "--", color="#888888", label="max(compute, missed / link)")
    stall.set_ylabel("stall of the second epoch, % of its time")
    wall.set_ylabel("second epoch, s")
    wall.legend(frameon=False)
    for axes in (stall, wall):
        _dress(axes, label, [_at(one) for one in best])
    figure.legend(*stall.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(path)
    return path


def _dress(axes: Axes, label: str, at: Iterable[float]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(at), [f"{place:g}" for place in at], minor=False)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(label)
    axes.grid(color="#DDDDDD")
    axes.spines[["top", "right"]].set_visible(False)


def _at(point: Point) -> float:
    return point.latency_s * 1e3 if point.axis == "latency" else point.link_bytes_per_s / 1e6
