"""Signs of life in a cluster: all proxies know of each use, and a start of a proxy is no sign of life."""

import asyncio
import time

import pytest

from shadeproxy.cluster.replication import FLUSH_S
from shadeproxy.hints.changes import PutDataset
from tests.support.cluster_log import FakeLog, Server
from tests.support.sharing import Sharing, dataset, until

LONG_S = 7200.0


@pytest.fixture
def server():
    return Server()


def is_live(one, job="j"):
    one.hints.expire(time.time())
    return one.hints.jobs.get(job).live


async def signs_sent():
    await asyncio.sleep(10 * FLUSH_S)


@pytest.mark.parametrize("restores", [False, True])
async def test_a_proxy_that_joins_revives_no_silent_job_at_any_proxy(server, restores):
    async with Sharing(FakeLog(server), "a") as a:
        await a.register()
        a.hints.jobs.get("j").seen_s -= LONG_S
        assert not is_live(a)
        await a.write_snapshot()
        b = Sharing(FakeLog(server), "b")
        if restores:
            b.restore()
            b.hints.jobs.touch("j", time.time())  # At a start, a job that was in use counts as alive.
        async with b:
            await until(b.knows)
            await signs_sent()
            assert (is_live(a), is_live(b)) == (False, False)
            b.hints.jobs.touch("j", time.time())
            await until(lambda: is_live(a))


async def test_a_proxy_that_joins_reports_no_sign_of_a_job_that_it_only_restored(server):
    async with Sharing(FakeLog(server), "a") as a:
        await a.register()
        seen_s = a.hints.jobs.get("j").seen_s = time.time() - 60.0
        await a.write_snapshot()
        b = Sharing(FakeLog(server), "b")
        b.restore()
        b.hints.jobs.touch("j", time.time())
        async with b:
            await signs_sent()
            assert a.hints.jobs.get("j").seen_s == seen_s


async def test_a_use_of_a_dataset_at_one_proxy_is_known_at_all_and_is_told_once(server):
    async with Sharing(FakeLog(server), "a") as a, Sharing(FakeLog(server), "b") as b:
        await a.make(PutDataset(dataset()))
        await until(lambda: "train" in b.hints.datasets)
        for one in (a, b):
            one.hints.uses.restore("train", 1000.0)
        used_s = time.time()
        a.hints.uses.note("train", used_s)
        await until(lambda: b.hints.uses.get("train") >= used_s)
        await signs_sent()
        published = a.counters.published, b.counters.published
        await signs_sent()
        assert (a.counters.published, b.counters.published) == published


async def test_a_proxy_that_joins_reports_no_old_use_as_a_new_one(server):
    async with Sharing(FakeLog(server), "a") as a:
        await a.make(PutDataset(dataset()))
        a.hints.uses.restore("train", 1000.0)
        await a.write_snapshot()
        b = Sharing(FakeLog(server), "b")
        b.hints.put_dataset(dataset())
        b.hints.uses.restore("train", 2000.0)
        async with b, Sharing(FakeLog(server), "c") as c:
            await until(lambda: "train" in c.hints.datasets)
            await signs_sent()
            assert (a.hints.uses.get("train"), b.hints.uses.get("train")) == (1000.0, 2000.0)
