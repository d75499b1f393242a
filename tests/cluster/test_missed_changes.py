"""A proxy that joins a cluster makes the changes that it missed, and those that the snapshot lacks."""

import asyncio

import pytest

from shadeproxy.cluster.events import PlaceEvent
from shadeproxy.cluster.replication import FLUSH_S
from shadeproxy.cluster.snapshot_keeper import SnapshotKeeper
from shadeproxy.core.errors import ClusterUnavailable
from shadeproxy.hints.changes import DeleteJob, FreezeScores, PutJob, WithdrawOrder
from tests.support.cluster_log import CutLog, FakeLog, Server
from tests.support.sharing import Sharing, column, connected, until


@pytest.fixture
def server():
    return Server()


async def test_a_job_that_was_deleted_while_its_proxy_was_stopped_does_not_come_back(server):
    async with Sharing(FakeLog(server), "a") as a:
        async with Sharing(FakeLog(server), "b") as b:
            await a.register()
            await until(b.knows)
            reached = b.replication.reached
        await a.make(DeleteJob("j"))
        await a.write_snapshot()
        again = Sharing(FakeLog(server), "b", boot=2, reached=reached)
        again.restore()
        async with again:
            await asyncio.sleep(2 * FLUSH_S)
            assert not again.knows()


async def test_scores_of_a_deleted_job_do_not_come_back_from_the_state_of_a_stopped_proxy(server):
    async with Sharing(FakeLog(server), "a") as a:
        async with Sharing(FakeLog(server), "b") as b:
            await a.register()
            await until(b.knows)
            reached = b.replication.reached
        await a.register_again()
        await a.write_snapshot()
        again = Sharing(FakeLog(server), "b", boot=2, reached=reached)
        again.restore()
        again.hints.apply("j", again.hints.check_by_ids("j", [1], [0.5]), 0.0)
        async with again:
            await asyncio.sleep(2 * FLUSH_S)
            assert again.scores() == a.scores() == [-1] * 100


async def test_a_run_that_begins_while_a_proxy_starts_begins_at_that_proxy(server):
    """The proxy takes the snapshot, which knows only the earlier run, after the run has begun."""
    async with Sharing(FakeLog(server), "a") as a:
        for rank in (0, 1):
            await a.register(begins=rank)
        await a.make(FreezeScores("j", 0, column(1), None))
        await a.write_snapshot()
        b = Sharing(CutLog(server), "b", boot=2)
        b.restore()
        b.log.is_cut = True
        async with b.starting():
            await b.make(PutJob("j", "train", 2, 1.0, 3600.0, begins=0))
            await connected(b)
            await until(lambda: a.hints.jobs.get("j").begun == {0})
            assert b.hints.jobs.get("j").begun == {0}
            for one in (a, b):
                assert (await one.make(FreezeScores("j", 0, column(2), None))).column[0] == 2


async def test_scores_that_come_while_a_proxy_starts_are_newer_than_those_of_the_snapshot(server):
    async with Sharing(FakeLog(server), "a") as a:
        await a.register()
        await a.score([1], [0.5])
        await a.write_snapshot()
        b = Sharing(CutLog(server), "b", boot=2)
        b.restore()
        b.log.is_cut = True
        async with b.starting():
            await b.score([1], [0.25])
            b.log.is_cut = False
            await until(lambda: b.replication._joined)
            assert b.scores()[1] == 0.25


async def test_an_order_that_was_withdrawn_while_a_proxy_was_stopped_does_not_come_back(server):
    async with Sharing(FakeLog(server), "a") as a:
        async with Sharing(FakeLog(server), "b") as b:
            await a.register()
            await a.announce([1, 2, 3])
            await until(b.order)
            reached = b.replication.reached
        await a.make(WithdrawOrder("j", 0, None))
        await a.write_snapshot()
        again = Sharing(FakeLog(server), "b", boot=2, reached=reached)
        again.restore()
        again.hints.orders.put(again.hints.check_order("j", [1, 2, 3], epoch=0, rank=0), 0.0)
        async with again:
            await asyncio.sleep(2 * FLUSH_S)
            assert again.order() is None


async def test_a_purge_is_made_once_although_the_log_fails_afterwards(server, monkeypatch):
    async with Sharing(FakeLog(server), "a") as a:
        async with Sharing(FakeLog(server), "b") as b:
            await a.register()
            await until(b.knows)
            reached = b.replication.reached
        await (await a.replication.begin_place(PlaceEvent("purge", "data", "x/", "")))
        await a.write_snapshot()
        failures = []

        async def failing(self, snapshot, *, joins):
            if joins and len(failures) < 2:
                failures.append(snapshot)
                raise ClusterUnavailable("no answer in time")
            await merge(self, snapshot, joins=joins)

        merge = SnapshotKeeper._merge
        monkeypatch.setattr(SnapshotKeeper, "_merge", failing)
        async with Sharing(FakeLog(server), "b", boot=2, reached=reached) as b:
            assert b.knows()
            assert b.places == [("purge", "data", "x/")]
        assert failures


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_what_a_new_run_tells_a_starting_proxy_counts_after_the_deletion_of_an_earlier_job(
    server, is_deleted
):
    async with Sharing(FakeLog(server), "a") as a:
        async with Sharing(FakeLog(server), "b") as b:
            await a.register(begins=0)
            await until(b.knows)
            reached = b.replication.reached
        if is_deleted:
            await a.make(DeleteJob("j"))
        await a.write_snapshot()
        b = Sharing(CutLog(server), "b", boot=2, reached=reached)
        b.restore()
        b.log.is_cut = True
        async with b.starting():
            await b.register(begins=0)
            await b.announce([1, 2, 3])
            await b.score([1], [0.5])
            await connected(b)
            for one in (a, b):
                assert one.order() == [1, 2, 3]
                assert one.scores()[1] == 0.5
                assert one.hints.jobs.get("j").begun == {0}


async def test_a_prefix_that_was_unpinned_while_a_proxy_was_stopped_does_not_stay_pinned(server):
    async with Sharing(FakeLog(server), "a") as a:
        async with Sharing(FakeLog(server), "b") as b:
            await a.register()
            await until(b.knows)
            reached = b.replication.reached
        await (await a.replication.begin_place(PlaceEvent("unpin", "data", "x/", "")))
        await a.write_snapshot()
        async with Sharing(FakeLog(server), "b", boot=2, reached=reached) as b:
            await until(lambda: b.places == [("unpin", "data", "x/")])
