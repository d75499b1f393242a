"""Hit ratios on the running proxy: what each kind of knowledge is worth, beside LRU on the same reads.

Every read is a whole object over HTTP with the job's header, in the order of a trace; orders are announced
at the points that the row names, as a sampler would. Prefetching is off: with it nearly every read is a hit,
and what eviction alone is worth does not show. Counted are the reads from the second epoch on.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.bench.announce import put_order, register
from shadeproxy.bench.objects import Piece
from shadeproxy.bench.plan import Planned, Scale
from shadeproxy.bench.reader import Exchange, read
from shadeproxy.bench.results import Measured, Target
from shadeproxy.bench.server import Served, origin, proxy, workplace

_OBJECT_BYTES = 8_000
_RECORD_BYTES = 8_212  # what one takes with its header and metadata, as the tier counts it
_EPOCHS = 5
_EPOCHS_AHEAD = 8

Ids = NDArray[np.uint32]


class Trace(NamedTuple):
    """Reads of all jobs, merged: u32 ids, u8 jobs, u16 epochs and u32 places in the job's epoch, each (n,).

    ``orders``: of each job and epoch what it reads. ``next_at``: how far into an epoch, from 0 to 1, the
    next one is announced; None: not before it begins. ``ahead``: how many epochs are known from the start
    of the first; 0: none. ``announced``: whether anything is.
    """

    objects: int
    orders: list[list[Ids]]
    jobs: NDArray[np.uint8]
    epochs: NDArray[np.uint16]
    places: NDArray[np.uint32]
    announced: bool = True
    next_at: float | None = None
    ahead: int = 0


# ------------------------------------------------------------------ what is read


def merged(objects: int, orders: list[list[Ids]], *, lag: float = 0.0) -> Trace:
    """Jobs of one pace, each ``lag`` epochs behind the one before it."""
    columns = []
    for number, epochs in enumerate(orders):
        lengths = [len(order) for order in epochs]
        places = np.concatenate([np.arange(length) for length in lengths])
        when = np.arange(places.size) + number * lag * lengths[0]
        columns.append(
            (when, np.full(places.size, number), np.repeat(np.arange(len(epochs)), lengths), places)
        )
    when, job, epoch, place = (np.concatenate(column) for column in zip(*columns, strict=True))
    in_turn = np.lexsort((job, when))
    return Trace(
        objects,
        orders,
        job[in_turn].astype(np.uint8),
        epoch[in_turn].astype(np.uint16),
        place[in_turn].astype(np.uint32),
    )


def permutations(objects: int, *, jobs: int, epochs: int, seed: int = 0) -> list[list[Ids]]:
    """Every job shuffles for itself."""
    drawn = np.random.default_rng(seed)
    return [[drawn.permutation(objects).astype(np.uint32) for _ in range(epochs)] for _ in range(jobs)]


def importance_draws(objects: int, *, epochs: int, seed: int = 0) -> list[list[Ids]]:
    """SHADE's draws: ranks weigh ln(rank + 10), and change from epoch to epoch; with replacement."""
    drawn = np.random.default_rng(seed)
    rank, orders = drawn.permutation(objects), []
    for _ in range(epochs):
        chances = np.log(rank + 10.0)
        orders.append(drawn.choice(objects, objects, p=chances / chances.sum()).astype(np.uint32))
        rank = np.argsort(np.argsort(rank + drawn.normal(0, objects / 10, objects)))
    return [orders]


def one_rank(objects: int, *, ranks: int, epochs: int, seed: int = 0) -> list[list[Ids]]:
    """What one of so many nodes reads of shuffled epochs."""
    return [[order[::ranks] for order in permutations(objects, jobs=1, epochs=epochs, seed=seed)[0]]]


# ------------------------------------------------------------------ how it is read


def played(ours: Served, trace: Trace) -> Iterator[Exchange]:
    """The reads of a trace as requests; what it announces is sent when the read before it was answered."""
    pieces = [Piece(_OBJECT_BYTES, number) for number in range(trace.objects)]
    register(ours, pieces, (f"job{job}" for job in range(len(trace.orders))))
    requests = [_request(ours, number) for number in range(trace.objects)]
    bodies = [Piece(_OBJECT_BYTES, number).body() for number in range(trace.objects)]
    for job, epoch, place in zip(
        trace.jobs.tolist(), trace.epochs.tolist(), trace.places.tolist(), strict=True
    ):
        order = trace.orders[job][epoch]
        if trace.announced:
            _announce(ours, trace, job, epoch, place)
        number = int(order[place])
        tag = b"x-shade-job: job%d;epoch=%d;rank=0\r\n\r\n" % (job, epoch)
        yield requests[number] + tag, bodies[number]


