"""The snapshot has the hints of all proxies, whichever proxy writes it."""

import asyncio
import time

import numpy as np
import pytest

from shadeproxy.cluster import snapshot_keeper
from shadeproxy.cluster.events import ScoresEvent
from shadeproxy.core.errors import ClusterUnavailable
from shadeproxy.hints.changes import DeleteJob, EndRank, PutJob
from tests.support.cluster_log import FakeLog, Server
from tests.support.sharing import Sharing, dataset, until


@pytest.fixture
def server():
    return Server()


async def test_a_proxy_without_state_that_joins_an_empty_log_first_gets_the_hints_of_the_others(server):
    """Its empty snapshot is the first one in the log. Another proxy then writes one with its own hints."""
    async with Sharing(FakeLog(server), "b") as b:
        await b.register()
        server.up = False
        await until(lambda: b.replication.cut_off)
        server.lose()
        server.up = True
        async with Sharing(FakeLog(server), "a") as a:
            await until(a.knows)


@pytest.mark.parametrize("takes_it", [False, True])
async def test_hints_are_given_back_although_the_log_fails_in_between(server, monkeypatch, takes_it):
    """Its second snapshot, the one that has all hints, cannot be written at first, or the answer is lost."""
    async with Sharing(FakeLog(server), "b") as b:
        await b.register()
        server.up = False
        await until(lambda: b.replication.cut_off)
        claim, failures = FakeLog.claim, []

        async def failing(self, name, value, *, instead_of=None):
            if self is b.log and instead_of is not None and len(failures) < 2:
                failures.append(name)
                if takes_it:
                    await claim(self, name, value, instead_of=instead_of)
                raise ClusterUnavailable("no answer in time")
            return await claim(self, name, value, instead_of=instead_of)

        monkeypatch.setattr(snapshot_keeper, "_LOOK_S", 0.2)
        monkeypatch.setattr(FakeLog, "claim", failing)
        server.lose()
        server.up = True
        async with Sharing(FakeLog(server), "a") as a:
            await until(a.knows)
        assert failures


async def test_proxies_that_put_their_hints_into_an_empty_log_at_once_lose_none(server):
    """Only one of their snapshots takes the place of the first one. The others must write again."""
    owners = [Sharing(FakeLog(server), name) for name in "bcd"]
    async with Sharing(FakeLog(server), "a") as a, owners[0], owners[1], owners[2]:
        for one in owners:
            one.hints.put_dataset(dataset())
            PutJob(f"of-{one.name}", "train", 1, 1.0, 3600.0).apply(one.hints, 0.0)
        a.keeper.followed.life = "another"
        await a.keeper._write(a.keeper._sealed)
        for one in owners:
            one.keeper.look.set()
        for one in (a, *owners):
            for job in ("of-b", "of-c", "of-d"):
                await until(lambda one=one, job=job: one.knows(job))


@pytest.fixture
async def lacking(server, monkeypatch):
    """Yield a proxy that lacks a job and would be the first one to write a snapshot, and a complete one."""
    monkeypatch.setattr(snapshot_keeper, "_LOOK_S", 0.1)
    async with Sharing(FakeLog(server), "a") as a, Sharing(FakeLog(server), "b") as b:
        await b.register()
        await until(a.knows)
        DeleteJob("j").apply(a.hints, 0.0)
        await b.make(EndRank("j", 1))
        await until(lambda: a.counters.refused.get("change"))
        yield a, b


async def test_a_proxy_that_lacks_hints_does_not_write_the_snapshot(lacking):
    a, b = lacking
    a.keeper._every_s, b.keeper._every_s = 0.3, 0.6
    await until(a.knows, 5.0)
    assert a.hints.jobs.get("j").ended == {1}


async def test_a_snapshot_from_before_the_missed_event_does_not_count(lacking):
    """Its writer had not seen yet what this proxy lacks."""
    a, b = lacking
    sealed, followed = (await a.log.names())["snapshot"], b.keeper.followed
    after = dict(followed.after)
    followed.after["k"] = "0-1"
    DeleteJob("j").apply(b.hints, 0.0)
    await b.keeper._write(sealed)
    await a.keeper.step()
    assert not a.knows()
    followed.after.update(after)
    PutJob("j", "train", 2, 1.0, 3600.0).apply(b.hints, 0.0)
    await b.keeper._write((await a.log.names())["snapshot"])
    await a.keeper.step()
    assert a.knows()


async def test_a_proxy_that_lacks_hints_writes_the_snapshot_if_no_other_does(lacking, monkeypatch):
    monkeypatch.setattr(snapshot_keeper, "_LACKING_S", 0.5)
    a, b = lacking
    a.keeper._every_s, b.keeper._every_s = 0.3, 1e9
    a.keeper._seen_s = time.monotonic()
    sealed = (await a.log.names())["snapshot"]
    await b.make(PutJob("k", "train", 1, 1.0, 60.0))
    await asyncio.sleep(0.6)
    assert (await a.log.names())["snapshot"] == sealed
    while (await a.log.names())["snapshot"] == sealed:
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("refused", ["before the deletion", "after the deletion"])
async def test_a_proxy_does_not_lack_scores_of_a_deleted_job(server, refused):
    """The other proxies may stop to read the job's scores before these ones: no snapshot contains them."""
    async with Sharing(FakeLog(server), "a") as a, Sharing(FakeLog(server), "b") as b:
        await a.register()
        await until(b.knows)
        digest = b.hints.datasets["train"].digest
        late = ScoresEvent("j", digest, np.uint32([1]).tobytes(), np.float32([1]).tobytes())
        if refused == "before the deletion":
            b.keeper.lacks(late)
        await a.make(DeleteJob("j"))
        await until(lambda: not b.knows())
        if refused == "after the deletion":
            b.keeper.lacks(late)
        assert not b.keeper._lacks
