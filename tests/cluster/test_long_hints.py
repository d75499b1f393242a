"""Hints of real length, which go through blobs of the log: a manifest, orders and scores of 70,000
samples.
"""

import asyncio
import itertools
from functools import cache

import numpy as np
import pytest

from shadeproxy.cluster import snapshot_keeper
from shadeproxy.cluster.events import INLINE_BYTES, Content, OrderEvent, PlaceEvent, pack_dataset
from shadeproxy.cluster.log import BLOB_BYTES, digest_of
from shadeproxy.core.errors import ClusterUnavailable
from shadeproxy.hints.changes import (
    Announce,
    FreezeScores,
    PutDataset,
    PutJob,
    PutScores,
    ReportProgress,
    WithdrawOrder,
)
from shadeproxy.hints.jobs import Progress
from shadeproxy.hints.scoreboard import ScoreColumn
from tests.support.cluster_log import FakeLog, Server
from tests.support.cluster_logs import FakeCluster, RedisCluster
from tests.support.redis_server import redis_server
from tests.support.sharing import Sharing, dataset, until

COUNT = 70_000


@pytest.fixture
def server():
    return Server()


class Logs:
    """The clients of one log, which are closed at the end of a test."""

    def __init__(self, cluster):
        self._cluster, self._opened, self.lose = cluster, [], cluster.lose

    def connect(self):
        self._opened.append(self._cluster.connect())
        return self._opened[-1]

    async def close(self):
        for one in self._opened:
            await one.close()


@pytest.fixture(params=["fake", "redis"])
async def log(request):
    fake = request.param == "fake"
    logs = Logs(FakeCluster() if fake else RedisCluster(request.getfixturevalue("redis")))
    yield logs
    await logs.close()


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch):
    monkeypatch.setattr(snapshot_keeper, "_LOOK_S", 0.1)


@cache
def manifest():
    return dataset(count=COUNT)


@cache
def order_of(epoch, rank=0):
    return np.random.default_rng((epoch, rank)).permutation(COUNT)


@cache
def scores_of(epoch):
    return np.random.default_rng(epoch).random(COUNT, np.float32)


async def register(one):
    await one.make(PutDataset(manifest()))
    await one.make(PutJob("j", "train", 2, 1.0, 3600.0))


async def announce(one, epoch, rank):
    await one.make(Announce(one.hints.check_order("j", order_of(epoch, rank), epoch=epoch, rank=rank)))


async def train(one, epoch):
    """Send the long hints of one epoch."""
    for rank in (0, 1):
        await announce(one, epoch, rank)
    await one.score(np.arange(COUNT), scores_of(epoch))
    await one.make(FreezeScores("j", epoch, scores_of(epoch), None))


def has(one, *epochs):
    """Return whether a proxy has all long hints of these epochs. Of scores, the last epoch's count."""
    frozen = {epoch: one.hints.frozen.get("j", epoch) for epoch in epochs[-2:]}
    return (
        one.knows()
        and one.hints.datasets["train"].digest == manifest().digest
        and np.array_equal(one.hints.scores("j"), scores_of(epochs[-1]))
        and all(
            column and np.array_equal(column.column, scores_of(epoch)) for epoch, column in frozen.items()
        )
        and all(
            np.array_equal(one.hints.orders.announced.ids("j", epoch, rank), order_of(epoch, rank))
            for epoch in epochs
            for rank in (0, 1)
        )
    )


async def test_these_hints_are_long():
    assert len(pack_dataset(manifest())) > 256 * 1024
    assert order_of(0).astype("<u4").nbytes > 256 * 1024
    assert scores_of(0).nbytes > 16 * INLINE_BYTES


async def test_long_hints_come_to_the_others_and_to_one_that_joins(log):
    async with Sharing(log.connect(), "a") as a, Sharing(log.connect(), "b") as b:
        await register(a)
        await until(b.knows)
        await train(a, 0)
        await until(lambda: has(b, 0))
        await train(b, 1)
        await until(lambda: has(a, 0, 1))
        await a.make(WithdrawOrder("j", 0, None))
        await until(lambda: b.order() is None)
        assert a.counters.refused == b.counters.refused == {}
        async with Sharing(log.connect(), "c") as c:
            await until(lambda: has(c, 1))
            assert c.order() is None


