"""Reports of an overload run: lines for the terminal, the verdict, a picture, and the page
docs/reliability/overload.md.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from matplotlib.figure import Figure

from shadeproxy_bench import machine
from shadeproxy_bench.reliability.kit.verdict import Check, check_lines, checks_table, failed
from shadeproxy_bench.reliability.overload.run import MIB, Plan, Played, Run
from shadeproxy_bench.reliability.overload.verdict import CONNECTION_BYTES, bound_bytes, memory_bytes, most
from shadeproxy_bench.tables import table


def phase_lines(played: Played) -> list[str]:
    """Return the result of one phase as lines for the terminal."""
    peak = max(map(memory_bytes, played.samples)) / MIB
    first = (
        f"{played.name}: memory {peak:,.0f} MiB, descriptors {most(played.samples, 'descriptors')}, "
        f"tasks {most(played.samples, 'tasks')}, at rest after {_rested(played)}"
    )
    return [first, *("  " + "  ".join(row) for row in _sides(played))]


def verdict_lines(run: Run, checks: Sequence[Check]) -> list[str]:
    return [
        *check_lines(checks),
        *(f"complaint  {line}" for line in run.complaints[:20]),
    ]


def markdown(plan: Plan, run: Run, checks: Sequence[Check], picture: str, *, warnings: Sequence[str]) -> str:
    """Return the Markdown of the page about the run: machine, verdict, bound of memory, and results of each
    kind of client.
    """
    about = (
        "One proxy, one origin, and phases of clients that ask for more than there is; beside bad clients "
        f"a good one with two connections (`modest`). RAM tier {plan.ram_bytes / MIB:.0f} MiB, "
        f"`cache.inflight` {plan.inflight_bytes / MIB:.0f} MiB, {plan.origin_connections} connections to "
        "the origin. Every body is compared, every request signed, every read counted at the origin. All "
        "processes share the machine, so rates are what was left for them."
    )
    bound = (
        "Memory is what is resident without the segments of the RAM tier, which are pages of tmpfs. "
        f"The bound: what it was at first ({memory_bytes(run.idle) / MIB:.0f} MiB), twice `cache.inflight`, "
        f"and {CONNECTION_BYTES // 1024} KiB for each connection. At rest: no reads, no bytes in flight, "
        "no connections, and no more sockets, other descriptors or tasks than before the first phase."
    )
    judged = f"{sum(check.passed is True for check in checks)} of {len(checks)} checks"
    without = (
        "The end of descriptors is tested in `tests/e2e/test_descriptors.py`: clients never "
        "take the last ones; a client that comes then gets 503 SlowDown."
    )
    lines = [
        "# Overload",
        "",
        "    make overload WRITE=1",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {machine.describe()}. This page is written by the run.",
        *(f"Warning: {warning}." for warning in warnings),
        "",
        about,
        "",
        f"**{'Failed' if failed(checks) else 'Passed'}**: {judged}.",
        "",
        *checks_table(checks),
        "",
        bound,
        "",
        *table(
            ["phase", "connections", "memory, MiB", "bound, MiB", "descriptors", "tasks", "at rest after"],
            (_row(plan, run, one) for one in run.played),
        ),
        "",
        "Of each kind of client: answers by outcome, and of the right ones median, 99th percentile and rate.",
        "",
        *table(
            ["phase", "client", "answers", "median", "p99", "a second"],
            ([one.name, *row] for one in run.played for row in _sides(one)),
        ),
        "",
        f"![Memory, descriptors and tasks of the proxy over the phases]({picture})",
        "",
        without,
    ]
    return "\n".join([*lines, ""])


def plot(run: Run, path: Path) -> None:
    """Plot memory, descriptors and tasks of the proxy over minutes. Every other phase has a band
    behind it.
    """
    figure = Figure(figsize=(7.2, 7.2), dpi=130, layout="constrained")
    axes = figure.subplots(3, 1, sharex=True)
    samples = [sample for one in run.played for sample in one.samples]
    minutes = [sample.at_s / 60 for sample in samples]
    series = (
        ("memory without segments (MiB)", [memory_bytes(sample) / MIB for sample in samples], "#0072B2"),
        ("open descriptors", [sample.descriptors for sample in samples], "#D55E00"),
        ("tasks", [sample.tasks for sample in samples], "#009E73"),
    )
    for axis, (label, values, colour) in zip(axes, series, strict=True):
        axis.plot(minutes, values, color=colour)
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        for turn, one in enumerate(run.played):
            span = (one.samples[0].at_s / 60, one.samples[-1].at_s / 60)
            axis.axvspan(*span, color="#000000", alpha=0.06 if turn % 2 else 0.0, linewidth=0)
            if axis is axes[0]:
                axis.text(
                    span[0], 1.02, one.name, rotation=30, fontsize=7, transform=axis.get_xaxis_transform()
                )
    axes[-1].set_xlabel("minutes")
    figure.savefig(path)


def _row(plan: Plan, run: Run, one: Played) -> list[str]:
    connections = most(one.samples, "connections")
    return [
        one.name,
        f"{connections:,}",
        f"{max(map(memory_bytes, one.samples)) / MIB:,.0f}",
        f"{bound_bytes(plan, run.idle, connections) / MIB:,.0f}",
        f"{most(one.samples, 'descriptors'):,}",
        f"{most(one.samples, 'tasks'):,}",
        _rested(one),
    ]


def _sides(one: Played) -> list[list[str]]:
    return [
        [
            who,
            ", ".join(f"{name}: {count:,}" for name, count in sorted(side.outcomes.items())) or "none yet",
            *(
                [f"{side.p50_s * 1000:,.0f} ms", f"{side.p99_s * 1000:,.0f} ms", f"{side.rate:,.1f}"]
                if side.rate
                else ["", "", ""]
            ),
        ]
        for who, side in one.told.sides.items()
    ]


def _rested(one: Played) -> str:
    return "not in time" if one.rested_after_s is None else f"{one.rested_after_s:.0f} s"
