"""``shadeproxy simulate``: makes a trace from options, and shows the result of its simulation as a table, as
JSON or as a picture.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from shadeproxy.cli.rows import table_console
from shadeproxy.core.errors import ConfigError
from shadeproxy.core.units import format_size
from shadeproxy.simulate.hints import parse_announce
from shadeproxy.simulate.plots import has_matplotlib, require_matplotlib, write_plot
from shadeproxy.simulate.run import Question, Result, parse_caches, parse_policies, simulate
from shadeproxy.simulate.trace import Trace
from shadeproxy.simulate.trace_file import load_trace
from shadeproxy.simulate.workloads import Draws, importance, lagged, shards, uniform

SAMPLERS = ("uniform", "importance", "heavy", "lagged", "shards")
_PLOT = Path("simulate.png")
_MOST_READS = 1 << 30


@dataclass(frozen=True, slots=True)
class Workload:
    """The value of ``--sampler``, and the values of the options that only apply to a sampler."""

    sampler: str
    objects: int
    epochs: int
    jobs: int
    ranks: int
    seed: int


def run_simulate(
    *,
    trace: Path | None,
    workload: Workload,
    policies: str,
    caches: str,
    announce: str,
    as_json: bool,
    plot: Path | None,
    with_plot: bool,
) -> None:
    """Simulate the policies, and print the result. Raises ConfigError, and ShadeProxyError if a plot cannot
    be made.
    """
    if trace is not None and workload.sampler:
        raise ConfigError("--trace and --sampler name different reads: leave one of them out")
    if trace is None and not workload.sampler:
        raise ConfigError(f"name what to read: --trace FILE.npz, or --sampler {'|'.join(SAMPLERS)}")
    if plot is not None and with_plot:
        require_matplotlib()
    reads = make_trace(workload) if trace is None else load_trace(trace)
    question = Question(
        reads,
        policies=parse_policies(policies),
        caches=parse_caches(caches, reads),
        announce=parse_announce(announce),
        seed=workload.seed,
    )
    messages = Console(stderr=True, soft_wrap=True)
    with messages.status("simulating") as status:
        result = simulate(
            question, progress=lambda name, cache: status.update(f"simulating {name} with a cache of {cache}")
        )
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(result)))
    else:
        _print(result)
    if not with_plot or (as_json and plot is None):
        return
    if plot is None and not has_matplotlib():
        messages.print("no plot: matplotlib is missing; install with: pip install matplotlib")
        return
    path = plot or _PLOT
    write_plot([(f"{result.reads:,} reads of {result.objects:,} objects", result.rows)], path)
    messages.print(f"plot: {path}", highlight=False)


def make_trace(workload: Workload) -> Trace:
    """Return the trace that the sampler makes. Raises ConfigError."""
    sampler, objects, epochs, jobs, seed = (
        workload.sampler,
        workload.objects,
        workload.epochs,
        workload.jobs,
        workload.seed,
    )
    if sampler not in SAMPLERS:
        raise ConfigError(f"--sampler: {sampler!r} is not one of {', '.join(SAMPLERS)}")
    if objects * epochs * jobs > _MOST_READS:
        raise ConfigError(
            f"--objects x --epochs x --jobs is {objects * epochs * jobs:,} reads; at most {_MOST_READS:,}"
        )
    if workload.ranks > objects:
        raise ConfigError(f"--ranks: {workload.ranks} ranks of {objects} objects: some would read nothing")
    if sampler == "uniform":
        return uniform(objects, epochs, seed=seed, jobs=jobs, ranks=workload.ranks)
    if sampler in {"importance", "heavy"}:
        draws: Draws = "heavy" if sampler == "heavy" else "shade"
        return importance(objects, epochs, seed=seed, jobs=jobs, ranks=workload.ranks, draws=draws)
    if workload.ranks > 1:
        raise ConfigError(f"--ranks does not go with --sampler {sampler}")
    if sampler == "lagged":
        return lagged(objects, epochs, seed=seed, jobs=max(jobs, 2))
    if jobs > 1:
        raise ConfigError("--jobs does not go with --sampler shards")
    return shards(objects, epochs, seed=seed)


def _print(result: Result) -> None:
    console = table_console(120)
    size = "" if result.bytes is None else f" ({format_size(result.bytes)})"
    console.print(f"{result.reads:,} reads of {result.objects:,} objects{size}", highlight=False)
    console.print(f"counted: {result.counted}; min: {result.bound}", highlight=False)
    table = Table(box=SIMPLE_HEAD)
    for name in ("cache", "policy"):
        table.add_column(name)
    for name in ("hit ratio", "byte hit ratio", "of min", "hits, all reads", "distinct ids an epoch"):
        table.add_column(name, justify="right")
    for number, (row, total) in enumerate(zip(result.rows, result.all_reads, strict=True)):
        if number and row.cache != result.rows[number - 1].cache:
            table.add_section()
        table.add_row(
            f"{row.cache:.4g}" if row.cache < 0.001 else f"{row.cache:.1%}",
            row.policy,
            f"{row.hit_ratio:.2%}",
            f"{row.byte_hit_ratio:.2%}",
            f"{row.of_min:.1%}",
            f"{total.hits:,}",
            f"{row.distinct:,.0f}",
        )
    console.print(table)
