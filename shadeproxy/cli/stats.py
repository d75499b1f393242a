"""Shows the answer of ``GET /v1/stats`` as tables. telemetry/stats.py defines the fields of that answer."""

import json
from collections.abc import Mapping
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.measure import Measurement
from rich.table import Table

from shadeproxy.cli.control import ControlClient
from shadeproxy.core.errors import ConfigError, ShadeProxyError
from shadeproxy.core.units import format_size

_LEAST_NAME = 12
_MOST_WIDTH = 1000
# Headings of columns, so short that a row fits into 80 characters. "joined": reads of a page that was already
# on its way.
_READS = ("reads", "hits", "by bytes", "ram", "disk", "joined", "origin", "bypass", "bytes")
_NOT_BY_JOB = ("joined", "bypass")
_NO_EPOCH = "unknown"


def render_stats(stats: Mapping[str, Any]) -> Group:
    """Return tables of the tiers, the buckets, the jobs with their epochs, and the origin."""
    tables = [_tiers(stats["tiers"]), _buckets(stats["buckets"], stats["totals"])]
    if stats["jobs"]:
        tables.append(_jobs(stats["jobs"]))
    if any(share["need"] for share in stats.get("sharing", {}).get("jobs", {}).values()):
        tables.append(_sharing(stats["sharing"]))
    return Group(*tables, _origin(stats["origin"]))


def print_stats(stats: Mapping[str, Any], console: Console) -> None:
    """Print the tables of ``stats``. No name or number is cut; in a narrow terminal, lines wrap instead."""
    shown = render_stats(stats)
    least = Measurement.get(console, console.options.update(width=_MOST_WIDTH), shown).minimum
    console.width = max(console.width, least)
    console.print(shown, crop=False)


def show_nodes(client: ControlClient, console: Console, *, as_json: bool, watch: bool) -> None:
    """Print a row for each node of the cluster, and a row of their sums. Raises ShadeProxyError if a node did
    not answer.
    """
    if watch:
        raise ConfigError("--cluster shows one reading: leave out --watch")
    nodes = client.get("/v1/stats?cluster=1")["nodes"]
    silent = [f"{node['node']}: {node['problem']}" for node in nodes if node["problem"]]
    if as_json:
        typer.echo(json.dumps(nodes, indent=2))
    else:
        table = _nodes(nodes)
        # The table's own minimum is a few columns narrower than its content, so measure the maximum.
        wanted = Measurement.get(console, console.options.update(width=_MOST_WIDTH), table).maximum
        console.width = max(console.width, wanted)
        console.print(table, crop=False)
    if silent:
        raise ShadeProxyError(f"{len(silent)} of {len(nodes)} nodes gave no answer: {'; '.join(silent)}")


def epoch_order(name: str) -> tuple[int, int]:
    """Return a sort key for epochs: numbers come first, in their order, then all other names."""
    return (0, int(name)) if name.isdecimal() else (1, 0)


def _tiers(tiers: Mapping[str, Any]) -> Table:
    table = _table("tiers", "tier", "used", "capacity", "pages", "hits", "hit ratio", "admitted", "evicted")
    for name, tier in tiers.items():
        table.add_row(
            name,
            format_size(tier["used_bytes"]),
            format_size(tier["capacity_bytes"]),
            _count(tier["pages"]),
            _count(tier["hits"]),
            _share(tier["hit_ratio"]),
            _count(tier["admissions"]),
            _count(sum(tier["evictions"].values())),
        )
    return table


def _nodes(nodes: list[dict[str, Any]]) -> Table:
    table = _table(
        "cluster", "node", "reads", "hits", "bytes", "relayed", "bytes", "past all", "origin", "bytes",
        "used", "lease", "view",
    )  # fmt: skip
    table.columns[0].no_wrap = True  # Do not wrap names: users copy them from here into other commands.
    for node in nodes:
        state = ("no answer", "") if node["problem"] else (f"{node['lease_s']:.1f} s", str(node["view"]))
        table.add_row(node["node"], *_node_cells(node), *state)
    answered = [node for node in nodes if not node["problem"]]
    numbers = {name for node in answered for name, value in node.items() if isinstance(value, int | float)}
    table.add_section()
    table.add_row("all", *_node_cells({name: sum(node[name] for node in answered) for name in numbers}))
    return table


def _node_cells(node: Mapping[str, Any]) -> list[str]:
    if node.get("problem"):
        return ["-"] * 9
    return [
        _count(node["reads"]),
        _share(node["hits"] / node["reads"] if node["reads"] else 0.0),
        format_size(node["bytes"]),
        _count(node["relayed"]),
        format_size(node["relayed_bytes"]),
        _count(node["fallbacks"]),
        _count(node["origin_requests"]),
        format_size(node["origin_bytes"]),
        _share(node["used_bytes"] / node["capacity_bytes"] if node["capacity_bytes"] else 0.0),
    ]


def _buckets(buckets: Mapping[str, Any], totals: Mapping[str, Any]) -> Table:
    table = _table("buckets", "bucket", *_READS)
    for name, reads in sorted(buckets.items()):
        table.add_row(name, *_reads(reads))
    table.add_section()
    table.add_row("all", *_reads(totals))
    return table


def _jobs(jobs: Mapping[str, Any]) -> Table:
    columns = [column for column in _READS if column not in _NOT_BY_JOB]
    table = _table("jobs", "job", "epoch", *columns, "stall")
    for name, job in sorted(jobs.items()):
        for epoch, reads in sorted(job["epochs"].items(), key=lambda one: epoch_order(one[0])):
            if epoch == _NO_EPOCH and not (reads["requests"] or reads["stall_s"]):
                continue  # It only counts what prefetches between two epochs took from the origin.
            shown = [
                cell for column, cell in zip(_READS, _reads(reads), strict=True) if column not in _NOT_BY_JOB
            ]
            table.add_row(name, epoch, *shown, f"{reads['stall_s']:.1f} s")
        table.add_section()
    return table


def _sharing(sharing: Mapping[str, Any]) -> Table:
    table = _table(f"needs: {sharing['reason']}", "job", "need", "needs/s", "gets/s", "cache", "link", "kept")
    for name, share in sharing["jobs"].items():
        rates = (
            "-" if rate is None else f"{rate:.4g}" for rate in (share["needs_per_s"], share["got_per_s"])
        )
        parts = (
            "-" if part is None else _share(part) for part in (share["cache_share"], share["link_share"])
        )
        kept = {None: "-", True: "kept", False: "missed"}[share["kept"]]
        table.add_row(name, share["need"] or "-", *rates, *parts, kept)
    return table


def _origin(origin: Mapping[str, Any]) -> Table:
    table = _table("origin", "requests", "bytes", "errors")
    table.add_row(_count(origin["requests"]), format_size(origin["bytes"]), _count(origin["errors"]))
    return table


def _reads(reads: Mapping[str, Any]) -> list[str]:
    return [
        _count(reads["requests"]),
        _share(reads["hit_ratio"]),
        _share(reads["byte_hit_ratio"]),
        *(_count(reads[name]) for name in ("hits_ram", "hits_disk", "coalesced", "origin", "bypass")),
        format_size(reads["bytes"]),
    ]


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(first, overflow="fold", min_width=_LEAST_NAME)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _count(value: int) -> str:
    return f"{value:,}"


def _share(value: float) -> str:
    return f"{value:.1%}"
