"""Server CPU of a miss that is stored, compared with nginx with ``proxy_cache`` in front of the same origin.

Both caches are on tmpfs, and each object is requested once, so every answer is a miss. After each round a
sample of the requested objects is read again and compared byte for byte. These reads show which share of the
objects was stored.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache, partial

from shadeproxy.api.s3 import COMPILED
from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.load import Load, best_load
from shadeproxy_bench.machine import cpu_s
from shadeproxy_bench.nginx import nginx_program, storing_nginx
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.requests import plain_requests
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.rounds import measured
from shadeproxy_bench.server import Served, origin, proxy, workplace
from shadeproxy_bench.suites.misses import read_pieces
from shadeproxy_bench.warm_memory import warm_memory

CONNECTIONS = 32
LATENCY_S = 0.005
SECONDS = 1
_SAMPLE = 200
_LEAST_STORED = 0.5
_FULL_BYTES = {4_000: 48 << 20, 100_000: 256 << 20}
"""Capacity of a full tier by the size of its objects. It is small enough to be filled in seconds, so that
pages are evicted in each round.
"""
_STORED = {"ram", "hit"}
_BOUND_US = {4_000: 35.0, 100_000: 85.0} if COMPILED else {4_000: 55.0, 100_000: 110.0}


class NewObjects:
    """Hands out objects that were not requested before."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._numbers = itertools.count()

    def take(self, count: int) -> list[Piece]:
        return [Piece(self.size_bytes, next(self._numbers)) for _ in range(count)]


def most_misses(seconds: float, connections: int = CONNECTIONS) -> int:
    """Return a number of objects that ``connections`` connections cannot all read within ``seconds``, because
    the origin answers after LATENCY_S.
    """
    return connections + round(1.2 * seconds * connections / LATENCY_S)


def load_misses(
    server: Served, load: Load, new: NewObjects, *, seconds: float, connections: int = CONNECTIONS
) -> list[Piece]:
    """Load ``server`` with misses for ``seconds``, and return the requested objects. Raises BenchError if
    there were too few of them.
    """
    pieces = new.take(most_misses(seconds, connections))
    requests = list(zip(pieces, plain_requests(pieces, server.authority), strict=True))
    answered = load.run(server, requests, connections=connections, seconds=seconds)
    threads = len(answered.of_threads)
    asked: list[Piece] = []
    for first, count in enumerate(answered.of_threads):
        share = pieces[first::threads]
        if count > len(share):
            raise BenchError(f"{server.name}: only {len(share)} of {count} reads were misses")
        asked += share[:count]
    return asked


