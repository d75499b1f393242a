"""A job has filled the cache and stopped. A client without hints then gets its share of the cache."""

import numpy as np
import pytest

from shadeproxy.core.types import JobContext, ObjectRef, Source
from shadeproxy.engine.rules import Freshness, Rule
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.registry import HintRegistry

DATA, STOCK, PLACES = 300, 60, 100
PAGE, BODY, RECORD = 16_384, 7_900, 8_192
RATE_PER_S = 50


class Scene:
    """A job that reads ``DATA`` objects by its order, and a client without hints that reads ``STOCK`` other
    objects.
    """

    def __init__(self, bench, hints):
        self.bench, self.hints = bench, hints
        self.orders = [np.random.default_rng(epoch).permutation(DATA) for epoch in range(4)]
        self.random = np.random.default_rng(7)
        for epoch in range(3):
            self.announce(epoch)

    def announce(self, epoch):
        new = self.hints.check_order("j", self.orders[epoch], epoch=epoch, rank=0)
        self.hints.orders.put(new, self.bench.clock.now_s())
        self.hints.orders.settle()

    async def read(self, key, job=None):
        _, source = await self.bench.get(key, job=job)
        await self.bench.settle()
        self.bench.clock.advance(1 / RATE_PER_S)
        self.hints.expire(self.bench.clock.now_s())
        return source is not Source.ORIGIN

    async def train(self, epoch, start, stop):
        return [
            await self.read(f"d{n}", JobContext("j", epoch, 0))
            for n in self.orders[epoch][start:stop].tolist()
        ]

    async def serve(self, seconds, keys):
        """Return the hit ratio of a client without hints. The client reads all of ``keys`` again and again,
        each time in random order.
        """
        hits = []
        for _ in range(int(seconds * RATE_PER_S) // len(keys)):
            hits += [await self.read(keys[n]) for n in self.random.permutation(len(keys)).tolist()]
        return float(np.mean(hits))

    def wait(self, seconds):
        self.bench.clock.advance(seconds)
        self.hints.expire(self.bench.clock.now_s())


STOCK_KEYS = [f"s{n}" for n in range(STOCK)]


@pytest.fixture
async def scene(make_bench):
    builder = ManifestBuilder("data")
    for n in range(DATA):
        builder.add(ObjectRef("b", f"d{n}"), None, None)
    hints = HintRegistry(page_size=PAGE)
    hints.put_dataset(builder.finish())
    hints.put_job(Job("j", dataset="data"), 0.0)
    bench = await make_bench(
        hints=hints,
        page_size=PAGE,
        ram_bytes=PLACES * RECORD,
        segment_bytes=1 << 20,
        rules=(Rule(freshness=Freshness.IMMUTABLE),),
    )
    for key in (*STOCK_KEYS, *(f"d{n}" for n in range(DATA))):
        bench.origin.put("b", key, bytes(BODY))
    made = Scene(bench, hints)
    await made.train(0, 0, DATA)
    await made.train(1, 0, DATA // 2)
    return made


async def test_a_killed_job_holds_the_cache_for_tens_of_seconds(scene):
    early = await scene.serve(15, STOCK_KEYS)
    await scene.serve(30, STOCK_KEYS)
    assert early < await scene.serve(10, STOCK_KEYS) == 1.0


async def test_an_ended_job_holds_nothing(scene):
    scene.hints.end_rank("j", 0)
    await scene.serve(2.4, STOCK_KEYS)
    assert await scene.serve(10, STOCK_KEYS) == 1.0


async def test_a_checkpoint_costs_a_job_nothing(scene):
    pages = [f"d{n}" for n in range(DATA)]
    before = scene.bench.cached(pages)
    scene.wait(15)
    for key in STOCK_KEYS:
        await scene.read(key)
    assert scene.bench.cached(pages) >= before - 4


async def test_a_job_that_nobody_disturbed_finds_all_it_had_after_any_silence(scene):
    pages = [f"d{n}" for n in range(DATA)]
    before = scene.bench.cached(pages)
    scene.wait(2000)
    assert scene.bench.cached(pages) == before
    await scene.train(1, DATA // 2, DATA)
    assert np.mean(await scene.train(2, 0, DATA)) > 0.9 * PLACES / DATA, "as if it had never stopped"


@pytest.mark.parametrize("ended", [False, True])
async def test_a_stock_client_on_the_data_of_a_job_that_is_gone_keeps_the_cached_share(scene, ended):
    """A client without hints that reads the data of a stopped job hits the cached share. The client's reads
    must keep their pages. With recency alone, shuffled epochs would have far fewer hits.
    """
    if ended:
        scene.hints.end_rank("j", 0)
    scene.wait(60)
    keys = [f"d{n}" for n in range(DATA)]
    await scene.serve(60, keys)
    assert await scene.serve(24, keys) > 0.9 * PLACES / DATA