async def test_a_log_that_lost_its_data_gets_all_long_hints_again(log):
    async with Sharing(log.connect(), "a") as a, Sharing(log.connect(), "b") as b:
        await register(a)
        await until(b.knows)
        await train(a, 0)
        await until(lambda: has(b, 0))
        named = (await a.log.names())["snapshot"]
        log.lose()
        await train(b, 1)
        await until(lambda: has(a, 1))
        while (await a.log.names()).get("snapshot", named) == named:
            await until(lambda: True)
        async with Sharing(log.connect(), "c") as c:
            for one in (c, a, b):
                await until(lambda one=one: has(one, 0, 1))


async def test_a_proxy_that_restarts_with_older_hints_takes_the_present_ones(log):
    async with Sharing(log.connect(), "a") as a:
        async with Sharing(log.connect(), "b") as b:
            await register(a)
            await train(a, 0)
            await until(lambda: has(b, 0))
        await train(a, 1)
        await a.keeper._write((await a.log.names())["snapshot"])
        await train(a, 2)
        await a.replication._flush_now()
        again = Sharing(log.connect(), "b", boot=2)
        again.hints.put_dataset(manifest())
        PutJob("j", "train", 2, 1.0, 3600.0).apply(again.hints, 0.0)
        async with again:
            await until(lambda: has(again, 0, 1, 2))


async def test_long_hints_of_a_long_outage_are_published_when_the_log_is_back(server):
    async with Sharing(FakeLog(server), "a") as a, Sharing(FakeLog(server), "b") as b:
        await register(a)
        await until(b.knows)
        server.up = False
        await until(lambda: a.replication.cut_off and b.replication.cut_off)
        for epoch in range(4):
            await train(a, epoch)
        await announce(b, 9, 0)
        assert not a.replication.backlog.dropped
        server.lose()
        server.up = True
        await until(lambda: has(b, 0, 1, 2, 3), 20.0)
        await until(lambda: a.order(epoch=9))
        async with Sharing(FakeLog(server), "c") as c:
            await until(lambda: has(c, 0, 1, 2, 3))


async def test_a_full_engine_gets_the_long_hints_when_it_has_memory_again(tmp_path):
    with redis_server(tmp_path, "--maxmemory", "6mb", "--maxmemory-policy", "noeviction") as redis:
        log = Logs(RedisCluster(redis))
        async with Sharing(log.connect(), "a") as a, Sharing(log.connect(), "b") as b:
            await register(a)
            await until(b.knows)
            for epoch in range(12):
                await announce(a, epoch, 0)
                await announce(a, epoch, 1)
            await until(lambda: "maxmemory" in a.replication.sending_problem)
            redis.command("CONFIG SET maxmemory 0")
            await until(lambda: not a.replication.sending_problem and not len(a.replication.backlog), 20.0)
            await train(a, 12)
            await until(lambda: has(b, 12))
            assert all(b.order(rank, epoch=epoch) for epoch in range(12) for rank in (0, 1))
        await log.close()


async def test_an_order_whose_blobs_are_lost_before_its_event_comes_with_the_next_snapshot(
    server, monkeypatch
):
    """The log loses its data after it has taken the blobs of an order, and before it takes the event."""
    async with Sharing(FakeLog(server), "a") as a, Sharing(FakeLog(server), "b") as b:
        for one in (a, b):
            one.keeper._every_s = 0.5
        await register(a)
        await train(a, 0)
        await until(lambda: has(b, 0))
        append, lost = FakeLog.append, []

        async def losing(self, stream, body):
            if stream == "k" and not lost:
                lost.append(server.lose())
                server._positions = itertools.count(1_000)  # The positions of a Redis are times.
            return await append(self, stream, body)

        monkeypatch.setattr(FakeLog, "append", losing)
        await train(a, 1)
        assert lost
        await until(lambda: has(b, 0, 1), 15.0)


