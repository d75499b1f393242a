"""Reports of a memory run: progress lines, the verdict, a picture, and the page
docs/reliability/memory.md.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from matplotlib.figure import Figure

from shadeproxy_bench import machine
from shadeproxy_bench.reliability.kit.verdict import Check, check_lines, checks_table, counts_table, failed
from shadeproxy_bench.reliability.memory.run import CONNECTION_BYTES, HELD_BYTES, Look, Plan, Run
from shadeproxy_bench.reliability.memory.stream import MIB
from shadeproxy_bench.tables import table


def progress_line(look: Look) -> str:
    return (
        f"{look.at_s:6.0f} s  moved {look.moved_bytes / MIB:,.0f} MiB  "
        f"resident {look.rss_bytes / MIB:.0f} MiB, at most {look.peak_bytes / MIB:.0f}  "
        f"tier {look.tier_bytes / MIB:.0f} MiB  in flight {look.inflight_bytes / MIB:.0f} MiB"
    )


def verdict_lines(run: Run, checks: Sequence[Check]) -> list[str]:
    return [
        *check_lines(checks),
        f"requests  {run.counts.kinds}",
        f"outcomes  {run.counts.outcomes}",
        *(f"   fault  {fault}" for fault in run.counts.faults),
    ]


def markdown(plan: Plan, run: Run, checks: Sequence[Check], picture: str) -> str:
    """Return the Markdown of the page about the run: machine, verdict, and the bound of memory with the parts
    of which the bound is the sum.
    """
    bound = plan.bound_bytes(run.idle.rss_bytes)
    held = min(HELD_BYTES, plan.clients // 2 * plan.part_bytes)
    slow_downs = run.counts.outcomes.get("slow down", 0)
    parts = (
        ("the process before the first request", run.idle.rss_bytes),
        ("RAM tier, `cache.ram.capacity`", plan.ram_bytes),
        ("pages on their way, `cache.inflight`", plan.inflight_bytes),
        ("parts held whole until their trailing checksum came", held),
        (f"{plan.clients} connections, {CONNECTION_BYTES / MIB:g} MiB each", plan.clients * CONNECTION_BYTES),
    )
    about = (
        f"{plan.clients} clients at once, each with an object of {plan.size_bytes / MIB:,.0f} MiB: up, then "
        "down. Half of them upload with one PutObject and download with one GET; half do as boto3 does over "
        f"TLS: parts of {plan.part_bytes / MIB:.0f} MiB with a trailing CRC-32, ranged GETs with If-Match. "
        "Every request is signed, every byte compared: of uploads at the origin, of downloads at the client. "
        f"The far side is the slow one: each body is taken at {plan.rate / MIB:g} MiB a second at most, so "
        "that any buffer without a bound would pile up in it."
    )
    verdict = (
        f"**{'Failed' if failed(checks) else 'Passed'}**: "
        f"{run.counts.compared_bytes / 1024**3:,.1f} GiB moved in {run.looks[-1].at_s:,.0f} s; resident at "
        f"most {run.rested.peak_bytes / MIB:,.0f} MiB, the bound is {bound / MIB:,.0f} MiB; {slow_downs} "
        "answers 503 SlowDown, repeated by the clients."
    )
    lines = [
        "# Memory under streams",
        "",
        "    make memory WRITE=1",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {machine.describe()}. This page is written by the run.",
        "",
        about,
        "",
        verdict,
        "",
        *checks_table(checks),
        "",
        *table(["the bound is the sum of", "MiB"], ([name, f"{size / MIB:,.0f}"] for name, size in parts)),
        "",
        *counts_table("requests", "count", run.counts.kinds),
        f"![Memory of the proxy over time]({picture})",
    ]
    return "\n".join([*lines, ""])


def plot(plan: Plan, run: Run, path: Path) -> None:
    """Plot resident memory, the RAM tier's files and pages in flight over seconds, with the bound as a
    line.
    """
    figure = Figure(figsize=(7.2, 3.6), dpi=130, layout="constrained")
    axes = figure.subplots()
    times = [look.at_s for look in run.looks]
    for label, colour, values in (
        ("resident", "#0072B2", [look.rss_bytes for look in run.looks]),
        ("RAM tier (files)", "#009E73", [look.tier_bytes for look in run.looks]),
        ("pages in flight", "#D55E00", [look.inflight_bytes for look in run.looks]),
    ):
        axes.plot(times, [value / MIB for value in values], color=colour, label=label)
    axes.axhline(plan.bound_bytes(run.idle.rss_bytes) / MIB, color="#000000", linestyle=":", label="bound")
    axes.set_ylabel("MiB")
    axes.set_xlabel("seconds")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path)
