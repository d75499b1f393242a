"""Several processes that serve, beside one: CPU of all, CPU of the coordinator, throughput.

Throughput needs a core for each process and two for client and origin; a machine without them says so.
CPU per request is measured on any machine, and is more where processes share a core.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache, partial
from typing import NamedTuple

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
from shadeproxy_bench.warm_memory import warm_memory

_MISS_BYTES = 100_000
_HIT_BYTES = 4_000
_HIT_OBJECTS = 2000
_OTHERS = 2
"""Cores of client and origin."""
_ALL_SERVE = 2
"""Most processes of which the coordinator serves clients too (ADR 30)."""
_MEASURED_ANYWHERE = 3
"""Most processes that are measured with fewer cores: the least with which the coordinator has no clients."""
_LEAST_SHARE = 0.05
_WARMING = 5
"""Rounds before those that count. A worker starts after the proxy is ready, and relays misses until it has
connections to the origin: the coordinator's part of a miss fell by half over five seconds of load."""
_SPEEDUP = {2: 1.8, 4: 3.0, 8: 6.0}

Ask = Callable[[Served], int]
"""Loads a server for a while and compares a sample; returns the number of answers. Raises BenchError."""


class Cost(NamedTuple):
    """One round: us of CPU a request, of all processes and of the coordinator, and requests a second."""

    total_us: float
    coordinator_us: float
    rate: float


class Found(NamedTuple):
    """Several processes (ours) beside one (reference)."""

    total: Measured
    coordinator: Measured
    rate: Measured


def cost_of(server: Served, ask: Ask, *, seconds: float) -> Cost:
    """Return what the requests of one round cost."""
    total_s, own_s = cpu_s(server.pid), own_cpu_s(server.pid)
    count = ask(server)
    own_s, total_s = own_cpu_s(server.pid) - own_s, cpu_s(server.pid) - total_s
    return Cost(total_s / count * 1e6, own_s / count * 1e6, count / seconds)


def compare_processes(several: Served, one: Served, ask: Ask, *, rounds: int, seconds: float) -> Found:
    """Measure both in turn, after rounds that warm them.

    Raises BenchError for a wrong byte, and when the workers did next to nothing.
    """
    for server in (*[several] * _WARMING, one):
        ask(server)
    costs: dict[str, list[Cost]] = {several.name: [], one.name: []}
    for _ in range(rounds):
        for server in (one, several):
            costs[server.name].append(cost_of(server, ask, seconds=seconds))
    ours, reference = costs[several.name], costs[one.name]
    if any(cost.total_us - cost.coordinator_us < _LEAST_SHARE * cost.total_us for cost in ours):
        raise BenchError(f"{several.name}: the workers took no part")
    return Found(
        measured([cost.total_us for cost in ours], [cost.total_us for cost in reference]),
        measured([cost.coordinator_us for cost in ours]),
        measured([cost.rate for cost in ours], [cost.rate for cost in reference]),
    )


def ask_misses(load: Load, new: NewObjects, *, seconds: float) -> Ask:
    """Return an Ask for objects that nothing has asked for, which must be stored."""

    def ask(server: Served) -> int:
        asked = load_misses(server, load, new, seconds=seconds)
        require_stored(server, asked)
        return len(asked)

    return ask


def ask_hits(load: Load, pieces: list[Piece], *, seconds: float) -> Ask:
    """Return an Ask for cached objects."""

    def ask(server: Served) -> int:
        requests = list(zip(pieces, plain_requests(pieces, server.authority), strict=True))
        sources = read_pieces(server, pieces, connections=CONNECTIONS).sources
        if set(sources) != {"ram"}:
            raise BenchError(f"{server.name}: wanted hits of ram, got {dict(sources)}")
        return load.run(server, requests, connections=CONNECTIONS, seconds=seconds)

    return ask


def measure_processes(scale: Scale, processes: int, kind: str) -> Found:
    """Run ``compare_processes`` with real servers. Raises TooFewCores."""
    if processes > _MEASURED_ANYWHERE:
        require_cores(processes)
    stored_bytes = 2 * (scale.rounds + _WARMING) * most_misses(SECONDS) * _MISS_BYTES
    with ExitStack() as stack:
        stack.enter_context(warm_memory(stored_bytes if kind == "miss" else 0))
        work = stack.enter_context(workplace())
        source = stack.enter_context(origin(work, latency_s=LATENCY_S))
        one, several = (
            stack.enter_context(
                proxy(
                    work,
                    source,
                    ram_bytes=stored_bytes // 2,
                    more={"s3": {"workers": number}},
                    name=f"{number} of us",
                )
            )
            for number in (1, processes)
        )
        load = best_load()
        if kind == "miss":
            ask = ask_misses(load, NewObjects(_MISS_BYTES), seconds=SECONDS)
        else:
            pieces = [Piece(_HIT_BYTES, number) for number in range(_HIT_OBJECTS)]
            for server in (one, several):
                read_pieces(server, pieces, connections=CONNECTIONS)
            ask = ask_hits(load, pieces, seconds=SECONDS)
        return compare_processes(several, one, ask, rounds=scale.rounds, seconds=SECONDS)


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
        for kind, what, most_us in (("miss", "miss, 100 KB", 12.0), ("hit", "RAM hit, 4 KB", 3.0)):
            yield from _rows(
                processes, what, most_us, cache(partial(measure_processes, scale, processes, kind))
            )


def _rows(processes: int, what: str, most_us: float, found: Callable[[], Found]) -> Iterator[Planned]:
    title = f"{processes} processes, {what}"
    load = f"{CONNECTIONS} connections, origin {LATENCY_S * 1000:.0f} ms away, unsigned; one process in turn"
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
        None if processes <= _ALL_SERVE else Target(most_us, at_least=False, of="ours"),
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
