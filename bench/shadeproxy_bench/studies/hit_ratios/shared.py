"""``python -m shadeproxy_bench.studies.hit_ratios.shared`` computes hits with the columns that many jobs of
one dataset share. It also computes the hits with exact answers, for which each job is asked about each page.

The jobs keep to their hints. Which job makes the next read is random. The first half of the reads warms the
cache, and is not counted.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.types import ObjectRef
from shadeproxy.hints.datasets import Dataset, Ids
from shadeproxy.hints.growing import Space
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.order.activity import JobActivity
from shadeproxy.hints.shared_columns import JobAnswers, PageUnits, SharedColumns
from shadeproxy.policy.base import Column
from shadeproxy.policy.expected import JobTable, expect_table
from shadeproxy.policy.registry import get_policy
from shadeproxy.simulate.hints import parse_announce
from shadeproxy.simulate.replay import Replay
from shadeproxy.simulate.trace import Trace
from shadeproxy_bench.tables import show_table

Kind = Literal["announced", "scored", "lagged"]
_KINDS: tuple[Kind, ...] = ("announced", "scored", "lagged")
Orders = NDArray[np.int64]
"""The ids that each job reads, in order. Each row is one job."""

_LAG = 0.15  # share of an epoch by which the first of the lagged jobs is ahead of the last
_NEVER = np.iinfo(np.int32).max
_NONE = np.empty(0, np.int64)


class Crowd:
    """Jobs for a replay. Each job is asked about the pages, and the answers of all jobs form one table."""

    def __init__(self, orders: Orders, readers: Ids, weights: Column | None) -> None:
        """Make the jobs. ``orders``: the ids that each job reads. The jobs announce them, unless they post
        ``weights``, whose mean is 1. ``readers``: the job of each read.
        """
        jobs, self.samples = len(orders), int(orders.max()) + 1
        self._readers, self._weights, self._at = readers, weights, 0
        self._places = places_of(readers)
        self.ids = orders[readers, self._places]
        self._activities = [JobActivity() for _ in range(jobs)]
        self._done = np.zeros((jobs, 1), np.int64)
        self._next = np.full((jobs, self.samples), _NEVER, np.int32)
        self._after = np.full(orders.shape, _NEVER, np.int32)  # the place of the job's next read of the id
        for ids, first, after in zip(orders, self._next, self._after, strict=True):
            if weights is None:
                order = np.argsort(ids, kind="stable")
                again = ids[order][1:] == ids[order][:-1]
                after[order[:-1][again]] = order[1:][again]
                first[ids[::-1]] = np.arange(len(ids))[::-1]

    def begin(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Begin the block of reads ``[start, stop)``. Return which of these reads hints explain, as
        ``TraceJobs.begin`` does.
        """
        self.advance(start)
        explained, weights = np.ones(stop - start, np.bool_), self._weights
        of = self._readers[start:stop]
        for job in np.unique(of).tolist():
            mine, activity = of == job, self._activities[job]
            reads = int(np.count_nonzero(mine))
            if weights is None:
                activity.ordered(reads, 0)
            else:
                drawn = weights[self.ids[start:stop][mine]].tolist()
                activity.drawn(drawn, float((weights**2).sum() / weights.sum()))
                explained[mine] = activity.scores_explain
            activity.read(reads, float(stop))
        self._scales = [
            activity.scale(coming=0 if weights is not None else _NEVER, silent=0.0)
            for activity in self._activities
        ]
        return explained

    def until(self, ids: NDArray[np.int64], at: int) -> tuple[Column, Column]:
        """Return when pages will be read next, in the form of ``TraceJobs.until``."""
        self.advance(at + 1)
        return expect_table(self.asked(ids))

    def advance(self, stop: int) -> None:
        """Count the reads before number ``stop`` as done."""
        for read in range(self._at, stop):
            job, place = self._readers[read], self._places[read]
            self._done[job] = place + 1
            self._next[job, self.ids[read]] = self._after[job, place]
        self._at = max(self._at, stop)

    def asked(self, ids: Ids) -> JobTable:
        """Return what the hints of all jobs say about the pages ``ids``."""
        places = self._next[:, ids]
        left = np.where(places == _NEVER, np.inf, np.maximum(places - self._done + 1.0, 1.0))
        return JobTable.of(self._scales, left, self._draws(ids))

    def _draws(self, ids: Ids) -> Column:
        """Return how many times each job will draw each of the pages, for one read of the job."""
        draws = np.zeros((len(self._activities), len(ids)))
        if self._weights is not None:
            trusts = np.array([[activity.score_trust] for activity in self._activities])
            draws = trusts * self._weights[ids] / self.samples
        return draws


