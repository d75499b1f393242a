"""Server CPU of a hit over HTTP, compared with the best variant of nginx for the same objects.

Thousands of distinct objects or ranges are read, so that remembering the last few requests gains nothing.
Requests, connections and load are the same on both sides. After each round a sample of answers is compared
byte for byte. Our answers in the sample must have come from the tier under test.
"""

import random
import time
from collections.abc import Collection, Iterator, Sequence
from functools import partial

from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.load import Load, ReaderLoad, Requests, best_load
from shadeproxy_bench.machine import cpu_s
from shadeproxy_bench.nginx import nginx
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.reader import read
from shadeproxy_bench.requests import DISTINCT_SIGNED, plain_requests, signed_requests
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.rounds import alternate
from shadeproxy_bench.server import Served, origin, proxy, workplace

CONNECTIONS = 16
_KB, _MB = 1000, 1_000_000
_SAMPLE = 256
_MOST_PASSES = 10
_SETTLE_S = 0.3
_FEW = 4
_SHARD_BYTES = 16 * _MB


def small_objects(scale: Scale) -> list[Piece]:
    return [Piece(4 * _KB, number) for number in range(scale.pick(4000, 2000))]


def middle_objects(scale: Scale) -> list[Piece]:
    return [Piece(100 * _KB, number) for number in range(scale.pick(1000, 500))]


def shard_ranges(scale: Scale) -> list[Piece]:
    """Return ranges of 1 MB anywhere in bigger objects, like those that readers of shards ask for."""
    drawn = random.Random(0)
    shards = scale.pick(16, 4)
    return [
        Piece(_SHARD_BYTES, turn % shards, drawn.randrange(_SHARD_BYTES - _MB), _MB)
        for turn in range(scale.pick(1024, 256))
    ]


def cpu_us(server: Served, load: Load, requests: Requests, *, seconds: float) -> float:
    """Return microseconds of the server's CPU for a request."""
    before = cpu_s(server.pid)
    count = load.run(server, requests, connections=CONNECTIONS, seconds=seconds).total
    return (cpu_s(server.pid) - before) / count * 1e6


def compare(
    ours: Served,
    references: Sequence[Served],
    pieces: Sequence[Piece],
    *,
    sources: Collection[str],
    load: Load,
    rounds: int,
    seconds: float,
    pilot: tuple[Load, float] | None = None,
    signed: bool = False,
    distinct: int = DISTINCT_SIGNED,
) -> Measured:
    """Measure the CPU for a request of our server and of the cheapest of ``references``, in turn. Both are
    warm.

    ``pilot``: load and seconds for finding the cheapest reference. ``signed``: our server gets ``distinct``
    signed requests, new ones in each round. Raises BenchError for a wrong byte on either side, and if our
    server answers from other sources (values of x-shade-cache) than ``sources``.
    """
    for reference in references:
        check(reference, _plain(pieces, reference))
    warm(ours, pieces, sources, signed=signed)
    piloting, pilot_s = pilot or (load, seconds)
    costs = {
        one: cpu_us(one, piloting, _plain(pieces, one), seconds=pilot_s)
        for one in (references if len(references) > 1 else ())
    }
    best = min(costs, key=lambda one: costs[one]) if costs else references[0]

    def reference_side() -> float:
        requests = _plain(pieces, best)
        cost = cpu_us(best, load, requests, seconds=seconds)
        check(best, _sample(requests))
        return cost

    def our_side() -> float:
        requests = _requests(pieces, ours, signed=signed, distinct=distinct)
        cost = cpu_us(ours, load, requests, seconds=seconds)
        check(ours, _sample(requests), sources)
        return cost

    found = alternate(our_side, reference_side, rounds=rounds)
    tried = ", ".join(f"{one.name} {cost:.1f}" for one, cost in costs.items())
    note = f"reference: {best.name}; load: {load.name}" + (f"; tried: {tried} us" if tried else "")
    return Measured(found.ours, found.reference, found.ours_spread, found.reference_spread, note)


