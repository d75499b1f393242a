"""The cost of hints and decisions on the event loop: applying scores, using orders, choosing a victim among
very many pages, reads beside many jobs.

Each figure is the CPU time for which one call holds the loop while nothing else runs on it. The spread
contains the worst call.
"""

import time
from collections.abc import Iterator
from functools import partial
from typing import cast

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import TierError
from shadeproxy.core.types import JobContext, ObjectRef
from shadeproxy.engine.index.residents import Residents
from shadeproxy.engine.placement.placement import Placement
from shadeproxy.hints.hashing import object_hash
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.policy.default import default_policy
from shadeproxy.tiers.base import Location
from shadeproxy.tiers.tier import Tier
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.rounds import measured
from shadeproxy_bench.suites.beside_jobs import Hits, hit_beside
from shadeproxy_bench.suites.decisions import decide
from shadeproxy_bench.suites.hits import middle_objects, small_objects
from shadeproxy_bench.suites.many_jobs import Shape, read_beside

_JOB = "bench"
_PAGE_BYTES = 100_000
_READS = 64
_NOW_S = 1.0


def _ref(number: int) -> ObjectRef:
    return ObjectRef("bench", f"images/{number:08d}.jpg")


def scored_job(samples: int) -> HintRegistry:
    """Return a hint registry with one job, on a dataset of ``samples`` whole objects that all have scores.
    Later samples have higher scores.
    """
    builder = ManifestBuilder("bench")
    for number in range(samples):
        builder.add(_ref(number), None, None)
    hints = HintRegistry()
    hints.put_dataset(builder.finish())
    hints.put_job(Job(_JOB, dataset="bench"), _NOW_S)
    for first in range(0, samples, 100_000):
        ids = np.arange(first, min(first + 100_000, samples))
        _apply(hints, ids, (1.0 + ids / samples).astype(np.float32))
    return hints


def apply_scores(*, samples: int, scores: int, rounds: int) -> Measured:
    """Return the milliseconds to check and apply ``scores`` scores. They belong to a job on ``samples``
    samples.
    """
    hints, drawn = scored_job(samples), np.random.default_rng(0)
    spent = []
    for _ in range(rounds):
        ids = drawn.integers(0, samples, scores)
        values = drawn.random(scores, dtype=np.float32)
        started = time.thread_time()
        _apply(hints, ids, values)
        spent.append((time.thread_time() - started) * 1e3)
    return measured(spent)


def take_order(*, samples: int, rounds: int) -> Measured:
    """Return the milliseconds from the ids of an epoch until their order is in use. The note says how long
    the event loop is held. The check and the build do not hold the loop, because the proxy runs them in its
    pool of threads.
    """
    hints, drawn = scored_job(samples), np.random.default_rng(0)
    spent, held = [], []
    for epoch in range(rounds):
        ids = drawn.permutation(samples).astype(np.uint32)
        started = time.thread_time()
        checked = hints.check_order(_JOB, ids, epoch=epoch, rank=0)
        on_loop = time.thread_time()
        hints.orders.put(checked, _NOW_S)
        prepared = hints.orders.begin(_JOB)
        held.append(time.thread_time() - on_loop)
        assert prepared is not None, "just announced"
        built = prepared.build.run()
        on_loop = time.thread_time()
        hints.orders.finish(prepared, built)
        held.append(time.thread_time() - on_loop)
        spent.append((time.thread_time() - started) * 1e3)
        hints.orders.withdraw(_JOB, epoch, None, _NOW_S)
        hints.orders.settle()
    found = measured(spent)
    return Measured(found.ours, None, found.ours_spread, note=f"the loop is held {1e3 * max(held):.1f} ms")


def _apply(hints: HintRegistry, ids: NDArray[np.int64], values: NDArray[np.float32]) -> None:
    hints.apply(_JOB, hints.check_by_ids(_JOB, ids, values), _NOW_S)


class _Books:
    """A tier that only does the bookkeeping. It holds no bytes, and is full until a victim is named."""

    def __init__(self, used_bytes: int) -> None:
        self.capacity_bytes = self.used_bytes = used_bytes
        self.room_bytes, self.full = 0, True

    def reserve(self, record_bytes: int) -> Location:
        if self.full:
            raise TierError(f"room for {record_bytes} bytes was taken without a victim")
        return Location(0)


