"""``python -m shadeproxy_bench.studies.hit_ratios.owned`` computes the hits of a cluster in which each object
has one owner. It also computes the hits of one cache with the capacity of all proxies, and of caches that
know nothing of each other.

Hint registries (one for each proxy) and eviction are those of the product. One job has a rank for each proxy,
and announces each epoch when half of the epoch before is read. Ranks read in lock step. The first epoch is
not counted.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.cluster.rendezvous import Rendezvous
from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import JobContext, ObjectRef
from shadeproxy.hints.datasets import Bits, Dataset, Hashes
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.order.share import OwnedShare
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.policy.base import Column
from shadeproxy.policy.registry import get_policy
from shadeproxy.simulate.hints import parse_announce
from shadeproxy.simulate.replay import Replay
from shadeproxy.simulate.trace import Trace
from shadeproxy.simulate.workloads import importance, uniform
from shadeproxy_bench.tables import show_table

Kind = Literal["uniform", "importance"]
_KINDS: tuple[Kind, ...] = ("uniform", "importance")
_JOB = "job"
_PER_S = 1000.0


class Workload(NamedTuple):
    """Epochs of one job. ``orders``: the ids of each epoch, as its ranks read them in turn. ``weights``: for
    each epoch, the scores by which it was drawn; None without scores. ``hashes``: the hashes of the objects.
    """

    orders: list[NDArray[np.uint32]]
    weights: NDArray[np.float32] | None
    dataset: Dataset
    hashes: Hashes

    @classmethod
    def of(cls, kind: Kind, objects: int, epochs: int, seed: int = 0) -> "Workload":
        make = uniform if kind == "uniform" else importance
        trace = make(objects, epochs, seed=seed)
        builder = ManifestBuilder("data")
        refs = [ObjectRef("bench", f"{sample:08d}") for sample in range(objects)]
        for ref in refs:
            builder.add(ref, None, None)
        hashes = np.array([object_hash(ref) for ref in refs], dtype=np.uint64)
        orders = [trace.ids[trace.epochs == epoch] for epoch in range(epochs)]
        return cls(orders, trace.weights, builder.finish(), hashes)


class Node:
    """One proxy of the cluster. A replay uses it in place of its ``TraceJobs``. ``ranks``: the ranks whose
    reads the proxy may answer. ``world``: number of ranks of the job. ``share``: the objects that the proxy
    caches; None: all objects.
    """

    def __init__(self, work: Workload, ranks: Sequence[int], world: int, share: OwnedShare | None) -> None:
        self.hints = HintRegistry(page_size=1 << 20, on_lost=lambda orders, _job: orders.settle())
        self.hints.put_dataset(work.dataset)
        self.hints.put_job(Job(_JOB, dataset=work.dataset.name, world_size=world), 0.0)
        self.hints.set_share(share)
        self._work, self._ranks, self._world = work, ranks, world
        mine = np.ones(len(work.hashes), np.bool_) if share is None else share.owns(work.hashes)
        ids: list[NDArray[np.uint32]] = []
        epochs: list[NDArray[np.uint16]] = []
        # Each entry: the read before which a call is made, the call's epoch, and whether this epoch begins
        # then.
        calls: list[tuple[int, int, bool]] = []
        read = 0
        for epoch, order in enumerate(work.orders):
            kept = mine[order] & np.isin(np.arange(len(order)) % world, ranks)
            calls.append((read, epoch, True))
            ids.append(order[kept])
            epochs.append(np.full(len(ids[-1]), epoch, np.uint16))
            half = int(np.count_nonzero(kept[: len(kept) // 2]))
            calls.append((read + half, epoch + 1, False))
            read += len(ids[-1])
        self.ids, self.epochs = np.concatenate(ids), np.concatenate(epochs)
        self._calls = iter(calls)
        self._call = next(self._calls, None)
        self._announce(0, 0.0)
        self._at = 0

    def begin(self, start: int, stop: int) -> Bits:
        """Begin a block of reads. Return a flag for each read: whether the hints of its job explain it, so
        that it need not be learnt from. ``until`` records the reads later.
        """
        activity = self.hints.expectations._activities.get(_JOB)  # noqa: SLF001 (a study looks inside)
        explained = activity is not None and (activity.order_explains or activity.scores_explain)
        return np.full(stop - start, explained)

    def until(self, ids: NDArray[np.int64], at: int) -> tuple[Column, Column]:
        """Return when pages will be read next, in the form of ``TraceJobs.until``."""
        self._read_to(at)
        return self.hints.expectations.expect(self._work.hashes[ids], np.zeros(len(ids), np.uint32), at + 1.0)

    def _read_to(self, at: int) -> None:
        while self._at <= at:
            while self._call is not None and self._call[0] <= self._at:
                _, epoch, begins = self._call
                if begins:
                    self._score(epoch, self._at / _PER_S)
                else:
                    self._announce(epoch, self._at / _PER_S)
                self._call = next(self._calls, None)
            sample, context = self.ids.item(self._at), JobContext(_JOB, self.epochs.item(self._at))
            self._at += 1
            self.hints.expectations.note_read(
                self._work.hashes.item(sample), 0, context, self._at / _PER_S, float(self._at)
            )

    def _announce(self, epoch: int, now_s: float) -> None:
        if epoch < len(self._work.orders):
            for rank in self._ranks:
                ids = self._work.orders[epoch][rank :: self._world]
                self.hints.orders.put(self.hints.check_order(_JOB, ids, epoch=epoch, rank=rank), now_s)
            self.hints.orders.settle()

    def _score(self, epoch: int, now_s: float) -> None:
        if self._work.weights is not None:
            scores = self._work.weights[epoch]
            batch = self.hints.check_by_ids(_JOB, np.arange(len(scores)), scores)
            self.hints.apply(_JOB, batch, now_s)

    def hits(self, places: int) -> NDArray[np.bool_]:
        """Return which reads hit a cache of ``places`` objects. Only reads from the second epoch on are
        returned.
        """
        trace = Trace(self.ids, len(self._work.hashes), epochs=self.epochs)
        replay = Replay(trace, get_policy("default"), places, announce=parse_announce("none"))
        replay._jobs = self  # type: ignore[assignment]  # noqa: SLF001 (the replay must use this node's jobs)
        return replay.run()[self.epochs > 0]


Owner = Callable[[Hashes], NDArray[np.integer]]
"""A function that returns, for each object, the number of the node that owns it."""


def by_rendezvous(nodes: int) -> Owner:
    """Return the function that finds the owners in a cluster of ``nodes`` nodes of equal weight."""
    return Rendezvous([f"node{number}" for number in range(nodes)], [1.0] * nodes).find_many


def one_cache(work: Workload, nodes: int, places: int) -> float:
    """Return the hit ratio of one cache for all ranks, with as many places as all nodes together."""
    return _ratio([Node(work, range(nodes), nodes, None).hits(nodes * places)])


def owned_caches(work: Workload, nodes: int, places: int, owner: Owner) -> float:
    """Return the hit ratio of nodes that serve all ranks. Each node caches only the objects that it owns."""
    return _ratio(
        [
            Node(work, range(nodes), nodes, OwnedShare(number, partial(_owned_by, owner, number))).hits(
                places
            )
            for number in range(nodes)
        ]
    )


def alone(work: Workload, nodes: int, places: int) -> float:
    """Return the hit ratio of nodes that serve one rank each. Each node caches any object."""
    return _ratio([Node(work, [rank], nodes, None).hits(places) for rank in range(nodes)])


def _owned_by(owner: Owner, number: int, hashes: Hashes) -> Bits:
    owned: Bits = owner(hashes) == number
    return owned


def _ratio(hits: Sequence[NDArray[np.bool_]]) -> float:
    return float(np.concatenate(hits).mean())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each kind of epochs and each capacity."""
    parser = argparse.ArgumentParser(description="A cluster of owners beside one cache.")
    parser.add_argument("--objects", type=int, default=16_000)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--caches", default="0.05,0.1", help="capacity of a node, as a share of the data")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    nodes, lines = options.nodes, []
    for kind in _KINDS:
        work = Workload.of(kind, options.objects, options.epochs)
        for cache in map(float, options.caches.split(",")):
            places = round(cache * options.objects)
            one, all_owned = (
                one_cache(work, nodes, places),
                owned_caches(work, nodes, places, by_rendezvous(nodes)),
            )
            apart = alone(work, nodes, places)
            lines.append([f"{kind}, {nodes} x {cache:.0%}", f"{one:.2%}", f"{all_owned:.2%}",
                          f"{all_owned / one:.3f}", f"{apart:.2%}"])  # fmt: skip
            print(" | ".join(lines[-1]), file=sys.stderr, flush=True)
    heads = ["workload", "one cache", "owned", "owned / one", "each alone"]
    show_table(heads, lines, options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
