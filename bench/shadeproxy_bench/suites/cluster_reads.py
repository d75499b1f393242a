"""CPU of reads in a cluster whose pages have owners, and origin reads of objects that all nodes are asked for
at once.

CPU is counted for each process alone. In each round, the same reads are measured twice. The ratio of the two
measurements should be 1. The spread of this ratio is the A/A spread; a difference below it does not count.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.load import Load, best_load
from shadeproxy_bench.lockstep import Meeting, read_all, together
from shadeproxy_bench.machine import cpu_s
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.owned import SOON_S, Owned, alone
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.requests import plain_requests
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.rounds import measured
from shadeproxy_bench.server import Served
from shadeproxy_bench.suites.misses import read_pieces

_KB = 1000
_SIZE_BYTES = 100 * _KB
_RAM_BYTES = 192 * 1024**2
_CONNECTIONS, _FEW = 16, 4
"""Connections of a measurement, and connections of the reads before and after it."""
_FIRST_COLD = 1_000_000


class Cost(NamedTuple):
    """Microseconds of CPU for one request: at the proxy that is asked, and at another proxy."""

    asked_us: float
    other_us: float


def cost(asked: Served, other: Served, load: Load, pieces: Sequence[Piece], *, seconds: float) -> Cost:
    """Ask one proxy for ``pieces``, and return the CPU that it and another proxy take for a request."""
    requests = list(zip(pieces, plain_requests(pieces, asked.authority), strict=True))
    asked_s, other_s = cpu_s(asked.pid), cpu_s(other.pid)
    count = load.run(asked, requests, connections=_CONNECTIONS, seconds=seconds).total
    asked_s, other_s = cpu_s(asked.pid) - asked_s, cpu_s(other.pid) - other_s
    return Cost(asked_s / count * 1e6, other_s / count * 1e6)


def objects_of(cluster: Owned, place: int, *, count: int) -> list[Piece]:
    """Return objects that member number ``place`` owns. Raises BenchError if too few are found."""
    found = cluster.owned_by(place, [Piece(_SIZE_BYTES, number) for number in range(10 * count)])[:count]
    if len(found) < count:
        raise BenchError(f"{cluster.members[place].name} owns only {len(found)} of {10 * count} objects")
    return found


def require_hits(server: Served, pieces: Sequence[Piece]) -> None:
    """Read each of ``pieces`` once. Raises BenchError for wrong bytes, or if a read is not a hit in RAM."""
    reading = read_pieces(server, pieces, connections=_FEW)
    if set(reading.sources) != {"ram"}:
        raise BenchError(f"{server.name}: wanted hits of ram, got {dict(reading.sources)}")


def warm(server: Served, pieces: Sequence[Piece]) -> None:
    """Read ``pieces`` again and again until all reads are hits in RAM. Raises BenchError if some are not
    after five passes.
    """
    for turn in range(5):
        reading = read_pieces(server, pieces, connections=_FEW)
        if turn and set(reading.sources) == {"ram"}:
            return
    raise BenchError(f"{server.name} is not warm: {dict(reading.sources)}")


def relayed(
    cluster: Owned, load: Load, pieces: Sequence[Piece], *, rounds: int, seconds: float
) -> tuple[Measured, Measured]:
    """Return two costs. The first is the CPU that the asked node takes for a relayed read. The second is the
    CPU that the owner takes for a relayed read, beside its CPU for a hit that a client requests from it.
    ``pieces`` belong to member 1, and are requested from member 0.
    """
    near, owner = (member.served for member in cluster.members[:2])
    warm(near, pieces)
    require_hits(owner, pieces)
    nears, owners, directs, same = [], [], [], []
    for _ in range(rounds):
        first = cost(owner, near, load, pieces, seconds=seconds).asked_us
        there = cost(near, owner, load, pieces, seconds=seconds)
        second = cost(owner, near, load, pieces, seconds=seconds).asked_us
        nears.append(there.asked_us)
        owners.append(there.other_us)
        directs.append((first + second) / 2)
        same.append(first / second)
        require_hits(near, pieces[::4])
    note = f"load: {load.name}; A/A of the direct hit {between(same)}"
    return measured(nears, note=note), measured(owners, directs, note=note)


def own_hits(
    cluster: Owned, other: Served, load: Load, pieces: Sequence[Piece], *, rounds: int, seconds: float
) -> Measured:
    """Return the CPU of a hit at the owner, as a multiple of the CPU at ``other``, a proxy without a cluster.
    The result is the median of rounds of the form A B B A.
    """
    ours = cluster.members[1].served
    warm(other, pieces)
    require_hits(ours, pieces)
    ratios, same, costs = [], [], []
    for _ in range(rounds):
        found = [
            cost(one, cluster.members[0].served, load, pieces, seconds=seconds).asked_us
            for one in (other, ours, ours, other)
        ]
        ratios.append((found[1] + found[2]) / (found[0] + found[3]))
        same += [found[0] / found[3], found[1] / found[2]]
        costs.append(found)
    us = [statistics.median(one) for one in zip(*costs, strict=True)]
    note = (
        f"{(us[1] + us[2]) / 2:.1f} us in the cluster, {(us[0] + us[3]) / 2:.1f} us without;"
        f" A/A {between(same)}"
    )
    return measured(ratios, note=note)


def cold(cluster: Owned, *, objects: int) -> Measured:
    """Return the number of origin reads for a cold object if all nodes are asked for it at once."""
    pieces = [Piece(_SIZE_BYTES, _FIRST_COLD + number) for number in range(objects)]
    servers = [member.served for member in cluster.members]
    meeting, before = Meeting(len(servers)), cluster.counts()
    exchanges = [
        together(
            zip(plain_requests(pieces, server.authority), (p.body() for p in pieces), strict=True), meeting
        )
        for server in servers
    ]
    readings = read_all(servers, exchanges, meeting)
    after = cluster.counts()
    gets, heads = after.gets - before.gets, after.heads - before.heads
    note = f"{gets} GETs and {heads} HEADs for {objects} objects, {sum(r.requests for r in readings)} reads"
    return Measured(gets / objects, note=note)


def rows(scale: Scale, cluster: Callable[[], Owned]) -> Iterator[Planned]:
    """Yield the rows of reads. ``cluster`` starts the proxies, or returns them if they run."""
    load, seconds = best_load(), float(scale.pick(4, 1))
    pieces = cache(lambda: objects_of(cluster(), 1, count=scale.pick(500, 200)))
    found = cache(lambda: relayed(cluster(), load, pieces(), rounds=scale.rounds, seconds=seconds))

    def own() -> Measured:
        with alone(cluster(), ram_bytes=_RAM_BYTES) as other:
            return own_hits(
                cluster(), other, load, pieces(), rounds=scale.pick(9, 3), seconds=float(scale.pick(4, 2))
            )

    how = (
        f"distinct objects of 100 KB of one owner of four, {_CONNECTIONS} connections, unsigned; late writes"
        f" are over after {SOON_S:g} s and not after a minute"
    )
    yield Planned(
        "owned: relayed GET 100 KB, CPU of the near node",
        "us CPU/request",
        Target(90.0, at_least=False, of="ours"),
        f"{how}; user and system time of the asked proxy's process",
        lambda: found()[0],
    )
    yield Planned(
        "owned: relayed GET 100 KB, CPU of the owner",
        "us CPU/request",
        Target(1.25, at_least=False),
        f"{how}; reference: the same objects asked at the owner",
        lambda: found()[1],
        ratio_is="ours / reference",
    )
    yield Planned(
        "owned: hit of an own object, beside a proxy without a cluster",
        "x CPU",
        Target(1.02, at_least=False, of="ours"),
        f"{how}; both proxies in turn, A B B A; median of the rounds' ratios",
        own,
    )
    yield Planned(
        "owned: one cold object asked at all nodes at once",
        "origin reads/object",
        Target(1.0, at_least=False, of="ours"),
        "GETs that the origin answered; each node is asked for the same object at the same time",
        lambda: cold(cluster(), objects=scale.pick(1000, 150)),
    )


def between(values: Sequence[float]) -> str:
    """Return the least and the largest of ``values`` as text."""
    return f"{min(values):.3f}..{max(values):.3f}"
