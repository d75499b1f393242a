"""A proxy of several processes, compared with a proxy of one process: CPU of all processes, CPU of the
coordinator, throughput.

Throughput needs a core for each process, and as many for client and origin. On a machine without these cores,
the rows of throughput say so. CPU for a request is measured on any machine. It is higher where processes
share a core.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import cache, partial
from typing import NamedTuple

import msgspec

from shadeproxy_bench.certificate import make_certificate
from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.forks import ask_from_processes
from shadeproxy_bench.load import Load, best_load
from shadeproxy_bench.machine import cpu_s, own_cpu_s
from shadeproxy_bench.objects import BUCKET, Piece
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.reliability.kit.purges import end_of_purge
from shadeproxy_bench.requests import plain_requests
from shadeproxy_bench.results import Measured, RatioIs, Target
from shadeproxy_bench.rounds import measured
from shadeproxy_bench.server import Served, origin, proxy, workplace
from shadeproxy_bench.sides import Kind, Sides, require_cores, sides_of
from shadeproxy_bench.suites.epochs import LATENCY_S as EPOCHS_LATENCY_S
from shadeproxy_bench.suites.first_epoch import first_epoch
from shadeproxy_bench.suites.misses import read_pieces
from shadeproxy_bench.suites.storing import (
    LATENCY_S,
    SECONDS,
    NewObjects,
    load_misses,
    most_misses,
    require_stored,
    stored_share,
)
from shadeproxy_bench.suites.uploads import upload
from shadeproxy_bench.warm_memory import warm_memory

_LEAST_RAM_BYTES = 64 * 1024**2
_ALL_SERVE = 2
"""Largest number of processes with which the coordinator serves clients itself (ADR 30)."""
_MEASURED_ANYWHERE = 3
"""Largest number of processes that is measured on a machine with too few cores. It is the smallest number
with which the coordinator has no clients.
"""
_LEAST_SHARE = 0.05
_WARMING = 5
"""Rounds before the counted rounds. A worker starts after the proxy is ready, and relays misses until it has
connections to the origin. Over five seconds of load, the coordinator's part of a miss fell by half.
"""
_USUAL_MISSES = 10_000
"""Usual number of misses of one process in a second. Memory is warmed for this number of misses where each
round begins with a purge.
"""
_SPEEDUP = {2: 1.8, 4: 3.0, 8: 6.0}


class Asked(NamedTuple):
    """The result of one load: the number of answers, and the seconds in which they came."""

    answers: int
    seconds: float


Ask = Callable[[Served], Asked]
"""A function that loads a server for a while. It compares a sample of the answers; uploads are compared by
the origin. Raises BenchError.
"""


class Cost(NamedTuple):
    """The cost of a request in one round. ``total_us``: microseconds of CPU in all processes.
    ``coordinator_us``: the coordinator's part of them. ``rate``: requests a second.
    """

    total_us: float
    coordinator_us: float
    rate: float


class Work(NamedTuple):
    """The requests of a row. ``most_us``: the target for the coordinator's CPU for one request. ``objects``:
    number of objects, for hits and uploads.
    """

    name: str
    kind: Kind
    size_bytes: int
    most_us: float | None = None
    objects: int = 0
    over_tls: bool = False


WORKS = (
    Work("miss, 100 KB", "miss", 100_000, most_us=12.0),
    Work("miss, 4 KB", "miss", 4_000, most_us=12.0),
    Work("RAM hit, 4 KB", "hit", 4_000, most_us=3.0, objects=2000),
    Work("RAM hit over TLS, 4 KB", "hit", 4_000, most_us=3.0, objects=2000, over_tls=True),
    Work("RAM hit over TLS, 100 KB", "hit", 100_000, most_us=3.0, objects=500, over_tls=True),
    Work("PUT, 1 MB", "PUT", 1_000_000, objects=200),
    Work("PUT, 10 KB", "PUT", 10_000, objects=1000),
)


class Found(NamedTuple):
    """The figures of several processes (ours), and of one process (reference). The note of ``rate`` says how
    many cores were busy. If they are fewer than the processes, the processes did not bound the rate.
    """

    total: Measured
    coordinator: Measured
    rate: Measured


def cost_of(server: Served, ask: Ask) -> Cost:
    """Load the server for one round, and return the cost of a request."""
    total_s, own_s = cpu_s(server.pid), own_cpu_s(server.pid)
    answers, seconds = ask(server)
    own_s, total_s = own_cpu_s(server.pid) - own_s, cpu_s(server.pid) - total_s
    return Cost(total_s / answers * 1e6, own_s / answers * 1e6, answers / seconds)


def compare_processes(
    several: Served,
    one: Served,
    ask: Ask,
    *,
    rounds: int,
    warm: Ask | None = None,
    before: Callable[[Served], None] = lambda _: None,
) -> Found:
    """Measure both servers in turn, after rounds of ``warm`` (None: ``ask``). ``before`` is called before
    each round. Raises BenchError for a wrong byte, or if the workers took almost no part of the work.
    """
    for server in (*[several] * _WARMING, one):
        before(server)
        (warm or ask)(server)
    costs: dict[str, list[Cost]] = {several.name: [], one.name: []}
    for _ in range(rounds):
        for server in (one, several):
            before(server)
            costs[server.name].append(cost_of(server, ask))
    ours, reference = costs[several.name], costs[one.name]
    if any(cost.total_us - cost.coordinator_us < _LEAST_SHARE * cost.total_us for cost in ours):
        raise BenchError(f"{several.name}: the workers took no part")
    busy = [measured([cost.total_us * cost.rate / 1e6 for cost in side]).ours for side in (ours, reference)]
    return Found(
        measured([cost.total_us for cost in ours], [cost.total_us for cost in reference]),
        measured([cost.coordinator_us for cost in ours]),
        measured(
            [cost.rate for cost in ours],
            [cost.rate for cost in reference],
            note=f"cores busy: {busy[0]:.2f}, one process {busy[1]:.2f}",
        ),
    )


def ask_misses(
    load: Load, new: NewObjects, *, seconds: float, connections: int, all_stored: bool = True
) -> Ask:
    """Return an Ask that loads misses: objects that were not requested before. With ``all_stored`` the server
    must store them.
    """

    def ask(server: Served) -> Asked:
        asked = load_misses(server, load, new, seconds=seconds, connections=connections)
        if all_stored:
            require_stored(server, asked, connections)
        elif asked:
            stored_share(server, asked)
        return Asked(len(asked), seconds)

    return ask


def ask_hits(load: Load, pieces: list[Piece], *, seconds: float, connections: int) -> Ask:
    """Return an Ask for hits in RAM. It first reads all of ``pieces``, and raises BenchError if one is not a
    hit.
    """

    def ask(server: Served) -> Asked:
        requests = list(zip(pieces, plain_requests(pieces, server.authority), strict=True))
        sources = read_pieces(server, pieces, connections=connections).sources
        if set(sources) != {"ram"}:
            raise BenchError(f"{server.name}: wanted hits of ram, got {dict(sources)}")
        answered = load.run(server, requests, connections=connections, seconds=seconds)
        return Asked(answered.total, seconds)

    return ask


def ask_uploads(pieces: list[Piece], *, connections: int, clients: int) -> Ask:
    """Return an Ask that uploads all of ``pieces`` from ``clients`` processes. The origin compares every
    byte.
    """

    def ask(server: Served) -> Asked:
        if clients == 1:
            began_s = time.perf_counter()
            upload(server, pieces, connections=connections)
            return Asked(len(pieces), time.perf_counter() - began_s)
        send = partial(upload, server, connections=connections // clients)
        wall_s, _ = ask_from_processes(send, pieces, processes=clients)
        return Asked(len(pieces), wall_s)

    return ask


def purge(server: Served) -> None:
    """Drop all pages of the bench's bucket, and wait until they are dropped."""
    answer = server.call("POST", "/v1/purge", msgspec.json.encode({"uri": f"s3://{BUCKET}/"}))
    status = 202 if b'"state"' in answer else 200
    if end_of_purge(status, answer, partial(server.call, "GET")) != 200:
        raise BenchError(f"{server.name}: a purge failed")