async def test_pins_and_purges_keep_their_place_beside_long_orders(log):
    async with Sharing(log.connect(), "a") as a, Sharing(log.connect(), "b") as b:
        await register(a)
        await train(a, 0)
        for verb in ("pin", "purge"):
            await (await a.replication.begin_place(PlaceEvent(verb, "data", "x/", "")))
        await train(a, 1)
        await until(lambda: has(b, 0, 1))
        assert a.places == b.places == [("pin", "data", "x/"), ("purge", "data", "x/")]


async def test_a_proxy_that_joins_gets_scores_of_a_proxy_that_has_restarted_since(server):
    """The joining proxy reads one stream after the other: first the changes after the restart, then the
    scores before it.
    """
    async with Sharing(FakeLog(server), "a") as a:
        async with Sharing(FakeLog(server), "b") as b:
            await register(a)
            await until(b.knows)
            await a.keeper._write((await a.log.names())["snapshot"])
            await b.score(np.arange(COUNT), scores_of(0))
        async with Sharing(FakeLog(server), "b", boot=2) as b:
            await b.make(PutJob("k", "train", 1, 1.0, 60.0))
            async with Sharing(FakeLog(server), "c") as c:
                await until(lambda: c.knows("k") and np.array_equal(c.hints.scores("j"), scores_of(0)))


async def test_an_order_that_later_events_overtook_comes_to_a_proxy_that_joins(server, monkeypatch):
    """A proxy writes a snapshot while another one stores the blobs of an order. The event of the order comes
    after it, and after events with greater numbers.
    """
    async with Sharing(FakeLog(server), "a") as a, Sharing(FakeLog(server), "b") as b:
        await register(a)
        await until(b.knows)
        put, joined = FakeLog.put_blob, []

        async def slowly(self, *blob):
            await put(self, *blob)
            if self is a.log and not joined:
                published = a.counters.published
                await a.replication._append(
                    "k", a.replication.backlog.take_signs(), a.replication.backlog.number()
                )
                assert a.counters.published > published
                await until(lambda: b.hints.jobs.get("j").progress)
                await b.keeper._write((await b.log.names())["snapshot"])
                joined.append(Sharing(FakeLog(server), "c"))
                await joined[0].__aenter__()

        monkeypatch.setattr(FakeLog, "put_blob", slowly)
        await a.make(ReportProgress("j", 0, Progress(0, 5)))
        await announce(a, 0, 0)
        await until(lambda: b.order() is not None)
        async with joined[0] as c:
            await until(lambda: c.order() is not None)


async def test_the_log_does_not_grow_while_scores_and_orders_change(server):
    """The log holds the hints that count, and for a while those that no longer count. With a day of old
    scores and orders, it would need gigabytes.
    """
    async with Sharing(FakeLog(server), "a") as a, Sharing(FakeLog(server), "b") as b:
        await register(a)
        await until(b.knows)
        sizes = []
        for epoch in range(6):
            writer, other = (a, b) if epoch % 2 else (b, a)
            await train(writer, epoch)
            await until(lambda epoch=epoch, other=other: has(other, epoch))
            if epoch:
                await writer.make(WithdrawOrder("j", epoch - 1, None))
            await until(lambda epoch=epoch, other=other: not other.order(epoch=epoch - 1))
            await other.keeper.step()  # It reads the snapshot that it replaces.
            await other.keeper._write((await other.log.names())["snapshot"])
            server.expire()
            sizes.append(sum(map(len, server.blobs.values())))
        assert sizes[-1] < 1.2 * sizes[1], sizes
        async with Sharing(FakeLog(server), "c") as c:
            await until(lambda: has(c, 5))
            assert c.hints.frozen.names() == [("j", 4), ("j", 5)]


async def test_blobs_of_a_snapshot_that_was_not_named_are_dropped_too(server, monkeypatch):
    """Two proxies write a snapshot at once. Only one gets the name."""
    async with Sharing(FakeLog(server), "a") as a, Sharing(FakeLog(server), "b") as b:
        await register(a)
        await until(b.knows)
        await until(lambda: "snapshot" in server.claims)
        await b.score(np.arange(COUNT), scores_of(0))
        claim = FakeLog.claim

        async def refused(self, *_arguments, **_options):
            raise ClusterUnavailable("no answer in time")

        monkeypatch.setattr(FakeLog, "claim", refused)
        with pytest.raises(ClusterUnavailable):
            await b.keeper._write(server.claims["snapshot"])
        monkeypatch.setattr(FakeLog, "claim", claim)
        before = sum(map(len, server.blobs.values()))
        await a.keeper.step()
        await until(lambda: np.array_equal(a.hints.scores("j"), scores_of(0)))
        await a.score(np.arange(COUNT), scores_of(1))
        await until(lambda: np.array_equal(b.hints.scores("j"), scores_of(1)))
        await a.keeper._write(server.claims["snapshot"])
        await b.keeper.step()
        server.expire()
        positions = 100  # The position of the latest scores is stored with them.
        assert sum(map(len, server.blobs.values())) <= before + positions


