"""Writes in a cluster whose pages have owners. The rows show the cost of the relay to the owner, and the time
from an owner's death until its objects can be written again.
"""

import http.client
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache

import numpy as np

from shadeproxy_bench.counted_origin import PART_BYTES
from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.machine import cpu_s
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.owned import LEASE_S, Owned, alone
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.rounds import measured
from shadeproxy_bench.server import Served, listening

_BARE = (sys.executable, "-m", "shadeproxy_bench.bare_relay")
_SMALL_BYTES = 100_000
_LONG_BYTES = 8 * PART_BYTES
_RAM_BYTES = 192 * 1024**2
_SENDERS = 4
_PATIENCE_S = 30.0
_MOST_S = 2 * LEASE_S + 2 * LEASE_S / 3 + 0.5
_LIMIT_S = 60.0
_PAUSE_S = 0.02


class Sender:
    """A connection that sends one write after another."""

    def __init__(self, server: Served) -> None:
        self._name = server.name
        self._link = http.client.HTTPConnection(*server.address, timeout=_PATIENCE_S)

    def send(self, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
        """Send a request; return status and body of the answer. Raises OSError, HTTPException."""
        self._link.request(method, target, body=body)
        answer = self._link.getresponse()
        return answer.status, answer.read()

    def must(self, method: str, target: str, body: bytes = b"") -> bytes:
        """Send a request that must succeed; return the body of the answer. Raises BenchError."""
        status, found = self.send(method, target, body)
        if status != http.client.OK:
            raise BenchError(f"{self._name}: {method} {target} was answered {status} {found[:200]!r}")
        return found

    def close(self) -> None:
        self._link.close()


def put_latencies(
    far: Served, owner: Served, pieces: Sequence[Piece], *, rounds: int
) -> tuple[Measured, Measured]:
    """Return how many milliseconds longer a PUT takes through ``far`` than through ``owner``, which owns
    ``pieces``: the difference of the medians, and of the 99th percentiles. Both proxies are asked in turn.
    """
    bodies = [bytes(piece.body()) for piece in pieces]
    spent: tuple[list[float], list[float]] = ([], [])
    with closing(Sender(far)) as there, closing(Sender(owner)) as here:
        for turn in range(-1, rounds):
            for piece, body in zip(pieces, bodies, strict=True):
                for times, sender in zip(spent, (there, here), strict=True):
                    began = time.perf_counter()
                    sender.must("PUT", piece.path, body)
                    if turn >= 0:
                        times.append((time.perf_counter() - began) * 1000)
    return difference(spent[0], spent[1], 50.0), difference(spent[0], spent[1], 99.0)


def difference(ours: Sequence[float], reference: Sequence[float], percentile: float) -> Measured:
    """Return the percentile of ``ours`` minus the same percentile of ``reference``. The note has both
    percentiles, and the A/A spread: the difference of the percentiles of two halves of ``reference``.
    """
    here, there = (float(np.percentile(times, percentile)) for times in (ours, reference))
    halves = [float(np.percentile(half, percentile)) for half in (reference[::2], reference[1::2])]
    note = (
        f"{here:.2f} ms beside {there:.2f} ms, {len(ours)} writes each;"
        f" A/A {abs(halves[0] - halves[1]):.2f} ms"
    )
    return Measured(here - there, note=note)


def upload_rate(server: Served, number: int) -> float:
    """Upload one object of 64 MB in parts, several parts at a time. Return MB/s."""
    piece = Piece(_LONG_BYTES, number)
    body = bytes(piece.body())
    senders = [Sender(server) for _ in range(_SENDERS)]

    def part(place: int) -> None:
        data = body[place * PART_BYTES : (place + 1) * PART_BYTES]
        senders[place % _SENDERS].must("PUT", f"{piece.path}?partNumber={place + 1}&uploadId=u", data)

    def parts(sender: int) -> None:
        for place in range(sender, _LONG_BYTES // PART_BYTES, _SENDERS):
            part(place)

    began = time.perf_counter()
    senders[0].must("POST", f"{piece.path}?uploads")
    with ThreadPoolExecutor(_SENDERS) as pool:
        list(pool.map(parts, range(_SENDERS)))
    senders[0].must("POST", f"{piece.path}?uploadId=u", _completion())
    elapsed = time.perf_counter() - began
    for sender in senders:
        sender.close()
    return _LONG_BYTES / 1e6 / elapsed


def multipart(cluster: Owned, other: Served, bare: Served, number: int, *, rounds: int) -> Measured:
    """Return MB/s of a multipart upload through member 0, of an object that member 1 owns, and MB/s direct to
    the origin.

    The note says what bounds both figures. It has the rate of the same upload through ``other``, a proxy
    without a cluster, and through ``bare``, which only copies bytes, and the processor time of each process.
    """
    far, owner = (member.served for member in cluster.members[:2])
    pids = (far.pid, owner.pid, cluster.source.pid, os.getpid())
    rates: tuple[list[float], ...] = ([], [], [], [])
    spent: list[list[float]] = []
    for server in (far, other):
        # This upload is not measured. It opens the proxy's connections to the origin, and to the owner if
        # there is one.
        upload_rate(server, number)
    for _ in range(rounds):
        for server, found in zip((cluster.source, far, other, bare), rates, strict=True):
            before = [cpu_s(pid) for pid in pids]
            found.append(upload_rate(server, number))
            if server is far:
                spent.append([cpu_s(pid) - began for pid, began in zip(pids, before, strict=True)])
    direct, ours, others, copied = rates
    # The proxies and the origin are children of this process, so the CPU of this process includes theirs.
    asked, owners, origin, all_of_them = (
        1000 * statistics.mean(times) / (_LONG_BYTES / 1e6) for times in zip(*spent, strict=True)
    )
    alone_of, bare_of = (
        statistics.median(mine / its for mine, its in zip(rate, direct, strict=True))
        for rate in (others, copied)
    )
    note = (
        f"a proxy without a cluster: {alone_of:.2f} of direct; a relay that only copies bytes: {bare_of:.2f};"
        f" ms of CPU a MB: asked {asked:.2f}, owner {owners:.2f}, origin {origin:.2f}, all with the client"
        f" {all_of_them:.2f}"
    )
    return measured(ours, direct, note=note)


def writes_again(cluster: Owned, pieces: Sequence[Piece], *, kills: int) -> Measured:
    """Kill the owner of ``pieces`` again and again. Return the longest time, in seconds, from a kill until
    one of the objects can be written through another node.
    """
    near, owner = cluster.members[:2]
    took: list[float] = []
    refused: set[int] = set()
    for turn in range(kills):
        piece = pieces[turn % len(pieces)]
        body = bytes(piece.body())
        with closing(Sender(near.served)) as sender:
            owner.kill()
            began = time.monotonic()
            while (status := sender.send("PUT", piece.path, body)[0]) != http.client.OK:
                refused.add(status)
                if status not in {500, 503} or time.monotonic() - began > _LIMIT_S:
                    raise BenchError(f"PUT {piece.path} was answered {status} after a kill")
                time.sleep(_PAUSE_S)
            took.append(time.monotonic() - began)
        owner.start()
        cluster.settle(cluster.members)
    found = measured(took)
    answers = ", ".join(str(status) for status in sorted(refused))
    note = f"{kills} kills, median {found.ours:.2f} s; meanwhile answered {answers or 'nothing'}"
    return Measured(max(took), ours_spread=found.ours_spread, note=note)


def rows(scale: Scale, cluster: Callable[[], Owned]) -> Iterator[Planned]:
    """Yield the rows of writes. ``cluster`` starts the proxies, or returns them if they run."""

    @cache
    def pieces() -> list[Piece]:
        return cluster().owned_by(1, [Piece(_SMALL_BYTES, number) for number in range(400)])[:50]

    @cache
    def found() -> tuple[Measured, Measured]:
        far, owner = (member.served for member in cluster().members[:2])
        return put_latencies(far, owner, pieces(), rounds=scale.pick(20, 3))

    def long() -> Measured:
        piece = cluster().owned_by(1, [Piece(_LONG_BYTES, number) for number in range(50)])[0]
        source, work = cluster().source, cluster().work
        command = [*_BARE, str(source.port)]
        with alone(cluster(), ram_bytes=_RAM_BYTES) as other, listening("bare", command, work) as bare:
            return multipart(cluster(), other, bare, piece.number, rounds=scale.pick(9, 3))

    latencies = (("p50", 3.0, lambda: found()[0]), ("p99", 15.0, lambda: found()[1]))
    for name, most_ms, measure in latencies:
        yield Planned(
            f"owned: PUT 100 KB through a proxy that is not the owner, {name}",
            "ms more",
            Target(most_ms, at_least=False, of="ours"),
            "one connection each, in turn with the same PUT through the owner; wall time",
            measure,
        )
    yield Planned(
        "owned: multipart upload of 64 MB through a proxy that is not the owner",
        "MB/s",
        Target(0.95),
        f"parts of 8 MB, {_SENDERS} at a time, in turn with the same upload direct to the origin, which"
        " compares all; client, proxies and origin share the cores and loopback",
        long,
        ratio_is="ours / reference",
    )
    yield Planned(
        "owned: a dead owner's share takes writes again",
        "s",
        Target(_MOST_S, at_least=False, of="ours"),
        f"kill -9 with a lease of {LEASE_S:g} s, until a PUT through another node is answered 200; the worst"
        " kill; target: 2 leases + 2 beats + 0.5 s",
        lambda: writes_again(cluster(), pieces(), kills=scale.pick(6, 2)),
    )


def _completion() -> bytes:
    parts = "".join(
        f"<Part><PartNumber>{number + 1}</PartNumber><ETag>&quot;uploaded&quot;</ETag></Part>"
        for number in range(_LONG_BYTES // PART_BYTES)
    )
    return f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
