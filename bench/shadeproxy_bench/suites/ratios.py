"""Hit ratios on the running proxy: the value of each kind of hint, compared with LRU on the same reads.

The traces are those of simulate/workloads.py, so that proxy, simulator and exact MIN see the same reads.
Every read is a whole object over HTTP with the job's header, one after another. Orders are announced when the
row says so, and scores are posted as each epoch begins, as a sampler does. Prefetching is off: with it nearly
every read would be a hit, and the value of eviction alone would not show.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from shadeproxy.policy.registry import get_policy
from shadeproxy.simulate.bound import clairvoyant_hits
from shadeproxy.simulate.hints import Announce, parse_announce
from shadeproxy.simulate.replay import Replay
from shadeproxy.simulate.trace import Trace
from shadeproxy.simulate.workloads import importance, lagged, uniform
from shadeproxy_bench.announce import Order, post_scores, put_order, register
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.reader import Exchange, read
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.server import Served, origin, proxy, workplace
from shadeproxy_bench.suites.stock_ratios import OBJECT_BYTES, RECORD_BYTES, stock_ratios

_EPOCHS = 5
_EPOCHS_OF_JOBS = 4
_EPOCHS_OF_A_NODE = 16
_FEWEST_AHEAD = 8


class Read(NamedTuple):
    """One read of a trace. ``place``: number of reads of the same job and epoch before this one."""

    job: int
    epoch: int
    place: int
    object: int


class Known(NamedTuple):
    """Hints to send just before a read. ``orders``: the epochs whose orders are announced. ``weights``:
    whether the weights of the read's epoch are posted.
    """

    orders: list[int]
    weights: bool


class Reads:
    """A trace by job: each job's orders, and the reads of all jobs with the hints that become known before
    each read.
    """

    def __init__(self, trace: Trace, announce: Announce) -> None:
        self.trace = trace
        self._announce = announce
        self._jobs = np.zeros(len(trace.ids), np.uint8) if trace.jobs is None else trace.jobs
        assert trace.epochs is not None, "workloads have epochs"
        self._epochs = trace.epochs
        self.jobs = int(self._jobs.max()) + 1
        epochs = int(trace.epochs.max()) + 1
        self.orders: list[list[Order]] = [
            [trace.ids[(self._jobs == job) & (trace.epochs == epoch)] for epoch in range(epochs)]
            for job in range(self.jobs)
        ]

    def __iter__(self) -> Iterator[tuple[Read, Known]]:
        told = [0] * self.jobs
        places = [[0] * len(orders) for orders in self.orders]
        newest = -1
        for job, epoch, number in zip(
            self._jobs.tolist(), self._epochs.tolist(), self.trace.ids.tolist(), strict=True
        ):
            place = places[job][epoch]
            places[job][epoch] += 1
            known = min(self._known(epoch, place, len(self.orders[job][epoch])), len(self.orders[job]))
            yield (
                Read(job, epoch, place, number),
                Known(list(range(told[job], known)), self.trace.weights is not None and epoch > newest),
            )
            told[job], newest = max(told[job], known), max(newest, epoch)

    def _known(self, epoch: int, place: int, length: int) -> int:
        """Return the first epoch whose order is not known yet when a job is at ``place`` in ``epoch``. See
        simulate/hints.py.
        """
        if self._announce.epochs <= 0:
            return len(self.orders[0]) if self._announce.epochs else 0
        return epoch + self._announce.epochs + (self._announce.half and place >= length // 2)


def played(ours: Served, reads: Reads) -> Iterator[Exchange]:
    """Yield the reads as requests. Before a read is yielded, the hints that are due are sent to the proxy."""
    pieces = [Piece(OBJECT_BYTES, number) for number in range(reads.trace.objects)]
    register(ours, pieces, (f"job{job}" for job in range(reads.jobs)))
    requests = [
        f"GET {piece.path} HTTP/1.1\r\nHost: {ours.authority}\r\nx-shade-job: ".encode() for piece in pieces
    ]
    bodies = [piece.body() for piece in pieces]
    weights = reads.trace.weights
    for one, known in reads:
        for epoch in known.orders:
            put_order(ours, f"job{one.job}", epoch, reads.orders[one.job][epoch])
        if known.weights and weights is not None:
            post_scores(ours, f"job{one.job}", weights[one.epoch])
        tag = b"job%d;epoch=%d;rank=0\r\n\r\n" % (one.job, one.epoch)
        yield requests[one.object] + tag, bodies[one.object]


def hit_ratio(reads: Reads, *, cached: float, policy: str) -> float:
    """Return the per cent of counted reads that a proxy answers from its cache. Reads count from each job's
    second epoch on. The cache is empty at first and has room for ``cached`` of the data.
    """
    settings: dict[str, dict[str, Any]] = {"policy": {"name": policy}, "prefetch": {"enabled": False}}
    sources: list[str] = []
    with workplace() as work, origin(work) as source:
        ram_bytes = int(cached * reads.trace.objects * RECORD_BYTES)
        with proxy(work, source, ram_bytes=ram_bytes, more=settings) as ours:
            read(ours.address, played(ours, reads), connections=1, told=sources.append)
    hits = np.isin(sources, ["ram", "disk"])
    return 100 * float(hits[reads.trace.counted()].mean())


def beside_lru(trace: Trace, announce: Announce, *, cached: float) -> Measured:
    """Measure the hits of our policy and of LRU on the same reads. The note has the hits of the simulator and
    of exact MIN.
    """
    ours = hit_ratio(Reads(trace, announce), cached=cached, policy="default")
    lru = hit_ratio(Reads(trace, Announce(0)), cached=cached, policy="lru")
    places, counted = int(cached * trace.objects), trace.counted()
    simulated = Replay(trace, get_policy("default"), places, announce=announce).run()
    best = clairvoyant_hits(trace, places)
    note = (
        f"simulator {100 * simulated[counted].mean():.1f} %, exact MIN {100 * best[counted].mean():.1f} %"
        " on the same reads"
    )
    return Measured(ours, lru, note=note)


def ratios(scale: Scale) -> Iterator[Planned]:
    """Yield the rows of hit ratios in per cent. The reference is LRU on the same reads."""
    objects = scale.pick(5000, 1000)
    of_jobs = objects // 2
    draws = importance(objects, _EPOCHS)
    for name, trace, announce, cached, bound in (
        *(
            (
                f"uniform epochs, stock client, cache of {cached:.0%}",
                uniform(objects, _EPOCHS),
                "none",
                cached,
                99.8 * cached,
            )
            for cached in (0.05, 0.2, 0.5, 0.8)
        ),
        ("importance draws, nothing announced", draws, "none", 0.2, 22.5),
        ("importance draws, this epoch announced", draws, "epoch", 0.2, 49.0),
        ("importance draws, next epoch announced at half", draws, "next-half", 0.2, 54.0),
        ("importance draws, all announced", draws, "all", 0.2, 55.5),
        ("2 jobs, next epoch known", uniform(of_jobs, _EPOCHS_OF_JOBS, jobs=2), "2", 0.2, 43.0),
        ("4 jobs, next epoch known", uniform(of_jobs, _EPOCHS_OF_JOBS, jobs=4), "2", 0.2, 48.0),
        (
            f"one node of four, {_FEWEST_AHEAD} epochs announced",
            uniform(objects, _EPOCHS_OF_A_NODE, ranks=4),
            str(_FEWEST_AHEAD),
            0.2,
            47.0,
        ),
        (
            "4 jobs on one order, 15 % lag, cache of 10 %",
            lagged(of_jobs, _EPOCHS_OF_JOBS),
            "epoch",
            0.1,
            48.0,
        ),
    ):
        yield Planned(
            f"hit ratio: {name}",
            "% of reads",
            Target(bound, of="ours"),
            f"{trace.objects} objects, cache of {cached:.0%}, from the 2nd epoch on;"
            " reference: LRU, same reads",
            partial(beside_lru, trace, parse_announce(announce), cached=cached),
            ratio_is="ours / reference",
        )
    yield from stock_ratios()