async def test_a_proxy_that_joins_takes_long_columns_of_scores_in_pieces(server, monkeypatch):
    """To take all scores of a long dataset at once would hold up the event loop."""
    async with Sharing(FakeLog(server), "a") as a:
        await register(a)
        await a.score(np.arange(COUNT), scores_of(0))
        await a.replication._flush_now()
        await a.keeper._write((await a.log.names())["snapshot"])
        for stream in list(server.streams):
            del server.streams[stream]
        taken, write = [], ScoreColumn.set

        def counting(column, ids, scores):
            taken.append(len(ids))
            write(column, ids, scores)

        monkeypatch.setattr(ScoreColumn, "set", counting)
        async with Sharing(FakeLog(server), "b") as b:
            assert np.array_equal(b.hints.scores("j"), scores_of(0))
        assert max(taken) <= 1 << 16
        assert sum(taken) == COUNT


@pytest.mark.parametrize(
    ("size_bytes", "pieces"),
    [(4, 4_000), (1 << 40, 1), (1 << 62, 1 << 12), (4, 0), (BLOB_BYTES, 1)],
    ids=["many blobs", "too long for its blob", "gigantic", "not there", "longer than its blob"],
)
async def test_content_of_an_impossible_size_is_refused_and_costs_nothing(
    server, monkeypatch, size_bytes, pieces
):
    """A proxy of the cluster is wrong, or knows the secret and lies."""
    read = []

    async def counting(self, digest):
        read.append(digest)
        return self.server.blobs.get(digest)

    async with Sharing(FakeLog(server), "a") as a, Sharing(FakeLog(server), "b") as b:
        await register(a)
        await until(b.knows)
        await a.log.put_blob(digest_of(b"1234"), b"1234")
        monkeypatch.setattr(FakeLog, "get_blob", counting)
        content = Content(size_bytes, pieces=(digest_of(b"1234"),) * pieces)
        event = OrderEvent("j", 0, 0, 0, manifest().digest, content)
        await a.replication._append("k", event, a.replication.backlog.number())
        await until(lambda: b.counters.refused == {"content": 1})
        assert len(read) <= 2, "one by each proxy"
        assert b.order() is None
        monkeypatch.undo()
        await train(a, 1)
        await until(lambda: has(b, 1))


async def test_between_two_long_events_of_scores_other_tasks_have_their_turn(server, monkeypatch):
    """A proxy that was away reads many long events at once. Reads of objects must not wait for all of
    them.
    """
    async with Sharing(FakeLog(server), "a") as a, Sharing(FakeLog(server), "b") as b:
        await register(a)
        await until(b.knows)
        turns, at_turn, write = [0], [], ScoreColumn.set

        async def count_turns():
            while True:
                turns[0] += 1
                await asyncio.sleep(0)

        def noting(column, ids, scores):
            if column is b.hints.scoreboard["j"]:
                at_turn.append(turns[0])
            write(column, ids, scores)

        for score in (1.0, 2.0, 3.0):
            a.replication.backlog.add_scores(
                PutScores("j", a.hints.check_by_ids("j", np.arange(COUNT), np.full(COUNT, score, np.float32)))
            )
            for event in a.replication.backlog.take_scores():
                await a.replication._append(event.stream, event, a.replication.backlog.number())
        monkeypatch.setattr(ScoreColumn, "set", noting)
        other = asyncio.create_task(count_turns())
        await until(lambda: len(b.hints.scoreboard) and b.scores() == [3.0] * COUNT)
        other.cancel()
        assert len(at_turn) >= 3
        assert len(set(at_turn)) == len(at_turn)
