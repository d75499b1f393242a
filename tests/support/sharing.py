"""Proxies of a cluster that share hints over one log: their hint registries, without listeners or caches."""

import asyncio
import time
from contextlib import asynccontextmanager

import numpy as np

from shadeproxy.api.control.order_builder import OrderBuilder
from shadeproxy.cluster.applier import Applier
from shadeproxy.cluster.contents import Contents
from shadeproxy.cluster.replication import FLUSH_S, Replication
from shadeproxy.cluster.signed import Seals
from shadeproxy.cluster.snapshot import Snapshots
from shadeproxy.cluster.snapshot_keeper import Node, SnapshotKeeper
from shadeproxy.core.clock import SystemClock
from shadeproxy.core.types import ObjectRef
from shadeproxy.core.workpool import WorkPool
from shadeproxy.hints.changes import Announce, DeleteJob, PutDataset, PutJob, PutScores
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.telemetry.counters import ClusterCounters

SECRET = "a secret of at least sixteen"


def dataset(name="train", count=100):
    builder = ManifestBuilder(name, page_size=4096)
    for number in range(count):
        builder.add(ObjectRef("data", f"{number:07d}"))
    return builder.finish()


class Sharing:
    """One proxy. ``places``: the pins and purges that it was told to make. ``runs``: the jobs whose runs have
    begun.
    """

    def __init__(self, log, name="a", *, boot=1, origin="o", secret=SECRET, cluster="c", reached=""):
        self.log, self.name, self.places, self.runs = log, name, [], []
        self.pool = WorkPool(2, "cluster")
        self.builder = OrderBuilder(self.pool)
        clock = SystemClock()
        seals, contents = Seals(cluster, secret.split(",")), Contents(log)
        self.hints = HintRegistry(
            dirty=self._note, page_size=4096, on_lost=self.builder.seek, on_run=self.runs.append
        )
        node = Node(name, boot, origin)
        self.counters = ClusterCounters()
        self.applier = Applier(
            self.hints,
            contents,
            clock=clock,
            pool=self.pool,
            settle=lambda job: self.builder.settled(self.hints.orders, job),
            on_place=self._on_place,
        )
        self.snapshots = Snapshots(
            log, seals, contents, self.hints, origin=origin, clock=clock, pool=self.pool
        )
        self.keeper = SnapshotKeeper(
            log, node, self.snapshots, self.applier, self.hints, clock=clock, pins=lambda: ()
        )
        self.replication = Replication(
            log,
            seals,
            node,
            applier=self.applier,
            keeper=self.keeper,
            hints=self.hints,
            clock=clock,
            pool=self.pool,
            counters=self.counters,
            reached=reached,
        )

    def _note(self, kind, name):
        self.snapshots.note(kind, name)
        self.replication.note(kind, name)

    def _on_place(self, place):
        self.places.append((place.verb, place.bucket, place.prefix))
        done = asyncio.get_running_loop().create_future()
        done.set_result(len(self.places))
        return done

    async def __aenter__(self):
        self.replication.start()
        await until(lambda: not self.replication.cut_off or self.replication.refusal)
        return self

    @asynccontextmanager
    async def starting(self):
        """Start as ``async with`` does, but do not wait until the proxy has joined the cluster."""
        self.replication.start()
        try:
            yield
        finally:
            await self.__aexit__()

    def restore(self):
        """Put a dataset and a job into the hints, as the state directory does before a start."""
        self.hints.put_dataset(dataset())
        PutJob("j", "train", 2, 1.0, 3600.0).apply(self.hints, 0.0)

    async def __aexit__(self, *_):
        await self.replication.aclose()
        await asyncio.to_thread(self.pool.shutdown)

    # ------------------------------------------------------------------ control calls

    async def make(self, change):
        return await self.replication.make(change)

    async def register(self, job="j", *, count=100, world_size=2, begins=None):
        await self.make(PutDataset(dataset(count=count)))
        return await self.make(PutJob(job, "train", world_size, 1.0, 3600.0, begins))

    async def register_again(self, job="j"):
        await self.make(DeleteJob(job))
        await self.register(job)

    async def score(self, ids, scores, job="j"):
        return await self.make(PutScores(job, self.hints.check_by_ids(job, ids, scores)))

    async def announce(self, ids, *, job="j", epoch=0, rank=0, offset=0):
        new = self.hints.check_order(job, ids, epoch=epoch, rank=rank, offset=offset)
        await self.make(Announce(new))
        await self.builder.settled(self.hints.orders, job)

    async def write_snapshot(self):
        sealed = (await self.log.names())["snapshot"]
        assert (await self.keeper._write(sealed)).is_own

    # ------------------------------------------------------------------ known hints

    def scores(self, job="j"):
        return np.nan_to_num(self.hints.scores(job), nan=-1).tolist()

    def knows(self, job="j"):
        return job in self.hints.jobs

    def order(self, rank=0, *, job="j", epoch=0):
        ids = self.hints.orders.announced.ids(job, epoch, rank)
        return None if ids is None else ids.tolist()


async def until(condition, limit_s=10.0):
    """Wait until ``condition`` is true."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it does not come"
        await asyncio.sleep(0.01)


async def connected(one):
    """Let a proxy that was cut off (``CutLog``) reach the log, and wait until all proxies know what waits."""
    one.log.is_cut = False
    await until(lambda: not one.replication.cut_off and not len(one.replication.backlog))
    await asyncio.sleep(4 * FLUSH_S)


def column(score):
    """Return scores of all samples, for ``FreezeScores``."""
    return np.full(100, score, np.float32)