def warm_hit(pieces: Sequence[Piece], scale: Scale, *, tier: str = "ram", signed: bool = False) -> Measured:
    """Run ``compare`` with real servers. ``tier``: the tier that is hit, "ram" or "disk". For "disk", the RAM
    tier is too small for an object.
    """
    total = sum(size for size, _ in {(piece.size_bytes, piece.number) for piece in pieces})
    room = total + total // 2 + 64 * 1024**2
    tiny = 64 * 1024  # Less than one object.
    with workplace() as work, workplace(on_disk=True) as disk_work, origin(work) as source:
        where = disk_work if tier == "disk" else work
        ram_bytes, disk_bytes = (tiny, room) if tier == "disk" else (room, 0)
        with (
            nginx(work, pieces) as references,
            proxy(where, source, ram_bytes=ram_bytes, disk_bytes=disk_bytes, signed=signed) as ours,
        ):
            load = best_load()
            return compare(
                ours,
                references,
                pieces,
                sources={tier},
                load=load,
                rounds=scale.rounds,
                seconds=scale.pick(2, 1),
                pilot=(ReaderLoad(), 0.3) if scale.quick else (load, 1.0),
                signed=signed,
            )


def hits(scale: Scale) -> Iterator[Planned]:
    kinds = (
        ("4 KB", small_objects(scale), 0.75),
        ("100 KB", middle_objects(scale), 0.9),
        ("1 MB range", shard_ranges(scale), 0.95),
    )
    for signed in (False, True):
        for size, pieces, signed_bound in kinds[: scale.pick(3, 1 if signed else 2)]:
            yield Planned(
                f"RAM hit, {size}, {'SigV4 verified' if signed else 'no auth'}",
                "us CPU/request",
                Target(signed_bound if signed else 1.0),
                f"{len(pieces)} distinct pieces, {CONNECTIONS} connections, user + system time of the server "
                "process tree; nginx: the cheapest of its variants, one worker, unsigned requests",
                partial(warm_hit, pieces, scale, signed=signed),
            )


def disk(scale: Scale) -> Iterator[Planned]:
    pieces = middle_objects(scale)
    yield Planned(
        "disk-tier hit, page cache hot, 100 KB",
        "us CPU/request",
        Target(1.0),
        f"as RAM hit, {len(pieces)} objects, RAM tier of 64 KiB; nginx's files on tmpfs all the same",
        partial(warm_hit, pieces, scale, tier="disk"),
    )


def _plain(pieces: Sequence[Piece], server: Served) -> Requests:
    return list(zip(pieces, plain_requests(pieces, server.authority), strict=True))


def _requests(pieces: Sequence[Piece], server: Served, *, signed: bool, distinct: int) -> Requests:
    if signed:
        return signed_requests(pieces, server.authority, distinct=distinct)
    return _plain(pieces, server)


def _sample(requests: Requests) -> Requests:
    return requests[:: max(1, len(requests) // _SAMPLE)]


def warm(server: Served, pieces: Sequence[Piece], sources: Collection[str], *, signed: bool) -> None:
    """Read all objects of ``pieces`` until all answers come from ``sources``. Several passes may be needed,
    because pages are written after they are read.
    """
    whole = [Piece(size, number) for size, number in sorted({piece[:2] for piece in pieces})]
    for turn in range(_MOST_PASSES):
        requests = _requests(whole, server, signed=signed, distinct=len(whole))
        seen = check(server, requests, connections=CONNECTIONS if turn else _FEW)
        if seen <= set(sources):
            return
        time.sleep(_SETTLE_S)
    raise BenchError(
        f"{server.name} is not warm after {_MOST_PASSES} passes: wanted {', '.join(sources)}, got {seen}"
    )


def check(
    server: Served,
    requests: Requests,
    sources: Collection[str] | None = None,
    *,
    connections: int = CONNECTIONS,
) -> set[str]:
    """Compare the bodies of all answers, and return the answers' sources. Raises BenchError for a wrong body,
    or for a source that is not in ``sources``.
    """
    exchanges = ((request, piece.body()) for piece, request in requests)
    reading = read(server.address, exchanges, connections=connections, trusted=server.trusted)
    if sources is not None and not set(reading.sources) <= set(sources):
        raise BenchError(f"{server.name}: wanted hits of {', '.join(sources)}, got {dict(reading.sources)}")
    return set(reading.sources)
