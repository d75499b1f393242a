"""The cost of hints by the number of jobs: recording reads, and ranking pages. The jobs share one dataset, or
each job has its own.

A round has 256 reads of random jobs, as they come to the proxy. 240 reads are hits, which are recorded
together. 16 reads are misses, each of which is recorded alone and followed by a question about its page. Once
in a round, 1,024 resident pages are ranked to find victims.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from shadeproxy.core.types import JobContext, ObjectRef
from shadeproxy.hints.hashing import object_hash
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.registry import HintRegistry
from shadeproxy_bench.results import Measured
from shadeproxy_bench.rounds import measured

_ROUND, _MISSES, _RANKED = 256, 16, 1024
_NOW_S = 1.0
_WARM_ROUNDS = 60  # by then the shared columns of 100,000 samples are in use
_PAGE = np.zeros(1, np.uint32)


class Shape(NamedTuple):
    """The form of the jobs' datasets and hints. ``shared``: all jobs share one dataset; otherwise each has
    its own. ``announced``: jobs have orders. ``scored``: jobs have scores.
    """

    shared: bool
    announced: bool
    scored: bool


class Crowd:
    """Jobs that read ``samples`` objects in all, each in a random order, which it has announced if ``shape``
    says so.
    """

    def __init__(self, jobs: int, samples: int, shape: Shape) -> None:
        self.hints, self._random = HintRegistry(), np.random.default_rng(0)
        datasets = 1 if shape.shared else jobs
        self._hashes = [self._dataset(number, samples // datasets) for number in range(datasets)]
        self._resident = np.concatenate(self._hashes)
        self._orders, self._contexts, self._at = [], [], [0] * jobs
        for number in range(jobs):
            name, dataset = f"job{number}", number % datasets
            self.hints.put_job(Job(name, dataset=f"data{dataset}"), _NOW_S)
            count = len(self._hashes[dataset])
            order = self._random.permutation(count)
            if shape.announced:
                for epoch in range(2):
                    ids = order if epoch == 0 else self._random.permutation(count)
                    checked = self.hints.check_order(name, ids.astype(np.uint32), epoch=epoch, rank=0)
                    self.hints.orders.put(checked, _NOW_S)
            if shape.scored:
                ids, values = np.arange(count), self._random.random(count, dtype=np.float32)
                for first in range(0, count, 100_000):
                    part = slice(first, first + 100_000)
                    self.hints.apply(name, self.hints.check_by_ids(name, ids[part], values[part]), _NOW_S)
            self._orders.append(order)
            self._contexts.append(JobContext(name, 0))
        self.hints.orders.settle()
        self._tick = 0.0
        for _ in range(_WARM_ROUNDS):
            self.round()

    def _dataset(self, number: int, samples: int) -> np.ndarray:
        builder, refs = ManifestBuilder(f"data{number}"), []
        for sample in range(samples):
            refs.append(ObjectRef("bench", f"{number:03d}/{sample:08d}"))
            builder.add(refs[-1], None, None)
        self.hints.put_dataset(builder.finish())
        return np.array([object_hash(ref) for ref in refs], np.uint64)

    def round(self) -> tuple[float, float]:
        """Record 256 reads. Return the CPU seconds of all calls together, and of the longest call."""
        spent = []
        readers = self._random.integers(0, len(self._orders), _ROUND).tolist()
        reads = [(self._next(job), self._contexts[job]) for job in readers]
        ranked = self._resident[self._random.integers(0, len(self._resident), _RANKED)]
        numbers, book = np.zeros(_RANKED, np.uint32), self.hints.expectations

        def spend(call: Callable[[], object]) -> None:
            started = time.thread_time()
            call()
            spent.append(time.thread_time() - started)

        together, alone = reads[_MISSES:], reads[:_MISSES]
        hashes = np.array([hashed for hashed, _ in together], np.uint64)
        contexts = [context for _, context in together]
        self._tick += len(together)
        spend(lambda: book.note_reads(hashes, np.zeros(len(hashes), np.int64), contexts, _NOW_S, self._tick))
        spend(lambda: book.expect(ranked, numbers, self._tick))
        for hashed, context in alone:
            self._tick += 1
            page = np.array([hashed], np.uint64)
            spend(lambda: book.note_read(hashed, 0, context, _NOW_S, self._tick))  # noqa: B023 (called at once)
            spend(lambda: book.expect(page, _PAGE, self._tick))  # noqa: B023 (called at once)
        return sum(spent), max(spent)

    def _next(self, job: int) -> int:
        order, place = self._orders[job], self._at[job]
        self._at[job] += 1
        return int(self._hashes[job % len(self._hashes)][order[place % len(order)]])


def read_beside(*, jobs: int, samples: int, shape: Shape, rounds: int) -> Measured:
    """Return the microseconds that hints cost for each read: with ``jobs`` jobs, and with one job, measured
    in turn.
    """
    many, one = Crowd(jobs, samples, shape), Crowd(1, samples, shape)
    spent, alone, longest = [], [], 0.0
    for _ in range(rounds):
        alone.append(one.round()[0] / _ROUND * 1e6)
        took, most = many.round()
        longest = max(longest, most)
        spent.append(took / _ROUND * 1e6)
    found = measured(spent, alone)
    return Measured(
        found.ours, found.reference, found.ours_spread, found.reference_spread,
        note=f"the longest turn of the loop: {1e3 * longest:.1f} ms",
    )  # fmt: skip
