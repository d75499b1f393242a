"""Jobs that announce orders and read, for tests of the order tracker."""

import numpy as np

from shadeproxy.core.types import JobContext, ObjectRef
from shadeproxy.hints.hashing import object_hash
from shadeproxy.hints.jobs import Job, ignore
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.hints.stored import KINDS

NOW_S = 1000.0
COUNT = 24
KEYS = [f"k{number:02d}" for number in range(COUNT)]
HASHES = np.array([object_hash(ObjectRef("b", key)) for key in KEYS], dtype=np.uint64)
PAGE_0 = np.zeros(COUNT, dtype=np.uint32)


def known(world_size=1, jobs=("one",), count=COUNT, on_lost=ignore, **job):
    builder = ManifestBuilder("train")
    for number in range(count):
        builder.add(ObjectRef("b", f"k{number:02d}"), None, None)
    hints = HintRegistry(on_lost=on_lost)
    hints.put_dataset(builder.finish())
    for name in jobs:
        hints.put_job(Job(name, dataset="train", world_size=world_size, **job), NOW_S)
    return hints


def announce(hints, ids, *, epoch=0, rank=0, offset=0, job="one", now_s=NOW_S):
    announcement = hints.check_order(job, list(ids), epoch=epoch, rank=rank, offset=offset)
    hints.orders.put(announcement, now_s)
    hints.orders.settle()


def tick_of(hints):
    """Return the latest tick that the hints know."""
    return hints.expectations._tick


def read(hints, ids, now_s=NOW_S, job="one", *, epoch=None, hashes=HASHES, gap=1):
    """Note reads one by one, ``gap`` ticks apart, as the proxy notes misses. Return which reads the order
    has.
    """
    context = JobContext(job, epoch) if job else None
    return [
        hints.expectations.note_read(int(hashes[number]), 0, context, now_s, tick_of(hints) + gap)
        for number in ids
    ]


def read_together(hints, ids, now_s=NOW_S, job="one", *, hashes=HASHES, gap=1):
    """Note many reads in one call, as the proxy notes hits. Return which reads the order has."""
    ids = np.asarray(list(ids), dtype=np.int64)
    jobs = [JobContext(job) if job else None] * len(ids)
    places, tick = np.zeros(len(ids), dtype=np.int64), tick_of(hints) + gap * len(ids)
    return hints.expectations.note_reads(hashes[ids], places, jobs, now_s, tick).tolist()


def coming(hints, count=1 << 20, job="one", skip=0):
    return hints.orders.coming(job, count, skip=skip).tolist()


def restarted(hints, now_s):
    """Return a new registry with the state that a restarted proxy would restore from ``hints``."""
    again, announced = HintRegistry(), hints.orders.announced
    names = {kind: ["train"] if kind == "datasets" else ["one"] for kind in KINDS}
    names["orders"] = [
        f"one/{epoch}/{rank}" for epoch, ranks in announced.of("one").items() for rank in ranks
    ]
    for kind in KINDS:
        for name in names[kind]:
            blob = hints.export(kind, name)
            if blob is not None:
                again.restore(kind, name, blob, now_s)
    again.orders.settle()
    return again


class Long:
    """A job whose dataset has many samples."""

    def __init__(self, count=4096, jobs=("one",), **job):
        self.count = count
        self.hashes = np.array([object_hash(ObjectRef("b", f"k{n:02d}")) for n in range(count)], np.uint64)
        self.hints = known(jobs=jobs, count=count, **job)
        self.order = np.random.default_rng(3).permutation(count)
        self.orders = self.hints.orders

    def announce(self, order=None, **kwargs):
        announce(self.hints, (self.order if order is None else order).tolist(), **kwargs)

    def read(self, ids, now_s=NOW_S, job="one", **kwargs):
        return read(self.hints, np.asarray(ids).tolist(), now_s, job, hashes=self.hashes, **kwargs)

    def read_together(self, ids, now_s=NOW_S, job="one", **kwargs):
        return read_together(self.hints, ids, now_s, job, hashes=self.hashes, **kwargs)

    def steadily(self, ids, per_s, start_s=NOW_S, job="one"):
        """Read at a constant rate of samples per second. Return the time after the last read."""
        for position in range(0, len(ids), 10):
            self.read(ids[position : position + 10], start_s + position / per_s, job)
        return start_s + len(ids) / per_s

    def expect(self, ids, tick=None):
        """Return, for each id, the ticks until its next announced read, and its reads per tick by draws."""
        ids, at = np.asarray(ids, dtype=np.intp), tick_of(self.hints) if tick is None else tick
        return self.hints.expectations.expect(self.hashes[ids], np.zeros(len(ids), dtype=np.uint32), at)

    def ticks(self, ids, tick=None):
        return self.expect(ids, tick)[0]

    def announces(self, ids):
        ids = np.asarray(ids)
        return self.orders.announces(self.hashes[ids], np.zeros(len(ids), dtype=np.uint32))

    def trust(self, job="one"):
        return self.hints.expectations.belief(job).order_trust

    @property
    def state(self):
        return self.orders.state("one")
