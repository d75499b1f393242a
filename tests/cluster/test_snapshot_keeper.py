"""The snapshot in the log has the hints of all proxies, whichever proxy writes it."""

import asyncio
import time

import numpy as np
import pytest

from shadeproxy.cluster import events, snapshot, snapshot_keeper
from shadeproxy.cluster.events import ScoresEvent
from shadeproxy.cluster.log import STREAM
from shadeproxy.core.errors import ClusterUnavailable
from shadeproxy.hints.changes import DeleteJob, EndRank, FreezeScores, PutJob, WithdrawOrder
from tests.support.cluster_log import FakeLog, Server
from tests.support.sharing import Sharing, dataset, until


@pytest.fixture
def server():
    return Server()


async def test_a_proxy_without_state_that_joins_an_empty_log_first_gets_the_hints_of_the_others(server):
    """A proxy without state that is the first to join an empty log gets the hints of the others. Its empty
    snapshot is the first one in the log. Another proxy then writes a snapshot with its own hints.
    """
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
    """A proxy gives its hints back to an empty log although the log fails meanwhile. The write of its second
    snapshot, which has all hints, fails at first, or its answer is lost.
    """
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
    """Proxies that put their hints into an empty log at the same time lose none. Only one of their snapshots
    can replace the first one. All other proxies must write again.
    """
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


async def test_a_log_that_lost_its_data_gets_long_hints_again(server, monkeypatch):
    """A log that lost its data gets long hints again. A snapshot refers to long content that the log has.
    After the loss the log has none, so the snapshot must bring the content too.
    """
    monkeypatch.setattr(events, "INLINE_BYTES", 64)
    async with Sharing(FakeLog(server), "b") as b:
        await b.register()
        await b.keeper._write((await b.log.names())["snapshot"])
        server.up = False
        await until(lambda: b.replication.cut_off)
        server.lose()
        server.up = True
        await until(lambda: not b.replication.cut_off and server.claims)
        async with Sharing(FakeLog(server), "a") as a:
            await until(a.knows)
            assert "train" in a.hints.datasets


@pytest.fixture
async def without_blobs(server, monkeypatch):
    """Yield the log of a stopped cluster, whose blobs have expired. The yielded value is the position that
    the proxy had reached.
    """
    monkeypatch.setattr(events, "INLINE_BYTES", 64)
    async with Sharing(FakeLog(server), "a") as a:
        await a.register("gone")
        await a.make(DeleteJob("gone"))
        await a.keeper._write((await a.log.names())["snapshot"])
        reached = a.replication.reached
        await a.make(PutJob("later", "train", 2, 1.0, 3600.0))
    server.blobs.clear()
    return reached


async def test_a_cluster_whose_blobs_expired_while_it_was_stopped_shares_the_hints_of_its_proxies(
    server, without_blobs
):
    async with asyncio.timeout(20):
        a = Sharing(FakeLog(server), "a", boot=2, reached=without_blobs)
        a.restore()
        async with a, Sharing(FakeLog(server), "b") as b:
            assert not a.replication.refusal
            await until(lambda: a.knows("later"))
            assert "train" in a.hints.datasets
            for job in ("j", "later"):
                await until(lambda job=job: b.knows(job))
            assert not a.knows("gone")
            await b.score([1], [2.0])
            await until(lambda: a.scores()[1] == 2.0)


async def test_a_proxy_without_state_that_finds_no_blobs_gets_the_hints_of_a_proxy_that_runs(
    server, monkeypatch
):
    monkeypatch.setattr(events, "INLINE_BYTES", 64)
    monkeypatch.setattr(snapshot_keeper, "_LOOK_S", 0.1)
    async with Sharing(FakeLog(server), "b") as b:
        await b.register()
        await b.keeper._write((await b.log.names())["snapshot"])
        server.blobs.clear()
        async with Sharing(FakeLog(server), "a") as a:
            assert not a.replication.refusal
            await until(a.knows)
            assert b.knows()


