"""Several serving processes beside a single one: CPU of all of them, CPU of the coordinator, throughput.

Throughput needs a core for each process and two for client and origin; a machine without them says so. CPU
per request is measured on any machine. It is higher where processes share a core.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import cache, partial
from typing import Literal, NamedTuple

from shadeproxy.core.cores import available_cores
from shadeproxy_bench.faults import BenchError, TooFewCores
from shadeproxy_bench.load import Load, best_load
from shadeproxy_bench.machine import cpu_s, own_cpu_s
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.requests import plain_requests
from shadeproxy_bench.results import Measured, RatioIs, Target
from shadeproxy_bench.rounds import measured
from shadeproxy_bench.server import Served, origin, proxy, workplace
from shadeproxy_bench.suites.misses import read_pieces
from shadeproxy_bench.suites.storing import (
    CONNECTIONS,
    LATENCY_S,
    SECONDS,
    NewObjects,
    load_misses,
    most_misses,
    require_stored,
)
from shadeproxy_bench.suites.uploads import upload
from shadeproxy_bench.warm_memory import warm_memory

_UPLOADING = 4
"""Connections that upload."""
_LEAST_RAM_BYTES = 64 * 1024**2
_OTHERS = 2
"""Cores of client and origin."""
_ALL_SERVE = 2
"""Largest number of processes with which the coordinator still serves clients too (ADR 30)."""
_MEASURED_ANYWHERE = 3
"""Largest number of processes that is measured on too few cores. It is the smallest number with which the
coordinator has no clients.
"""
_LEAST_SHARE = 0.05
_WARMING = 5
"""Rounds before the counted rounds. A worker starts after the proxy is ready, and relays misses until it has
connections to the origin. The coordinator's part of a miss fell by half over five seconds of load.
"""
_SPEEDUP = {2: 1.8, 4: 3.0, 8: 6.0}


class Asked(NamedTuple):
    """The result of one load: the number of answers, and the seconds that they took."""

    answers: int
    seconds: float


Ask = Callable[[Served], Asked]
"""Loads a server for a while, and compares a sample or has the origin compare. Raises BenchError."""


class Cost(NamedTuple):
    """One round: us of CPU a request, of all processes and of the coordinator, and requests a second."""

    total_us: float
    coordinator_us: float
    rate: float


class Work(NamedTuple):
    """The requests of a row. ``most_us``: the target for the coordinator's CPU for one request."""

    name: str
    kind: Literal["miss", "hit", "PUT"]
    size_bytes: int
    most_us: float | None = None
    objects: int = 0


WORKS = (
    Work("miss, 100 KB", "miss", 100_000, most_us=12.0),
    Work("miss, 4 KB", "miss", 4_000, most_us=12.0),
    Work("RAM hit, 4 KB", "hit", 4_000, most_us=3.0, objects=2000),
    Work("PUT, 1 MB", "PUT", 1_000_000, objects=200),
    Work("PUT, 10 KB", "PUT", 10_000, objects=1000),
)


class Found(NamedTuple):
    """The figures of several processes (ours), and the figures of one process (reference)."""

    total: Measured
    coordinator: Measured
    rate: Measured


def cost_of(server: Served, ask: Ask) -> Cost:
    """Return the cost of the requests of one round."""
    total_s, own_s = cpu_s(server.pid), own_cpu_s(server.pid)
    answers, seconds = ask(server)
    own_s, total_s = own_cpu_s(server.pid) - own_s, cpu_s(server.pid) - total_s
    return Cost(total_s / answers * 1e6, own_s / answers * 1e6, answers / seconds)


def compare_processes(several: Served, one: Served, ask: Ask, *, rounds: int) -> Found:
    """Measure both in turn, after rounds that warm them.

    Raises BenchError for a wrong byte, and if the workers answered almost nothing.
    """
    for server in (*[several] * _WARMING, one):
        ask(server)
    costs: dict[str, list[Cost]] = {several.name: [], one.name: []}
    for _ in range(rounds):
        for server in (one, several):
            costs[server.name].append(cost_of(server, ask))
    ours, reference = costs[several.name], costs[one.name]
    if any(cost.total_us - cost.coordinator_us < _LEAST_SHARE * cost.total_us for cost in ours):
        raise BenchError(f"{several.name}: the workers took no part")
    return Found(
        measured([cost.total_us for cost in ours], [cost.total_us for cost in reference]),
        measured([cost.coordinator_us for cost in ours]),
        measured([cost.rate for cost in ours], [cost.rate for cost in reference]),
    )


def ask_misses(load: Load, new: NewObjects, *, seconds: float) -> Ask:
    """Return an Ask for objects that were not requested before. They must be stored."""

    def ask(server: Served) -> Asked:
        asked = load_misses(server, load, new, seconds=seconds)
        require_stored(server, asked)
        return Asked(len(asked), seconds)

    return ask


