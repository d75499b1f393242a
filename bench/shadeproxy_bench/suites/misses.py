"""The cost of a miss: throughput of a client through the proxy and directly at the origin, and CPU of the
proxy. Every object is read once.
"""

from collections.abc import Iterator, Sequence
from functools import cache, partial

from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.machine import cpu_s
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.reader import Reading, read
from shadeproxy_bench.requests import plain_requests
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.rounds import measured
from shadeproxy_bench.server import Served, origin, proxy, workplace
from shadeproxy_bench.warm_memory import warm_memory

_OBJECT_BYTES = 100_000
_CONNECTIONS = 32
LATENCY_S = 0.02
SIGMA = 0.5
"""Sigma of a lognormal latency. With this sigma the 99th percentile is three times the median. In object
stores, the 99th percentile is three to five times the median.
"""


def read_pieces(server: Served, pieces: Sequence[Piece], *, connections: int) -> Reading:
    """Read each of ``pieces`` once, and compare every byte."""
    requests = plain_requests(pieces, server.authority)
    bodies = [piece.body() for piece in pieces]
    exchanges = zip(requests, bodies, strict=True)
    return read(server.address, exchanges, connections=connections, trusted=server.trusted)


def read_misses(
    server: Served, pieces: list[Piece], *, connections: int = _CONNECTIONS
) -> tuple[float, float]:
    """Return (objects/s, us of the proxy's CPU for an object). Raises BenchError if a read was not a miss."""
    before = cpu_s(server.pid)
    reading = read_pieces(server, pieces, connections=connections)
    spent_s = cpu_s(server.pid) - before
    if reading.sources["origin"] != len(pieces):
        raise BenchError(f"not all of {len(pieces)} reads were misses: {dict(reading.sources)}")
    return len(pieces) / reading.wall_s, spent_s / len(pieces) * 1e6


def cold_reads(
    ours: Served, source: Served, *, objects: int, rounds: int, connections: int = _CONNECTIONS
) -> tuple[Measured, Measured]:
    """Return (objects/s through the proxy and direct from the origin, us of the proxy's CPU for an object).

    The first round warms connections and is not counted. Raises BenchError if a read was not a miss.
    """
    through: list[float] = []
    direct: list[float] = []
    cpu: list[float] = []
    for turn in range(rounds + 1):
        pieces = [Piece(_OBJECT_BYTES, turn * objects + number) for number in range(objects)]
        straight = read_pieces(source, pieces, connections=connections)
        objects_per_s, cpu_us = read_misses(ours, pieces, connections=connections)
        if turn:
            direct.append(objects / straight.wall_s)
            through.append(objects_per_s)
            cpu.append(cpu_us)
    return measured(through, direct), measured(cpu)


def cold(scale: Scale, *, latency_s: float = LATENCY_S, sigma: float = 0.0) -> tuple[Measured, Measured]:
    """Run ``cold_reads`` with real servers. The proxy's RAM tier has room for all objects."""
    objects = scale.pick(2000, 500)
    stored_bytes = (scale.rounds + 1) * objects * _OBJECT_BYTES
    with (
        warm_memory(stored_bytes),
        workplace() as work,
        origin(work, latency_s=latency_s, sigma=sigma) as source,
        proxy(work, source, ram_bytes=2 * stored_bytes) as ours,
    ):
        return cold_reads(ours, source, objects=objects, rounds=scale.rounds)


def misses(scale: Scale) -> Iterator[Planned]:
    once = cache(partial(cold, scale))
    yield Planned(
        "miss, 100 KB, 32 concurrent, 20 ms origin",
        "objects/s",
        Target(0.95),
        "the same client through the empty proxy and direct; every object once",
        lambda: once()[0],
        ratio_is="ours / reference",
    )
    yield Planned(
        "miss, 100 KB: CPU of the proxy, tier write included",
        "us CPU/object",
        Target(150.0, at_least=False, of="ours"),
        "user + system time of the proxy during the row before",
        lambda: once()[1],
    )
    yield Planned(
        "miss, 100 KB, 32 concurrent, 20 ms origin, latency varies",
        "objects/s",
        Target(0.95),
        f"as the row of 20 ms, lognormal with sigma {SIGMA}",
        lambda: cold(scale, sigma=SIGMA)[0],
        ratio_is="ours / reference",
    )
    yield Planned(
        "miss, 100 KB, 32 concurrent, 5 ms origin",
        "objects/s",
        Target(0.95),
        "as the row of 20 ms",
        lambda: cold(scale, latency_s=0.005)[0],
        ratio_is="ours / reference",
    )
