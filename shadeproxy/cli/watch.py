"""``shadeproxy stats --watch``: shows the counters of a running proxy, every second, in a terminal of any
size.

Laws: the output fits the terminal. The state of the origin, and the running epoch of the busiest job, are
always shown. In a smaller terminal, columns are left out first, then rows, then tables. A rate is the growth
of a counter between two answers, divided by the seconds between them.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shadeproxy.cli.control import ControlClient
from shadeproxy.core.units import format_size

_INTERVAL_S = 1.0
_GAP = 2
_LEAST_NAME = 8
_SERVER_ERROR = 500
_STATES = {
    True: (("live", "bold green"), ("origin up", "green")),
    False: (("origin down", "bold red"), ("origin down", "bold red")),
    None: (("checking the origin", "bold yellow"), ("origin unknown", "yellow")),
}
"""Texts for each state of the origin: the beginning of the first line, and that of the line about the origin,
each with its style. Key: whether the origin answers; None if that is not known yet.
"""
Answer = Mapping[str, Any]
NONE: Answer = {}


class Column(NamedTuple):
    """A column of a table. ``rank``: in a narrow terminal, columns with higher ranks are left out first."""

    head: str
    rank: int


class Rows(NamedTuple):
    """A table. ``columns``: the first one holds names. ``rows``: the most important row comes first."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]


def watch_stats(client: ControlClient, *, as_json: bool) -> None:
    """Show the statistics until Ctrl-C. ``as_json``: print each answer as one line of JSON instead."""
    if as_json:
        for stats, _, _ in _answers(client):
            sys.stdout.write(json.dumps(stats) + "\n")
            sys.stdout.flush()
        return
    console = Console()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for stats, before, passed_s in _answers(client):
            size = console.size
            shown = render_watch(stats, before, passed_s, width=size.width, height=size.height - 1)
            live.update(shown, refresh=True)


def render_watch(
    stats: Answer, before: Answer | None, passed_s: float, *, width: int, height: int
) -> RenderableType:
    """Return lines and tables that fit into ``width`` and ``height``. ``before``: the answer that came
    ``passed_s`` seconds earlier; for None, show no rates.
    """
    grown = _growth(stats, before, passed_s)
    lines: list[RenderableType] = [_overview(stats, grown, width), _origin_line(stats, grown, width)]
    left = height - len(lines)
    for number, table in enumerate((_epochs(stats, grown), _tiers(stats, grown), _buckets(stats, grown))):
        gap = 1 if left > len(table.rows) + _GAP else 0
        most = left - gap - 1
        if not table.rows or (most < 1 and number):
            continue
        lines += [Text()] * gap
        lines.append(_fitted(table, width, max(most, 1)))
        left -= gap + 1 + min(len(table.rows), max(most, 1))
    return Group(*lines)


def _answers(client: ControlClient) -> Iterator[tuple[Answer, Answer | None, float]]:
    """Yield each answer with the answer before it, and with the seconds between the two."""
    before, at_s = None, time.monotonic()
    while True:
        stats, now_s = client.get("/v1/stats"), time.monotonic()
        yield stats, before, now_s - at_s
        before, at_s = stats, now_s
        time.sleep(_INTERVAL_S)


def _growth(stats: Answer, before: Answer | None, passed_s: float) -> Callable[..., float | None]:
    """Return a function that takes the path of a counter. Its result is the counter's growth per second, or
    None if that is not known.
    """

    def grown(*path: str) -> float | None:
        if before is None or passed_s <= 0:
            return None
        now, then = _at(stats, path), _at(before, path)
        return max(now - then, 0.0) / passed_s

    return grown


def _at(stats: Answer, path: Sequence[str]) -> float:
    """Return the number at ``path`` in ``stats``, or the sum of the numbers below it."""
    found: Any = stats
    for name in path:
        found = found.get(name, 0) if isinstance(found, Mapping) else 0
    return float(sum(found.values()) if isinstance(found, Mapping) else found or 0)


# ------------------------------------------------------------------ lines


def _overview(stats: Answer, grown: Callable[..., float | None], width: int) -> Text:
    totals = stats["totals"]
    reads, hits = grown("totals", "requests"), [grown("totals", f"hits_{tier}") for tier in ("ram", "disk")]
    ratio = sum(rate or 0.0 for rate in hits) / reads if reads else totals["hit_ratio"]
    failed = sum(
        count
        for shown in stats.get("requests", NONE).get("by_operation", NONE).values()
        for status, count in shown["statuses"].items()
        if int(status) >= _SERVER_ERROR
    )
    return _line(
        _STATES[stats["origin"]["health"].get("answering")][0],
        [f"{_rate(reads)} reads", f"{ratio:.1%} hits", f"{_size_rate(grown('totals', 'bytes'))} to clients",
         f"{failed:,} answers 5xx"],
        width,
    )  # fmt: skip


def _origin_line(stats: Answer, grown: Callable[..., float | None], width: int) -> Text:
    origin, gauges = stats["origin"], stats["gauges"]
    return _line(
        _STATES[origin["health"].get("answering")][1],
        [f"{_rate(grown('origin', 'requests'))} requests", f"p99 {origin['latency_s']['p99'] * 1000:,.0f} ms",
         f"{origin['errors']:,} errors", f"{_size_rate(grown('origin', 'bytes'))}",
         f"{gauges.get('origin_inflight', 0):,.0f} in flight",
         f"{origin['health'].get('throttled', 0):,} throttled"],
        width,
    )  # fmt: skip


