"""Makes the results of ``demo --nodes``: ``nodes.json``, a table, and sentences about the numbers. This
module measures nothing.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.table import Table

from shadeproxy.demo.messages import Counted
from shadeproxy.demo.report import DataSet, Machine
from shadeproxy.demo.screen import table_of_means

_MIB = 1024**2


class Node(msgspec.Struct, frozen=True):
    """One proxy. ``share``: the part of all objects that the proxy owns, from 0 to 1. ``epochs``: its
    counters by epoch; a read is counted at the proxy that caches the sample. ``lan_*``: for each epoch, the
    reads of this proxy's own rank whose samples another proxy caches.
    """

    share: float
    epochs: tuple[Counted, ...]
    lan_reads: tuple[int, ...]
    lan_bytes: tuple[int, ...]


class NodesRun(msgspec.Struct, frozen=True):
    """One training. ``wall_s``, ``stall_s``: seconds of each epoch; the stall is the mean over all ranks.
    ``accuracy``: the model's accuracy at the end of the training.
    """

    nodes: tuple[Node, ...]
    wall_s: tuple[float, ...]
    stall_s: tuple[float, ...]
    accuracy: float


class NodesReport(msgspec.Struct, frozen=True):
    """The results of two trainings: ``together`` through several proxies, ``alone`` through one proxy.
    ``cache_bytes``: the capacity of all proxies of ``together`` in sum, and also that of the one proxy of
    ``alone``.
    """

    machine: Machine
    dataset: DataSet
    cache_bytes: int
    together: NodesRun
    alone: NodesRun


def write_report(report: NodesReport, directory: Path) -> Path:
    """Write ``nodes.json``; return its path."""
    path = directory / "nodes.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return path


def table(report: NodesReport) -> Table:
    """Return a table with a row for each proxy, a row for their sum, and a row for the single proxy. The
    numbers are means over all epochs but the first, which only fills the caches.
    """
    made = table_of_means(
        "proxy",
        "share of\nobjects",
        "reads",
        "hits\nRAM",
        "hits\ndisk",
        "LAN\nreads",
        "LAN\nMiB",
        "origin\nreads",
        "origin\nMiB",
    )
    nodes = report.together.nodes
    for number, node in enumerate(nodes, 1):
        made.add_row(f"{number}", *_cells([node]), end_section=number == len(nodes))
    made.add_row(f"all {len(nodes)}", *_cells(nodes))
    made.add_row("one instead", *_cells(report.alone.nodes))
    return made


def findings(report: NodesReport) -> list[str]:
    """Return sentences about the numbers of the report, both good and bad ones."""
    nodes, one = report.together.nodes, report.alone.nodes
    wall_s, wall_of_one_s = _later(report.together.wall_s), _later(report.alone.wall_s)
    hits = (
        f"{len(nodes)} caches are one: they answer {_hit_ratio(nodes):.1%} of the reads; one proxy with the"
        f" same capacity answers {_hit_ratio(one):.1%}. {_mib(nodes, 'origin_bytes'):.1f} MiB an epoch came"
        f" from the origin, {_mib(one, 'origin_bytes'):.1f} MiB with one proxy."
    )
    lan = sum(_later(node.lan_reads) for node in nodes)
    network = (
        f"The price: {_lan_mib(nodes):.1f} MiB an epoch crossed the network,"
        f" {_ratio(lan, _mean(nodes, 'requests')):.0%} of the reads, because a rank reads most samples from"
        " the cache of a proxy that is not beside it. That network should be faster than the origin."
    )
    times = (
        f"An epoch took {wall_s:.1f} s, and {wall_of_one_s:.1f} s with one proxy; the accuracy at the end is"
        f" {report.together.accuracy:.1%} and {report.alone.accuracy:.1%}. All processes share"
        f" {report.machine.cores} processor cores here: compare bytes, not times."
    )
    return [hits, network, times]


def _cells(nodes: Sequence[Node]) -> list[str]:
    requests = _mean(nodes, "requests")
    return [
        f"{sum(node.share for node in nodes):.1%}",
        f"{requests:,.0f}",
        f"{_ratio(_mean(nodes, 'hits_ram'), requests):.1%}",
        f"{_ratio(_mean(nodes, 'hits_disk'), requests):.1%}",
        f"{sum(_later(node.lan_reads) for node in nodes):,.0f}",
        f"{_lan_mib(nodes):.1f}",
        f"{_mean(nodes, 'origin_requests'):,.0f}",
        f"{_mib(nodes, 'origin_bytes'):.1f}",
    ]


def _hit_ratio(nodes: Sequence[Node]) -> float:
    return _ratio(_mean(nodes, "hits_ram") + _mean(nodes, "hits_disk"), _mean(nodes, "requests"))


def _lan_mib(nodes: Sequence[Node]) -> float:
    return sum(_later(node.lan_bytes) for node in nodes) / _MIB


def _mib(nodes: Sequence[Node], field: str) -> float:
    return _mean(nodes, field) / _MIB


def _mean(nodes: Sequence[Node], field: str) -> float:
    """Return the sum of ``field`` over the nodes, as a mean over all epochs but the first. In the first epoch
    no read can hit.
    """
    return sum(_later([getattr(epoch, field) for epoch in node.epochs]) for node in nodes)


def _later(epochs: Sequence[float]) -> float:
    counted = epochs[1:] or epochs
    return sum(counted) / len(counted)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
