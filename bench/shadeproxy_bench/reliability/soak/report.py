"""Reports of a soak: a line each minute, the verdict, a picture, and the page docs/reliability/soak.md."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from matplotlib.figure import Figure

from shadeproxy_bench import machine
from shadeproxy_bench.reliability.kit.bodies import MIB
from shadeproxy_bench.reliability.kit.tally import Counts
from shadeproxy_bench.reliability.kit.verdict import Check, check_lines, checks_table, counts_table, failed
from shadeproxy_bench.reliability.kit.watch import Sample
from shadeproxy_bench.reliability.soak.run import Plan
from shadeproxy_bench.reliability.soak.verdict import Run

_HITS = ("ram", "disk")


def hit_ratio(counts: Counts) -> float:
    """Return the hit ratio of those object reads that were plain S3 requests."""
    total = sum(counts.sources.values())
    return sum(counts.sources.get(name, 0) for name in _HITS) / total if total else 0.0


def minute_line(sample: Sample, counts: Counts) -> str:
    outcomes = {name: count for name, count in counts.outcomes.items() if name != "ok"}
    tiers = ", ".join(
        f"{name} {used / MIB:.0f}/{sample.tier_capacity_bytes[name] / MIB:.0f} MiB"
        for name, used in sample.tier_bytes.items()
    )
    return (
        f"{sample.at_s / 60:5.1f} min  RssAnon {sample.rss_anon_bytes / 1e6:.0f} MB  "
        f"fds {sample.descriptors} (sockets {sample.sockets}, segments {sample.segments}, "
        f"others {sample.others})  "
        f"threads {sample.threads}  readings {sample.readings}  {tiers}  "
        f"requests {counts.requests:,}, {counts.compared_bytes / 1e9:.1f} GB compared, "
        f"hits {hit_ratio(counts):.0%}  "
        f"evicted {sum(sample.evictions.values()):,}  other than ok: {outcomes or 'none'}"
    )


def markdown(plan: Plan, run: Run, checks: Sequence[Check], picture: str) -> str:
    """Return the Markdown of the page about the soak: machine, load, verdict and counts."""
    counts = run.counts
    sources = sum(counts.sources.values()) or 1
    about = (
        f"{datetime.now(UTC):%Y-%m-%d}, {machine.describe()}. {plan.seconds / 60:.0f} minutes of load "
        f"from three processes on the same machine, on a proxy of {plan.workers}; "
        f"{len(plan.data):,} objects, {plan.data.total_bytes / 1e9:.1f} GB, "
        f"0 B to 20 MB, behind tiers of {plan.ram_bytes / MIB:.0f} MiB RAM and "
        f"{plan.disk_bytes / MIB:.0f} MiB disk. This page is written by the run; "
        "[measurements](../measurements.md#soak) says what the load is."
    )
    workers = f" WORKERS={plan.workers}" if plan.workers > 1 else ""
    verdict = (
        f"**{'Failed' if failed(checks) else 'Passed'}**: {counts.requests:,} answers, "
        f"{counts.compared_bytes / 1e9:,.1f} GB compared byte by byte."
    )
    shares = {name: f"{count / sources:.1%}" for name, count in counts.sources.items()}
    lines = [
        "# Soak",
        "",
        f"    make soak MINUTES={plan.seconds / 60:g} SEED={plan.seed}{workers} WRITE=1",
        "",
        about,
        "",
        verdict,
        "",
        *checks_table(checks),
        "",
        *counts_table("answers", "count", counts.kinds),
        *counts_table("outcome", "count", counts.outcomes),
        *counts_table("`x-shade-cache` of plain requests", "share", shares),
        f"![Memory and descriptors of the proxy over time]({picture})",
    ]
    return "\n".join([*lines, ""])


def verdict_lines(run: Run, checks: Sequence[Check]) -> list[str]:
    counts = run.counts
    return [
        *check_lines(checks),
        f"  requests  {counts.kinds}",
        f"  outcomes  {counts.outcomes}",
        f"   sources  {counts.sources}",
        *(f"     fault  {fault}" for fault in counts.faults),
        *(f" complaint  {line}" for line in run.complaints[:20]),
    ]


def plot(samples: Sequence[Sample], path: Path) -> None:
    """Plot the proxy's RssAnon, and its descriptors by kind, over minutes."""
    figure = Figure(figsize=(7.2, 5.4), dpi=130, layout="constrained")
    memory, descriptors = figure.subplots(2, 1, sharex=True)
    minutes = [sample.at_s / 60 for sample in samples]
    memory.plot(minutes, [sample.rss_anon_bytes / 1e6 for sample in samples], color="#0072B2")
    memory.set_ylabel("RssAnon (MB)")
    memory.set_ylim(bottom=0)
    for name, colour, line in (
        ("sockets", "#D55E00", "-"), ("segments", "#009E73", "--"), ("others", "#000000", ":"),
    ):  # fmt: skip
        values = [getattr(sample, name) for sample in samples]
        descriptors.plot(minutes, values, color=colour, linestyle=line, label=name)
    descriptors.set_ylabel("open descriptors")
    descriptors.set_xlabel("minutes")
    descriptors.set_ylim(bottom=0)
    descriptors.legend()
    figure.savefig(path)
