"""The cost of a miss: throughput of a client through the proxy and direct, and CPU of the proxy."""

from collections.abc import Iterator
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
_LATENCY_S = 0.02
SIGMA = 0.5
"""Sigma of a lognormal latency. The 99th percentile of object stores is three to five times the median."""


def read_pieces(server: Served, pieces: list[Piece], *, connections: int) -> Reading:
    """Read all pieces once, and compare every byte."""
    requests = plain_requests(pieces, server.authority)
    bodies = [piece.body() for piece in pieces]
    return read(server.address, zip(requests, bodies, strict=True), connections=connections)


def cold_reads(
    ours: Served, source: Served, *, objects: int, rounds: int, connections: int = _CONNECTIONS
) -> tuple[Measured, Measured]:
    """Return (objects/s through ours and direct, microseconds of our CPU per object). Every object is read
    only once.

    The first round warms connections and is not counted. Raises BenchError if a read was not a miss.
    """
    through: list[float] = []
    direct: list[float] = []
    cpu: list[float] = []
    for turn in range(rounds + 1):
        pieces = [Piece(_OBJECT_BYTES, turn * objects + number) for number in range(objects)]
        straight = read_pieces(source, pieces, connections=connections)
        before = cpu_s(ours.pid)
        reading = read_pieces(ours, pieces, connections=connections)
        spent = cpu_s(ours.pid) - before
        if reading.sources["origin"] != objects:
            raise BenchError(f"not all of {objects} reads were misses: {dict(reading.sources)}")
        if turn:
            direct.append(objects / straight.wall_s)
            through.append(objects / reading.wall_s)
            cpu.append(spent / objects * 1e6)
    return measured(through, direct), measured(cpu)


def cold(scale: Scale, *, sigma: float = 0.0) -> tuple[Measured, Measured]:
    """Run ``cold_reads`` with real servers, and a RAM tier that has room for everything."""
    objects = scale.pick(2000, 500)
    stored_bytes = (scale.rounds + 1) * objects * _OBJECT_BYTES
    with (
        warm_memory(stored_bytes),
        workplace() as work,
        origin(work, latency_s=_LATENCY_S, sigma=sigma) as source,
        proxy(work, source, ram_bytes=2 * stored_bytes) as ours,
    ):
        return cold_reads(ours, source, objects=objects, rounds=scale.rounds)


def misses(scale: Scale) -> Iterator[Planned]:
    once = cache(partial(cold, scale))
    yield Planned(
        "miss, 100 KB, 32 concurrent, 20 ms origin",
        "objects/s",
        Target(0.9),
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
        Target(0.9),
        f"as the row before the last, lognormal with sigma {SIGMA}",
        lambda: cold(scale, sigma=SIGMA)[0],
        ratio_is="ours / reference",
    )