def _line(first: tuple[str, str], parts: Sequence[str], width: int) -> Text:
    """Return one line of text: ``first`` in its style, and as many of ``parts`` as fit into ``width``."""
    text = Text(first[0][:width], style=first[1], no_wrap=True)
    for part in parts:
        if len(text) + _GAP + len(part) > width:
            break
        text.append(" " * _GAP + part, style="default not bold")
    return text


# ------------------------------------------------------------------ tables


def _epochs(stats: Answer, grown: Callable[..., float | None]) -> Rows:
    found = []
    for name, job in stats["jobs"].items():
        epoch = running_epoch(job, stats.get("orders", NONE).get(name) or NONE)
        if epoch is None:
            continue
        reads = job["epochs"][epoch]
        rate = grown("jobs", name, "epochs", epoch, "requests")
        busy = reads["stall_s"] + reads.get("compute_s", 0.0)
        waits = f"{reads['stall_s'] / busy:.0%}" if reads.get("compute_s") else f"{reads['stall_s']:.1f} s"
        row = [name, epoch, f"{reads['hit_ratio']:.1%}", _rate(rate), f"{reads['requests']:,}", waits,
               f"{reads['hits_ram']:,}", f"{reads['hits_disk']:,}", format_size(reads["bytes"])]  # fmt: skip
        found.append(((rate or 0.0, reads["requests"]), row))
    found.sort(key=lambda one: one[0], reverse=True)
    columns = (Column("job", 0), Column("epoch", 0), Column("hits", 1), Column("reads/s", 2),
               Column("reads", 3), Column("waits", 4), Column("ram", 6), Column("disk", 6),
               Column("bytes", 5))  # fmt: skip
    return Rows(columns, [row for _, row in found])


def running_epoch(job: Answer, order: Answer) -> str | None:
    """Return the epoch that a job reads now: the epoch of its order or, without an order, the epoch that was
    read last.
    """
    epochs = job["epochs"]
    if str(order.get("epoch")) in epochs:
        return str(order["epoch"])

    def ended_s(name: str) -> float:
        return float((epochs[name].get("began_s") or 0.0) + epochs[name].get("wall_s", 0.0))

    return max(epochs, key=ended_s, default=None)


def _tiers(stats: Answer, grown: Callable[..., float | None]) -> Rows:
    rows = [
        [name, format_size(tier["used_bytes"]), format_size(tier["capacity_bytes"]),
         f"{tier['hit_ratio']:.1%}", _rate(grown("tiers", name, "evictions")), f"{tier['pages']:,}"]
        for name, tier in stats["tiers"].items()
    ]  # fmt: skip
    columns = (Column("tier", 0), Column("used", 1), Column("capacity", 3), Column("hits", 2),
               Column("evicted/s", 4), Column("pages", 5))  # fmt: skip
    return Rows(columns, rows)


def _buckets(stats: Answer, grown: Callable[..., float | None]) -> Rows:
    found = []
    for name, reads in stats["buckets"].items():
        rate = grown("buckets", name, "requests")
        row = [name, f"{reads['hit_ratio']:.1%}", _rate(rate), f"{reads['requests']:,}",
               format_size(reads["bytes"])]  # fmt: skip
        found.append(((rate or 0.0, reads["requests"]), row))
    found.sort(key=lambda one: one[0], reverse=True)
    columns = (Column("bucket", 0), Column("hits", 1), Column("reads/s", 2), Column("reads", 3),
               Column("bytes", 4))  # fmt: skip
    return Rows(columns, [row for _, row in found])


def _fitted(table: Rows, width: int, most: int) -> Table:
    """Return ``table`` with as many columns as fit into ``width``, and with at most ``most`` rows. If rows
    are left out, the last row says how many.
    """
    shown = list(table.rows)
    left_out = len(shown) - most
    if left_out > 0:
        shown = shown[: most - 1] if most > 1 else shown[:1]
    places = list(range(len(table.columns)))

    def taken(place: int) -> int:
        return max(len(row[place]) for row in (*shown, [column.head for column in table.columns]))

    while len(places) > 1 and sum(taken(p) + _GAP for p in places[1:]) + _LEAST_NAME > width:
        places.remove(max(places[1:], key=lambda place: table.columns[place].rank))
    made = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    rest = width - sum(taken(p) + _GAP for p in places[1:])
    made.add_column(table.columns[0].head, no_wrap=True, overflow="ellipsis", max_width=max(rest, 1))
    for place in places[1:]:
        made.add_column(table.columns[place].head, justify="right", no_wrap=True)
    for row in shown:
        made.add_row(*(Text(row[place]) for place in places))
    if left_out > 0 and most > 1:
        made.add_row(f"{left_out + 1} more")
    return made


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.1f}/s" if rate < 10 else f"{rate:,.0f}/s"


def _size_rate(rate: float | None) -> str:
    return "-" if rate is None else f"{format_size(int(rate))}/s"