def stored_share(server: Served, asked: Sequence[Piece]) -> float:
    """Read a sample of ``asked`` again, and return the share of it that the cache answers. Raises BenchError
    for a wrong byte.
    """
    sample = asked[:: max(1, len(asked) // _SAMPLE)]
    reading = read_pieces(server, list(sample), connections=4)
    return sum(reading.sources[source] for source in _STORED) / len(sample)


def require_stored(server: Served, asked: Sequence[Piece], connections: int = CONNECTIONS) -> float:
    """Return ``stored_share``. Raises BenchError if the share is too small for a cache that stores all
    objects.

    At the end of a round the load hangs up during one request on each connection. The object of this request
    need not be stored.
    """
    share = stored_share(server, asked)
    if share < max(1 - 2 * connections / len(asked), _LEAST_STORED):
        raise BenchError(f"{server.name} stored only {share:.0%} of the objects")
    return share


def compare_misses(
    ours: Served,
    reference: Served,
    new: NewObjects,
    *,
    load: Load,
    rounds: int,
    seconds: float,
    all_stored: bool,
) -> Measured:
    """Measure the CPU for each miss of both servers in turn. The first round warms connections and is not
    counted.

    Raises BenchError for a wrong byte on either side, and with ``all_stored`` for too few stored objects.
    """
    costs: dict[str, list[float]] = {ours.name: [], reference.name: []}
    shares: dict[str, list[float]] = {ours.name: [], reference.name: []}
    for turn in range(rounds + 1):
        for server in (reference, ours):
            before = cpu_s(server.pid)
            asked = load_misses(server, load, new, seconds=seconds)
            cost_us = (cpu_s(server.pid) - before) / len(asked) * 1e6
            share = (require_stored if all_stored else stored_share)(server, asked)
            if turn:
                costs[server.name].append(cost_us)
                shares[server.name].append(share)
    told = ", ".join(f"{name} {min(kept):.0%}..{max(kept):.0%}" for name, kept in shares.items())
    note = f"load: {load.name}; still stored of what a round asked for: {told}"
    return measured(costs[ours.name], costs[reference.name], note=note)


def fill(servers: Sequence[Served], new: NewObjects, capacity_bytes: int) -> None:
    """Read more objects through each server than its cache holds, so that the cache is full."""
    pieces = new.take(capacity_bytes * 3 // 2 // new.size_bytes)
    for server in servers:
        read_pieces(server, pieces, connections=CONNECTIONS)


def stored_miss(scale: Scale, size_bytes: int, *, full: bool, policy: str) -> Measured:
    """Run ``compare_misses`` with real servers. ``full``: the tier is full at the start; otherwise it has
    room for all objects.
    """
    nginx_program()  # Without it there is no row, so touch no memory for one.
    grown_bytes = (scale.rounds + 1) * most_misses(SECONDS) * (size_bytes + 8192)
    capacity_bytes = _FULL_BYTES[size_bytes] if full else grown_bytes
    new = NewObjects(size_bytes)
    with ExitStack() as stack:
        stack.enter_context(warm_memory(2 * capacity_bytes))
        work = stack.enter_context(workplace())
        source = stack.enter_context(origin(work, latency_s=LATENCY_S))
        reference = stack.enter_context(storing_nginx(work, source, cache_bytes=capacity_bytes))
        more = {"policy": {"name": policy}}
        ours = stack.enter_context(proxy(work, source, ram_bytes=capacity_bytes, more=more))
        if full:
            fill([reference, ours], new, capacity_bytes)
        return compare_misses(
            ours,
            reference,
            new,
            load=best_load(),
            rounds=scale.rounds,
            seconds=SECONDS,
            all_stored=not full,
        )


def storing(scale: Scale) -> Iterator[Planned]:
    for size_bytes, size in ((4_000, "4 KB"), (100_000, "100 KB")):
        growing = cache(partial(stored_miss, scale, size_bytes, full=False, policy="default"))
        yield _beside_nginx(f"miss, {size}, growing tier: CPU beside nginx", growing)
        yield Planned(
            f"miss, {size}, growing tier: CPU",
            "us CPU/object",
            Target(_BOUND_US[size_bytes], at_least=False, of="ours"),
            f"user + system time of the {'compiled' if COMPILED else 'interpreted'} proxy, beside nginx",
            partial(_alone, growing),
        )
        for policy in ("default", "lru")[: scale.pick(2, 1)]:
            full = partial(stored_miss, scale, size_bytes, full=True, policy=policy)
            yield _beside_nginx(f"miss, {size}, full tier, {policy}: CPU beside nginx", full)


def _beside_nginx(name: str, measure: Callable[[], Measured]) -> Planned:
    return Planned(
        name,
        "us CPU/object",
        Target(1.0),
        f"{CONNECTIONS} connections, origin {LATENCY_S * 1000:.0f} ms away, unsigned, each object once; "
        "user + system time of the server's process tree; nginx: proxy_cache on tmpfs, one worker, with its "
        "cache manager, connections to the origin kept; one process of ours; a full cache of either got 1.5 "
        "times its capacity before",
        measure,
    )


def _alone(measure: Callable[[], Measured]) -> Measured:
    """Return our side of a measurement, without the reference."""
    found = measure()
    return Measured(found.ours, None, found.ours_spread)