async def test_a_proxy_that_finds_the_blobs_of_anothers_snapshot_gone_writes_its_own(server, monkeypatch):
    monkeypatch.setattr(events, "INLINE_BYTES", 64)
    async with Sharing(FakeLog(server), "b") as b:
        await b.register()
        b.keeper._sealed = b""
        await b.keeper._write((await b.log.names())["snapshot"])
        b.keeper._sealed = b""
        server.blobs.clear()
        lost = (await b.log.names())["snapshot"]
        await b.keeper.step()
        assert (await b.log.names())["snapshot"] == lost, "it has just seen one, so it waits"
        b.keeper._every_s = 0.0
        await b.keeper.step()
        await b.snapshots.read((await b.log.names())["snapshot"])


async def test_hints_that_the_log_dropped_are_stored_again_for_a_proxy_that_joins(server, monkeypatch):
    """The list of hints is short, so it stays in the log's name, but the blobs of a long dataset are gone."""
    monkeypatch.setattr(snapshot_keeper, "_LOOK_S", 0.1)
    async with Sharing(FakeLog(server), "b") as b:
        await b.register(count=20_000)
        await b.keeper._write((await b.log.names())["snapshot"])
        b.keeper._every_s = 0.5
        server.blobs.clear()
        async with Sharing(FakeLog(server), "a") as a:
            assert not a.knows()
            a.keeper._every_s = 0.1
            await until(a.knows, 15.0)
            assert a.hints.datasets["train"].digest == b.hints.datasets["train"].digest
            assert not a.keeper._lacks
            async with Sharing(FakeLog(server), "c") as c:
                await until(c.knows)
        assert b.knows()


async def test_a_proxy_whose_blobs_are_dropped_at_once_says_so(server, monkeypatch):
    monkeypatch.setattr(events, "INLINE_BYTES", 0)

    async def dropping(self, digest, data, keep_s):
        pass

    monkeypatch.setattr(FakeLog, "put_blob", dropping)
    async with Sharing(FakeLog(server), "a") as a:
        assert a.replication.refusal == (
            "the cluster's engine dropped a blob: set its maxmemory-policy to noeviction"
        )


@pytest.fixture
async def lacking(server, monkeypatch):
    """Yield two proxies. The first one lacks a job, and would be the first to write a snapshot. The second
    one has all hints.
    """
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
    """A snapshot from before the missed event does not help the proxy. The writer of this snapshot had not
    seen that event either.
    """
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
    """A proxy does not wait for scores of a deleted job. The other proxies may have stopped reading the job's
    scores before these came. So no snapshot contains them.
    """
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


@pytest.fixture
async def pair(server):
    async with Sharing(FakeLog(server), "a") as a, Sharing(FakeLog(server), "b") as b:
        await a.register()
        await until(b.knows)
        yield a, b


async def write_snapshot(one):
    sealed = (await one.log.names())["snapshot"]
    assert (await one.keeper._write(sealed)).is_own


async def merged(one):
    """Let the proxy ``one`` merge the present snapshot."""
    one.keeper.merge_soon()
    await one.keeper.step()


@pytest.mark.parametrize("change", [WithdrawOrder("j", 0, None), WithdrawOrder("j", 0, 1), EndRank("j", 1)])
async def test_an_order_that_was_withdrawn_after_the_snapshot_does_not_come_back(pair, change):
    a, b = pair
    await a.announce(range(100), rank=1)
    await until(lambda: b.order(1))
    await write_snapshot(a)
    await a.make(change)
    await until(lambda: b.order(1) is None)
    await merged(b)
    assert b.order(1) is None


async def test_other_orders_are_taken_from_a_snapshot_before_the_withdrawal(pair):
    a, b = pair
    for rank in (0, 1):
        await a.announce(range(100), rank=rank)
        await until(lambda rank=rank: b.order(rank))
    await write_snapshot(a)
    await a.make(WithdrawOrder("j", 0, 1))
    await until(lambda: b.order(1) is None)
    b.hints.orders.withdraw("j", 0, 0, 0.0)  # Act as if b had missed the event of this order.
    await merged(b)
    assert b.order(0)


