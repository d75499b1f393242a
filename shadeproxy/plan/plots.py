"""Plots a plan: the time of an epoch, and the bytes from the origin, by size of the cache.

Only this module of the package needs matplotlib, and it imports matplotlib when it draws.
"""

from pathlib import Path

from shadeproxy.core.units import format_count
from shadeproxy.plan.grid import Plan, Row
from shadeproxy.simulate.plots import save

_GIB = 1 << 30


def write_plot(plan: Plan, path: Path) -> None:
    """Write a picture of ``plan`` (I/O). Raises ShadeProxyError if it cannot be written."""
    from matplotlib.figure import Figure  # noqa: PLC0415  an optional library

    figure = Figure(figsize=(10, 4), dpi=120, layout="constrained")
    times, origin = figure.subplots(1, 2)
    lines: dict[tuple[int, bool, str], list[Row]] = {}
    for row in plan.rows:
        lines.setdefault((row.workers, row.announced, row.instance), []).append(row)
    for (workers, announced, instance), rows in lines.items():
        order = "announced" if announced else "no order"
        label = f"{format_count(workers, 'worker')}, {order} {instance}".rstrip()
        caches = [row.cache for row in rows]
        times.plot(caches, [row.epoch_s for row in rows], marker="o", label=label)
        origin.plot(caches, [row.origin_bytes / _GIB for row in rows], marker="o")
    times.set(title=f"job {plan.job}", xlabel="cache", ylabel="epoch (s)", ylim=(0, None))
    origin.set(title="bytes from the origin", xlabel="cache", ylabel="GiB an epoch", ylim=(0, None))
    times.legend(fontsize="small")
    save(figure, path)
