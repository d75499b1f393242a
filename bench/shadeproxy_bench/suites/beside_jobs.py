"""CPU of a whole proxy for each hit over HTTP while many jobs have orders and scores, compared with the CPU
while only one job has them.

The jobs share one dataset. Each job reads the orders that it announced, at its own place. Which job reads
next is random. Each read names its job and epoch, as the SDK's reads do. Announcements come between the
rounds, before the CPU is counted.
"""

import time
from contextlib import ExitStack
from typing import NamedTuple

import msgspec
import numpy as np

from shadeproxy_bench.announce import Order, post_scores, put_order, register
from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.load import Load, Requests, best_load
from shadeproxy_bench.machine import cpu_s
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.reader import read
from shadeproxy_bench.requests import head_of
from shadeproxy_bench.results import Measured
from shadeproxy_bench.rounds import alternate
from shadeproxy_bench.server import Served, origin, proxy, workplace
from shadeproxy_bench.suites.hits import CONNECTIONS, warm

_CHECKED = 256
_SETTLED_S = 0.5
_LEAST_TRUST = 0.9
_MOST_ROUNDS = 10


class Hits(NamedTuple):
    """The hits to measure. ``pieces``: the objects that are read. ``most``: more reads than a proxy answers
    in a round of ``seconds``.
    """

    pieces: list[Piece]
    most: int
    seconds: float


class Crowd:
    """The reads of ``jobs`` jobs through ``served``. Each call of ``coming`` begins with the first read that
    was not answered yet.
    """

    def __init__(self, served: Served, pieces: list[Piece], *, jobs: int) -> None:
        self.served = served
        self._pieces = pieces
        self._random = np.random.default_rng(0)
        self._names = [f"job{number}" for number in range(jobs)]
        register(served, pieces, self._names)
        for name in self._names:
            post_scores(served, name, self._random.random(len(pieces), dtype=np.float32))
        self._orders: list[Order] = [np.empty(0, np.uint32)] * jobs
        self._places = [0] * jobs
        self._waiting: list[tuple[Piece, bytes]] = []

    def coming(self, count: int) -> Requests:
        """Return the next ``count`` reads. Announce the order of each epoch that one of them begins."""
        missing = count - len(self._waiting)
        for job in self._random.integers(0, len(self._names), max(missing, 0)).tolist():
            self._waiting.append(self._next(job))
        return self._waiting[:count]

    def took(self, count: int) -> None:
        """Remove the first ``count`` of the coming reads, because they were answered."""
        if count > len(self._waiting):
            raise BenchError(f"{self.served.name} answered {count} reads, of {len(self._waiting)} announced")
        del self._waiting[:count]

    def least_trust(self) -> float:
        """Return the trust in the order that is believed least, from 0 to 1."""
        shown = msgspec.json.decode(self.served.call("GET", "/v1/jobs"))
        return min(float(job["order_trust"]) for job in shown["jobs"])

    def _next(self, job: int) -> tuple[Piece, bytes]:
        count, name = len(self._pieces), self._names[job]
        epoch, position = divmod(self._places[job], count)
        if position == 0:
            self._orders[job] = self._random.permutation(count).astype(np.uint32)
            put_order(self.served, name, epoch, self._orders[job])
        self._places[job] += 1
        piece = self._pieces[int(self._orders[job][position])]
        tag = ("x-shade-job", f"{name};epoch={epoch};rank=0")
        return piece, head_of("GET", piece.path, [("Host", self.served.authority), tag])


def cost_us(crowd: Crowd, load: Load, hits: Hits) -> float:
    """Return microseconds of the proxy's CPU for each hit. Raises BenchError for a wrong answer, or if one of
    the reads that are compared first is no hit.
    """
    served, checked = crowd.served, crowd.coming(_CHECKED)
    exchanges = ((request, piece.body()) for piece, request in checked)
    found = read(served.address, exchanges, connections=CONNECTIONS, trusted=served.trusted)
    if set(found.sources) != {"ram"}:
        raise BenchError(f"{served.name}: wanted hits, got {dict(found.sources)}")
    crowd.took(_CHECKED)
    requests = crowd.coming(hits.most)
    time.sleep(_SETTLED_S)  # until the announced orders are built
    before = cpu_s(served.pid)
    answered = load.run(served, requests, connections=CONNECTIONS, seconds=hits.seconds).total
    spent = cpu_s(served.pid) - before
    if not answered:
        raise BenchError(f"{served.name} answered nothing in {hits.seconds:g} s")
    crowd.took(answered)
    return spent / answered * 1e6


def hit_beside(hits: Hits, *, jobs: int, rounds: int) -> Measured:
    """Return the CPU of a hit of a proxy with ``jobs`` jobs, and of a proxy with one job, measured in
    turn.
    """
    room = sum(len(piece.body()) for piece in hits.pieces) * 3 // 2 + 64 * 1024**2
    with ExitStack() as opened:
        work = opened.enter_context(workplace())
        source = opened.enter_context(origin(work))
        crowds = []
        for name, count in (("crowd", jobs), ("alone", 1)):
            served = opened.enter_context(proxy(work, source, ram_bytes=room, name=name))
            warm(served, hits.pieces, {"ram"}, signed=False)
            crowds.append(Crowd(served, hits.pieces, jobs=count))
        load = best_load()
        for crowd in crowds:
            _settle(crowd, load, hits)
        ours, reference = crowds
        found = alternate(
            lambda: cost_us(ours, load, hits), lambda: cost_us(reference, load, hits), rounds=rounds
        )
        note = f"load: {load.name}; all orders are believed, at {_LEAST_TRUST} or more"
        return Measured(found.ours, found.reference, found.ours_spread, found.reference_spread, note)


def _settle(crowd: Crowd, load: Load, hits: Hits) -> None:
    """Read until the proxy believes all orders. Raises BenchError if it does not after ``_MOST_ROUNDS``
    rounds.
    """
    for _ in range(_MOST_ROUNDS):
        cost_us(crowd, load, hits)
        if (trust := crowd.least_trust()) >= _LEAST_TRUST:
            return
    raise BenchError(f"{crowd.served.name}: after {_MOST_ROUNDS} rounds an order is believed at {trust:.2f}")