def ask_hits(load: Load, pieces: list[Piece], *, seconds: float) -> Ask:
    """Return an Ask for cached objects."""

    def ask(server: Served) -> Asked:
        requests = list(zip(pieces, plain_requests(pieces, server.authority), strict=True))
        sources = read_pieces(server, pieces, connections=CONNECTIONS).sources
        if set(sources) != {"ram"}:
            raise BenchError(f"{server.name}: wanted hits of ram, got {dict(sources)}")
        return Asked(load.run(server, requests, connections=CONNECTIONS, seconds=seconds).total, seconds)

    return ask


def ask_uploads(pieces: list[Piece]) -> Ask:
    """Return an Ask that uploads all objects; the origin compares every byte."""

    def ask(server: Served) -> Asked:
        began_s = time.perf_counter()
        upload(server, pieces, connections=_UPLOADING)
        return Asked(len(pieces), time.perf_counter() - began_s)

    return ask


def measure_processes(scale: Scale, processes: int, work: Work) -> Found:
    """Run ``compare_processes`` with real servers. Raises TooFewCores."""
    if processes > _MEASURED_ANYWHERE:
        require_cores(processes)
    misses_bytes = work.size_bytes if work.kind == "miss" else 0
    stored_bytes = 2 * (scale.rounds + _WARMING) * most_misses(SECONDS) * misses_bytes
    with ExitStack() as stack:
        stack.enter_context(warm_memory(stored_bytes))
        directory = stack.enter_context(workplace())
        source = stack.enter_context(origin(directory, latency_s=LATENCY_S))
        one, several = (
            stack.enter_context(
                proxy(
                    directory,
                    source,
                    ram_bytes=max(stored_bytes // 2, _LEAST_RAM_BYTES),
                    more={"s3": {"workers": number}},
                    name=f"{number} of us",
                )
            )
            for number in (1, processes)
        )
        return compare_processes(several, one, _ask_of(work, (one, several)), rounds=scale.rounds)


def _ask_of(work: Work, servers: Iterable[Served]) -> Ask:
    load = best_load()
    if work.kind == "miss":
        return ask_misses(load, NewObjects(work.size_bytes), seconds=SECONDS)
    if work.kind == "PUT":
        return ask_uploads([Piece(work.size_bytes, number) for number in range(work.objects)])
    pieces = [Piece(work.size_bytes, number) for number in range(work.objects)]
    for server in servers:
        read_pieces(server, pieces, connections=CONNECTIONS)
    return ask_hits(load, pieces, seconds=SECONDS)


def require_cores(processes: int) -> None:
    """Raise TooFewCores if processes, client and origin would share cores."""
    cores, needed = available_cores(), processes + _OTHERS
    if cores < needed:
        raise TooFewCores(
            f"{processes} processes, a client and an origin need {needed} cores, and there are {cores};"
            " the CPU a request of the rows that could be measured is the bound"
        )


def workers(scale: Scale) -> Iterator[Planned]:
    for processes in (2, 3, 4, 8):
        for work in WORKS:
            yield from _rows(processes, work, cache(partial(measure_processes, scale, processes, work)))


def _rows(processes: int, work: Work, found: Callable[[], Found]) -> Iterator[Planned]:
    title = f"{processes} processes, {work.name}"
    connections = _UPLOADING if work.kind == "PUT" else CONNECTIONS
    load = f"{connections} connections, origin {LATENCY_S * 1000:.0f} ms away, unsigned; one process in turn"
    clients = "; it serves clients itself" if processes <= _ALL_SERVE else "; it serves no clients itself"
    beside: RatioIs = "ours / reference"
    yield Planned(
        f"{title}: CPU of all",
        "us CPU/request",
        Target(1.25, at_least=False),
        f"{load}; user + system time of all processes of the proxy",
        lambda: found().total,
        ratio_is=beside,
    )
    yield Planned(
        f"{title}: CPU of the coordinator",
        "us CPU/request",
        None
        if processes <= _ALL_SERVE or work.most_us is None
        else Target(work.most_us, at_least=False, of="ours"),
        f"{load}; user + system time of the first process for each request of any process{clients}",
        lambda: found().coordinator,
    )
    if processes in _SPEEDUP:
        yield Planned(
            f"{title}: throughput",
            "requests/s",
            Target(_SPEEDUP[processes]),
            f"{load}; a core for each process, for the client and for the origin",
            partial(_rate, processes, found),
            ratio_is=beside,
        )


def _rate(processes: int, found: Callable[[], Found]) -> Measured:
    require_cores(processes)
    return found().rate