async def freeze(one, *epochs):
    for epoch in epochs:
        await one.make(FreezeScores("j", epoch, np.full(100, epoch, np.float32), None))


async def test_an_older_frozen_column_does_not_take_the_place_of_a_newer_one(pair):
    a, b = pair
    await freeze(a, 4, 5)
    await write_snapshot(a)
    await freeze(a, 6)
    await until(lambda: b.hints.frozen.get("j", 6))
    await merged(b)
    assert b.hints.frozen.names() == [("j", 5), ("j", 6)]


async def test_a_frozen_column_of_an_earlier_run_does_not_come_back(pair):
    a, b = pair
    await a.make(PutJob("j", "train", 2, 1.0, 3600.0, begins=0))
    await freeze(a, 0)
    await until(lambda: b.hints.frozen.get("j", 0))
    await write_snapshot(a)
    await a.make(PutJob("j", "train", 2, 1.0, 3600.0, begins=0))
    await until(lambda: not b.hints.frozen.names())
    await merged(b)
    assert not b.hints.frozen.names()


async def test_hints_of_a_job_do_not_come_back_after_it_was_registered_again(pair):
    a, b = pair
    await a.score([1], [0.5])
    await a.announce(range(100))
    await until(lambda: b.order() and b.scores()[1] == 0.5)
    await write_snapshot(a)
    await a.make(DeleteJob("j"))
    await a.register()
    await until(lambda: b.knows() and b.order() is None)
    await merged(b)
    assert b.order() is None
    assert b.scores()[1] == -1


async def test_a_missed_frozen_column_is_taken_from_a_later_snapshot(pair):
    a, b = pair
    await freeze(a, 4, 5)
    await until(lambda: b.hints.frozen.get("j", 5))
    b.hints.frozen.forget("j")
    await write_snapshot(a)
    await merged(b)
    assert b.hints.frozen.names() == [("j", 4), ("j", 5)]


async def test_a_snapshot_is_stored_again_before_the_log_drops_its_blobs(server, monkeypatch):
    """A snapshot is stored again before the log drops its blobs, even if nothing has changed. A proxy that
    joins after a quiet weekend must get the hints.
    """
    monkeypatch.setattr(snapshot_keeper, "_LOOK_S", 0.1)
    async with Sharing(FakeLog(server), "a") as a:
        await a.register(count=20_000)
        a.keeper._every_s = 0.2
        await until(lambda: a.keeper.followed.after == a.keeper._at)
        monkeypatch.setattr(snapshot_keeper, "KEPT_S", 0.5)
        monkeypatch.setattr(snapshot, "KEPT_S", 0.5)
        server.blobs.clear()
        await until(lambda: server.blobs)
        async with Sharing(FakeLog(server), "b") as b:
            assert b.knows()


async def test_positions_in_a_log_that_was_lost_do_not_count_in_the_new_one(server, monkeypatch):
    """A proxy that still applies events of a log when it learns that the log was lost reads all events of the
    new log, whose positions may be smaller.
    """
    monkeypatch.setattr(snapshot_keeper, "_LOOK_S", 0.05)
    async with Sharing(FakeLog(server), "a") as a, Sharing(FakeLog(server), "b") as b:
        await a.register()
        await until(b.knows)
        for number in range(4):
            await a.score([number], [1.0])
            await a.replication._flush_now()
        await until(lambda: b.scores()[3] == 1)
        before, reached = b.keeper.followed.after, asyncio.Event()
        take = b.replication._take

        async def slowly(entry, **options):
            if entry.stream != STREAM and b.keeper.followed.after is before:
                reached.set()
                await until(lambda: b.keeper.followed.after is not before)
            await take(entry, **options)

        monkeypatch.setattr(b.replication, "_take", slowly)
        await a.score([4], [1.0])
        await a.replication._flush_now()
        await reached.wait()
        server.lose()
        await until(lambda: b.scores()[4] == 1)
        await a.score([0, 1], [2.0, 3.0])
        await a.replication._flush_now()
        await until(lambda: b.scores()[:2] == [2, 3])
