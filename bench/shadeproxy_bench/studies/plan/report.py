"""Tables and a picture of predicted epochs beside measured ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shadeproxy_bench.predictions.compare import Compared, Group, errors_of
from shadeproxy_bench.tables import table

# The colours of Okabe and Ito, which colour-blind readers can tell apart.
_COLOURS = dict(zip(get_args(Group), ("#0072B2", "#D55E00", "#009E73", "#CC79A7"), strict=True))
_MARKERS = dict(zip(get_args(Group), "os^D", strict=True))


def by_group(compared: Sequence[Compared]) -> str:
    """Return a Markdown table of errors, with a line for each kind of setting."""
    rows = []
    for group in get_args(Group):
        of = [one for one in compared if one.group == group]
        if not of:
            continue
        errors = errors_of(of)
        rows.append(
            [
                group,
                str(errors.count),
                f"{errors.mean:.1%}",
                f"{errors.worst:.1%}",
                f"{errors.bound_mean:.1%}",
                f"{errors.bound_worst:.1%}",
                f"{errors.spread:.1%}",
                f"{max(abs(one.hit_error) for one in of):.3f}",
                f"{max(abs(one.bytes_error) for one in of):.1%}",
                f"{100 * max(abs(one.stall_error) for one in of):.1f}",
            ]
        )
    head = [
        "", "settings", "mean error", "worst", "bound: mean", "worst", "epochs differ", "hit ratio, worst",
        "bytes, worst", "stall, worst points",
    ]  # fmt: skip
    return "\n".join(table(head, rows))


def by_setting(compared: Sequence[Compared]) -> str:
    """Return a Markdown table of measured and predicted epochs, with a line for each setting."""
    rows = [
        [
            one.point.name,
            f"{one.epoch_s:.2f}",
            f"{one.predicted_s:.2f}",
            f"{one.error:+.1%}",
            f"{one.bound_error:+.1%}",
            f"{one.spread:.1%}",
            f"{one.hit_error:+.3f}",
            f"{100 * one.stall_error:+.1f}",
            "yes" if one.outside else "",
        ]
        for one in compared
    ]
    head = [
        "", "epoch, s", "predicted, s", "error", "bound", "epochs differ", "hit ratio", "stall, points",
        "outside the profile",
    ]  # fmt: skip
    return "\n".join(table(head, rows))


def plots(compared: Sequence[Compared], out: Path) -> Path:
    """Plot the times that ``shadeproxy plan`` and the bound predict, against the measured times. Return the
    path of the picture.
    """
    figure = Figure(figsize=(10, 4.6), dpi=120, layout="constrained")
    ours, bound = figure.subplots(1, 2, sharex=True, sharey=True)
    most = 1.15 * max(one.epoch_s for one in compared)
    least = 0.85 * min(min(one.epoch_s, one.bound_s) for one in compared)
    for group in get_args(Group):
        of = [one for one in compared if one.group == group]
        style = {"color": _COLOURS[group], "marker": _MARKERS[group], "linestyle": "", "markersize": 5}
        measured = [one.epoch_s for one in of]
        ours.plot(measured, [one.predicted_s for one in of], label=group, **style)
        bound.plot(measured, [one.bound_s for one in of], **style)
    for axes, title in ((ours, "shadeproxy plan"), (bound, "max(compute, missed bytes / link)")):
        _dress(axes, title, least, most)
    ours.set_ylabel("predicted epoch, s")
    figure.legend(*ours.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    path = out / "predicted.png"
    figure.savefig(path)
    return path


def _dress(axes: Axes, title: str, least: float, most: float) -> None:
    axes.plot([least, most], [least, most], color="#888888", linewidth=1)
    axes.fill_between(
        [least, most], [0.95 * least, 0.95 * most], [1.05 * least, 1.05 * most], color="#DDDDDD", linewidth=0
    )
    axes.set(title=title, xlabel="measured epoch, s", xlim=(least, most), ylim=(least, most))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    ticks = [tick for tick in (1, 2, 4, 8, 16, 32) if least <= tick <= most]
    axes.set_xticks(ticks, [str(tick) for tick in ticks], minor=False)
    axes.set_yticks(ticks, [str(tick) for tick in ticks], minor=False)
    axes.grid(color="#EEEEEE")
    axes.spines[["top", "right"]].set_visible(False)