def measure_processes(scale: Scale, processes: int, work: Work) -> Found:
    """Run ``compare_processes`` with real servers. Raises TooFewCores if this many processes need more
    cores.
    """
    if processes > _MEASURED_ANYWHERE:
        require_cores(processes)
    sides = sides_of(work.kind, processes)
    purged = sides.apart and work.kind == "miss"
    misses_bytes = work.size_bytes if work.kind == "miss" else 0
    stored_rounds = 1 if purged else scale.rounds + _WARMING
    stored_bytes = 2 * stored_rounds * most_misses(SECONDS, sides.connections) * misses_bytes
    usual_bytes = (processes + 1) * _USUAL_MISSES * SECONDS * misses_bytes
    with ExitStack() as stack:
        stack.enter_context(warm_memory(usual_bytes if purged else stored_bytes))
        directory = stack.enter_context(workplace())
        source = stack.enter_context(origin(directory, latency_s=LATENCY_S, processes=sides.origins))
        certificate = make_certificate(directory) if work.over_tls else None
        one, several = (
            stack.enter_context(
                proxy(
                    directory,
                    source,
                    ram_bytes=max(stored_bytes // 2, _LEAST_RAM_BYTES),
                    more={"s3": {"workers": number}},
                    origin_connections=2 * sides.connections if sides.apart else 0,
                    certificate=certificate,
                    name=f"{number} of us",
                )
            )
            for number in (1, processes)
        )
        ask, warm = _asks_of(work, sides, (one, several))
        before = purge if purged else lambda _: None
        return compare_processes(several, one, ask, rounds=scale.rounds, warm=warm, before=before)


def _asks_of(work: Work, sides: Sides, servers: Iterable[Served]) -> tuple[Ask, Ask]:
    """Return two Asks: for rounds that count, and for rounds that warm. The latter do not demand that every
    miss is stored: while workers start, the coordinator is alone, and may get more misses than it can store.
    """
    load, connections = best_load(threads=sides.threads), sides.connections
    if work.kind == "miss":
        misses = partial(
            ask_misses, load, NewObjects(work.size_bytes), seconds=SECONDS, connections=connections
        )
        return misses(), misses(all_stored=False)
    if work.kind == "PUT":
        objects = work.objects * sides.threads
        pieces = [Piece(work.size_bytes, number) for number in range(objects)]
        uploads = ask_uploads(pieces, connections=connections, clients=sides.threads)
        return uploads, uploads
    pieces = [Piece(work.size_bytes, number) for number in range(work.objects)]
    for server in servers:
        read_pieces(server, pieces, connections=connections)
    hits = ask_hits(load, pieces, seconds=SECONDS, connections=connections)
    return hits, hits


def workers(scale: Scale) -> Iterator[Planned]:
    for processes in (2, 3, 4, 8):
        for work in WORKS:
            yield from _rows(processes, work, cache(partial(measure_processes, scale, processes, work)))
    yield from (first_epoch(scale, latency_s) for latency_s in (LATENCY_S, EPOCHS_LATENCY_S))


def _rows(processes: int, work: Work, found: Callable[[], Found]) -> Iterator[Planned]:
    title = f"{processes} processes, {work.name}"
    sides = sides_of(work.kind, processes)
    load = f"{sides.told}, origin {LATENCY_S * 1000:.0f} ms away, unsigned; one process in turn"
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
            f"{load}; a core for each process, and as many for client and origin",
            partial(_rate, processes, found),
            ratio_is=beside,
        )


def _rate(processes: int, found: Callable[[], Found]) -> Measured:
    require_cores(processes)
    return found().rate