def _announce(ours: Served, trace: Trace, job: int, epoch: int, place: int) -> None:
    """Tell what becomes known just before this read."""
    orders = trace.orders[job]
    known: list[int] = []
    if place == 0 and (epoch == 0 or (trace.next_at is None and not trace.ahead)):
        known.append(epoch)
    if place == 0 and trace.ahead:
        known += range(1, trace.ahead) if epoch == 0 else [epoch + trace.ahead - 1]
    if trace.next_at is not None and place == int(trace.next_at * len(orders[epoch])):
        known.append(epoch + 1)
    for one in known:
        if one < len(orders):
            put_order(ours, f"job{job}", one, orders[one])


def hit_ratio(trace: Trace, *, cached: float, policy: str) -> float:
    """Per cent of the reads from the second epoch on that an empty proxy with room for ``cached`` of the
    data answers from its cache.
    """
    first = int(np.flatnonzero(trace.epochs == 1)[0])
    settings: dict[str, dict[str, Any]] = {"policy": {"name": policy}, "prefetch": {"enabled": False}}
    with workplace() as work, origin(work) as source:
        ram_bytes = int(cached * trace.objects * _RECORD_BYTES)
        with proxy(work, source, ram_bytes=ram_bytes, more=settings) as ours:
            exchanges = played(ours, trace)
            read(ours.address, (next(exchanges) for _ in range(first)), connections=1)
            rest = read(ours.address, exchanges, connections=1)
    return 100 * (rest.sources["ram"] + rest.sources["disk"]) / rest.requests


def _beside_lru(trace: Trace, *, cached: float) -> Measured:
    return Measured(
        hit_ratio(trace, cached=cached, policy="default"), hit_ratio(trace, cached=cached, policy="lru")
    )


def _request(ours: Served, number: int) -> bytes:
    path = Piece(_OBJECT_BYTES, number).path
    return f"GET {path} HTTP/1.1\r\nHost: {ours.authority}\r\n".encode()


# ------------------------------------------------------------------ the rows


def ratios(scale: Scale) -> Iterator[Planned]:
    """Rows of hit ratios in per cent; the reference is LRU on the same reads."""
    objects = scale.pick(5000, 1000)
    uniform = merged(objects, permutations(objects, jobs=1, epochs=_EPOCHS))
    draws = merged(objects, importance_draws(objects, epochs=_EPOCHS))
    two, four = (merged(objects, permutations(objects, jobs=jobs, epochs=_EPOCHS)) for jobs in (2, 4))
    node = merged(objects, one_rank(objects, ranks=4, epochs=2 * _EPOCHS_AHEAD))
    same = permutations(objects, jobs=1, epochs=_EPOCHS)
    lagging = merged(objects, same * 4, lag=0.15)
    for name, trace, cached, bound in (
        ("uniform epochs, stock client", uniform._replace(announced=False), 0.2, 0.99 * 20),
        ("importance draws, this epoch announced", draws, 0.2, 49.0),
        ("importance draws, next epoch announced at half", draws._replace(next_at=0.5), 0.2, 54.0),
        ("2 jobs, next epoch known", two._replace(next_at=0.0), 0.2, 43.0),
        ("4 jobs, next epoch known", four._replace(next_at=0.0), 0.2, 48.0),
        (
            f"one node of four, {_EPOCHS_AHEAD} epochs announced",
            node._replace(ahead=_EPOCHS_AHEAD),
            0.2,
            47.0,
        ),
        ("4 jobs on one order, 15 % lag, cache of 10 %", lagging, 0.1, 48.0),
    ):
        yield Planned(
            f"hit ratio: {name}",
            "% of reads",
            Target(bound, of="ours"),
            f"{objects} objects, cache of {cached:.0%}, from the 2nd epoch on; reference: LRU, same reads",
            partial(_beside_lru, trace, cached=cached),
            ratio_is="ours / reference",
        )