def choose_victim(*, residents: int, choices: int) -> Measured:
    """Return the microseconds that it takes to find a victim for a new page if all pages have scores. Finding
    it means to draw a sample of pages, to look up their weights, and to rank them.
    """
    hints = scored_job(residents + 1)
    table = Residents(1)
    for number in range(residents + 1):
        hashed = object_hash(_ref(number))
        slot = table.add(hashed, 0, etag=1, body_bytes=_PAGE_BYTES, group=0, tick=float(number))
        if number < residents:
            table.place(slot, 0, Location(number), _PAGE_BYTES)
    newcomer = slot
    table.record_bytes[newcomer] = _PAGE_BYTES
    tier = _Books(residents * _PAGE_BYTES)
    placement = Placement(
        table,
        [cast(Tier, tier)],
        policy=default_policy(),
        weights=hints,
        next_uses=hints.expectations,
        rng=np.random.default_rng(0),
    )

    def evict(_slot: int, _reason: str) -> None:
        tier.full = False

    # The hints of a job count only after it has read something.
    for tick in range(1, _READS + 1):
        hashed = object_hash(_ref(tick))
        hints.expectations.note_read(hashed, 0, JobContext(_JOB), _NOW_S, residents + float(tick))
    placement.tick = residents + float(_READS)
    spent = []
    for _ in range(choices):
        tier.full = True
        started = time.thread_time()
        location = placement.find_place(newcomer, 0, evict)
        spent.append((time.thread_time() - started) * 1e6)
        assert location is not None, "the most important page beat no other"
    return measured(spent)


def knowledge(scale: Scale) -> Iterator[Planned]:
    samples = scale.pick(1_000_000, 100_000)
    yield Planned(
        "applying 100,000 scores",
        "ms",
        Target(5.0, at_least=False, of="ours"),
        f"check and apply by id, job on {samples:,} samples; CPU of the call, made on the loop "
        "(which may never be held > 10 ms)",
        partial(apply_scores, samples=samples, scores=100_000, rounds=scale.pick(50, 10)),
    )
    announced = scale.pick(1_280_000, 128_000)
    yield Planned(
        f"taking an order of {announced:,} ids",
        "ms",
        Target(200.0, at_least=False, of="ours"),
        "check, build and take over, one epoch of one rank; CPU of the calls, of which check and build are"
        " made in the pool (the loop may never be held > 10 ms)",
        partial(take_order, samples=announced, rounds=scale.pick(10, 3)),
    )
    yield Planned(
        f"victim among {samples:,} residents",
        "us",
        Target(50.0, at_least=False, of="ours"),
        "Placement.find_place of a scored new page, default policy: sample, weights, ranks; CPU of the call",
        partial(choose_victim, residents=samples, choices=scale.pick(2000, 500)),
    )
    for shape, words in (
        (Shape(shared=True, announced=True, scored=True), "one dataset, orders and scores"),
        (Shape(shared=True, announced=True, scored=False), "one dataset, orders"),
        (Shape(shared=True, announced=False, scored=False), "one dataset, nothing said"),
        (Shape(shared=False, announced=True, scored=False), "a dataset each, orders"),
        (Shape(shared=False, announced=True, scored=True), "a dataset each, orders and scores"),
    ):
        yield Planned(
            f"hints of a read beside 100 jobs, {words}",
            "us",
            Target(1.2, at_least=False),
            "beside the same with one job, in turn: 240 hits noted together, 16 misses noted and asked for"
            " alone, 1,024 pages ranked; CPU of the calls by read",
            partial(
                read_beside,
                jobs=100,
                samples=scale.pick(100_000, 20_000),
                shape=shape,
                rounds=scale.pick(200, 40),
            ),
            ratio_is="ours / reference",
        )
    for size, pieces, most in (
        ("4 KB", small_objects(scale), 150_000),
        ("100 KB", middle_objects(scale), 60_000),
    ):
        yield Planned(
            f"RAM hit beside 100 jobs, {size}, orders and scores",
            "us CPU/request",
            Target(1.2, at_least=False),
            "the whole proxy over HTTP, beside the same with one job, in turn: the jobs share"
            f" {len(pieces)} cached objects, and each reads its announced order; user + system time",
            partial(hit_beside, Hits(pieces, most, 1.0), jobs=100, rounds=scale.rounds),
            ratio_is="ours / reference",
        )
    for policy in ("default", "lru"):
        for mixed in (False, True):
            sizes = "mixed" if mixed else "equal"
            for together in (1, 8, 32):
                yield Planned(
                    f"decision, batches of {together}, full tier, {policy}, {sizes} sizes",
                    "us",
                    Target(6.0, at_least=False, of="ours") if together == 32 else None,
                    "PageCache.miss of each page and insert_many of the batch, by page; 256 MiB in memory,"
                    " without the writes of records; CPU of the calls",
                    partial(
                        decide,
                        policy=policy,
                        together=together,
                        mixed=mixed,
                        decisions=scale.pick(16_000, 2000),
                    ),
                )