class SharingCrowd(Crowd):
    """The jobs of ``Crowd``, but their answers come from the product's shared columns."""

    def __init__(self, orders: Orders, readers: Ids, weights: Column | None) -> None:
        super().__init__(orders, readers, weights)
        self._space = _dataset(self.samples)
        self._hashes = np.empty(self._space.count, np.uint64)
        self._hashes[self._space.groups.members] = self._space.groups.hashes
        self._shared = SharedColumns(self._space, 0.0)
        self._jobs = [Job(str(number), dataset="shared") for number in range(len(orders))]
        self._noted = 0

    def _ask(self, jobs: Sequence[Job], _space: Space, pages: PageUnits, _tick: float) -> JobAnswers:
        starts, ids = self._done.astype(np.float64), pages.rows
        places = self._next[:, ids].astype(np.int64)
        return JobAnswers(
            self._scales, [0] * len(jobs), starts, np.zeros_like(starts), places, self._draws(ids)
        )

    def until(self, ids: NDArray[np.int64], at: int) -> tuple[Column, Column]:
        self.advance(at + 1)
        tick = at + 1.0
        for read in range(self._noted, self._at):
            job, sample = self._readers[read], int(self.ids[read])
            self._shared.read(self._jobs[job], [sample], [int(self._next[job, sample])])
        self._noted = max(self._noted, self._at)
        self._shared.ask(self._jobs, self._ask, tick)
        if not self._shared.ready:
            return expect_table(self.asked(ids))
        pages = PageUnits(self._hashes[ids], np.zeros(len(ids), np.uint32), ids, _NONE, ids)
        found = self._shared.columns(pages, tick)
        return found.distance, found.draws


def _dataset(samples: int) -> Dataset:
    builder = ManifestBuilder("shared")
    for sample in range(samples):
        builder.add(ObjectRef("bench", f"{sample:08d}"), None, None)
    return builder.finish()


def places_of(readers: Ids) -> Ids:
    """Return for each read how many reads of the same job precede it."""
    places = np.empty(len(readers), np.int64)
    for job in np.unique(readers):
        mine = np.flatnonzero(readers == job)
        places[mine] = np.arange(len(mine))
    return places


def crowd(kind: Kind, jobs: int, samples: int, reads: int) -> tuple[Orders, Column | None]:
    """Return the ids that each job reads, and for "scored" jobs the weights by which they draw the ids."""
    random, epochs = np.random.default_rng(0), 2 + reads // (samples * jobs)
    if kind == "scored":
        weights: Column = random.lognormal(sigma=1.5, size=samples)
        weights /= weights.mean()
        drawn = random.choice(samples, (jobs, 2 * reads // jobs), p=weights / samples)
        drawn[0, 0] = samples - 1
        return drawn, weights
    if kind == "lagged":
        order = np.concatenate([random.permutation(samples) for _ in range(epochs + 1)])
        starts = np.linspace(_LAG * samples, 0, jobs).astype(int).tolist()
        return np.stack([order[start : start + epochs * samples] for start in starts]), None
    orders = [[random.permutation(samples) for _ in range(epochs)] for _ in range(jobs)]
    return np.stack([np.concatenate(order) for order in orders]), None


def hits_of(jobs: Crowd, places: int) -> float:
    """Return the hit ratio of the second half of the reads, in per cent."""
    trace = Trace(jobs.ids.astype(np.uint32), jobs.samples)
    replay = Replay(trace, get_policy("default", "bytes"), places, announce=parse_announce("none"))
    replay._jobs = jobs  # type: ignore[assignment]  # noqa: SLF001 (the replay must use these jobs)
    hits = replay.run()
    return 100 * float(hits[len(hits) // 2 :].mean())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each kind of jobs, number of jobs and size of the cache."""
    parser = argparse.ArgumentParser(description="Shared columns beside each job asked.")
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--reads", type=int, default=200_000)
    parser.add_argument("--jobs", default="8,16,100")
    parser.add_argument("--kinds", default=",".join(_KINDS))
    parser.add_argument("--caches", default="0.1", help="shares of the dataset")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    lines = []
    for kind in (one for one in _KINDS if one in options.kinds.split(",")):
        for jobs in map(int, options.jobs.split(",")):
            orders, weights = crowd(kind, jobs, options.samples, options.reads)
            readers = np.random.default_rng(1).integers(0, jobs, options.reads)
            for cache in map(float, options.caches.split(",")):
                places = round(cache * options.samples)
                exact, shared = (
                    hits_of(of(orders, readers, weights), places) for of in (Crowd, SharingCrowd)
                )
                lines.append([f"{jobs} jobs, {kind}, cache {cache:.0%}",
                              f"{exact:.2f}", f"{shared:.2f}", f"{shared - exact:+.2f}"])  # fmt: skip
                print(" | ".join(lines[-1]), file=sys.stderr, flush=True)
    show_table(["workload", "each asked", "shared", "difference"], lines, options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
