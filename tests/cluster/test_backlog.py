"""Changes that wait for the log. No change is answered twice, and no change of a deleted job is sent."""

import asyncio
import time

import numpy as np
import pytest

from shadeproxy.cluster import backlog as module
from shadeproxy.cluster.backlog import Backlog
from shadeproxy.cluster.events import INLINE_BYTES, OrderEvent, Packed, content_of
from shadeproxy.cluster.replication import FLUSH_S
from shadeproxy.core.errors import ClusterUnavailable
from shadeproxy.hints.changes import DeleteJob, FreezeScores, PutJob, PutScores
from shadeproxy.hints.registry import HintRegistry
from tests.support.cluster_log import CutLog, FakeLog, Server
from tests.support.sharing import Sharing, connected, dataset, until


@pytest.fixture
def server():
    return Server()


async def test_a_change_that_finds_no_room_in_the_backlog_is_made_alone(server):
    """A change for which the backlog has no room is made at this proxy alone. Its call is answered when the
    change is dropped, and must not be answered a second time when the proxy is cut off.
    """
    async with Sharing(FakeLog(server), "a") as a:
        await a.register(count=20_000)
        a.replication.backlog._most_bytes = 50_000
        server.up = False
        await until(lambda: a.replication.cut_off)
        await a.announce(np.arange(20_000))
        assert len(a.order()) == 20_000
        assert a.replication.backlog.dropped == 1


@pytest.fixture
def packed():
    content, blobs = content_of(bytes(INLINE_BYTES + 1))
    return Packed(OrderEvent("j", 0, 0, 0, "d", content), blobs)


async def test_nothing_is_to_be_sent_after_the_last_unsent_change_was_dropped(packed):
    backlog = Backlog(most_bytes=1024)
    backlog.add(None, packed)
    assert backlog.dropped == 1
    assert not backlog.filled.is_set()


async def test_nothing_is_to_be_sent_after_the_last_unsent_change_came_back(packed):
    """Nothing is left to send once the last unsent change has come back from the log. The log had accepted
    it, but the answer was late, so the change was queued again.
    """
    backlog = Backlog()
    first, second = backlog.add(None, packed), backlog.add(None, packed)
    backlog.came_back(first)
    assert backlog.filled.is_set()
    backlog.came_back(second)
    assert not backlog.filled.is_set()


def ones(count=20_000):
    return np.ones(count, np.float32)


@pytest.mark.parametrize("is_up", [True, False])
async def test_ranks_draw_alike_from_a_column_for_which_the_backlog_has_no_room(server, is_up):
    async with Sharing(FakeLog(server), "a") as a, Sharing(FakeLog(server), "b") as b:
        await a.register(count=20_000)
        await until(b.knows)
        a.replication.backlog._most_bytes = 1024
        server.up = is_up
        await until(lambda: a.replication.cut_off is not is_up)
        first = await a.make(FreezeScores("j", 3, ones(), None))
        server.up = True
        await until(lambda: not len(a.replication.backlog))
        await until(lambda: b.hints.frozen.get("j", 3) or is_up)
        second = await b.make(FreezeScores("j", 3, 2 * ones(), None))
    assert first.column.tolist() == second.column.tolist() == ones().tolist()
    assert a.replication.backlog.dropped == 0


async def test_of_frozen_columns_only_those_wait_from_which_ranks_may_still_draw(server):
    async with Sharing(FakeLog(server), "a") as a:
        await a.register(count=20_000)
        backlog = a.replication.backlog
        backlog._most_bytes = 1024
        server.up = False
        await until(lambda: a.replication.cut_off)
        for epoch in range(5):
            await a.make(FreezeScores("j", epoch, ones(), None))
        await a.score([1], [0.5])
        assert [one.packed.event.epoch for one in backlog._all()] == [3, 4]
        assert a.hints.frozen.names() == [("j", 3), ("j", 4)]
        assert backlog.dropped == 3, "the waiting scores still have room"


@pytest.mark.parametrize("end", ["deleted", "silent for long"])
async def test_waiting_scores_of_a_job_that_is_gone_are_not_sent(server, end):
    async with Sharing(FakeLog(server), "a") as a, Sharing(FakeLog(server), "b") as b:
        await a.register()
        await until(b.knows)
        await a.score([1], [0.5])
        if end == "deleted":
            await a.make(DeleteJob("j"))
        else:
            a.hints.expire(time.time() + 1e9)
        await asyncio.sleep(3 * FLUSH_S)
        assert not a.knows()
        assert "s:j" not in server.streams
        assert not b.counters.refused


async def test_waiting_scores_of_a_job_that_is_gone_are_not_put_back(server, monkeypatch):
    async with Sharing(FakeLog(server), "a") as a:
        await a.register()
        await a.score([1], [0.5])

        async def failing(*_arguments):
            DeleteJob("j").apply(a.hints, 0.0)
            raise ClusterUnavailable("no answer in time")

        monkeypatch.setattr(a.log, "append", failing)
        await until(lambda: not a.knows())
        await asyncio.sleep(0)
        assert a.replication.backlog.size_bytes == 0


async def test_waiting_frozen_columns_of_a_job_that_is_gone_are_dropped(server):
    async with Sharing(FakeLog(server), "a") as a:
        await a.register(count=20_000)
        server.up = False
        await until(lambda: a.replication.cut_off)
        await a.make(FreezeScores("j", 0, ones(), None))
        assert a.replication.backlog.size_bytes > 80_000
        await a.make(DeleteJob("j"))
        assert len(a.replication.backlog) == 1, "the deletion itself"


async def test_what_a_job_got_after_its_deletion_is_sent(server):
    """Changes that a job gets after its deletion are sent. A proxy that is cut off makes the deletion at
    once. It makes it again when the deletion's event comes back.
    """
    async with Sharing(FakeLog(server), "a") as a, Sharing(FakeLog(server), "b") as b:
        await a.register(count=20_000)
        await until(b.knows)
        server.up = False
        await until(lambda: a.replication.cut_off)
        await a.make(DeleteJob("j"))
        await a.make(PutJob("j", "train", 2, 1.0, 3600.0))
        await a.make(FreezeScores("j", 0, ones(), None))
        await a.score([1], [0.5])
        server.up = True
        for one in (a, b):
            await until(lambda one=one: one.knows() and one.scores()[1] == 0.5)
            await until(lambda one=one: one.hints.frozen.get("j", 0))


async def test_a_run_that_began_at_a_cut_off_proxy_counts_although_its_job_was_deleted_elsewhere(server):
    async with Sharing(CutLog(server), "a") as a, Sharing(FakeLog(server), "b") as b:
        for rank in (0, 1):
            await b.register(begins=rank)
        await until(a.knows)
        a.log.is_cut = True
        await until(lambda: a.replication.cut_off)
        await a.register(begins=0)
        await a.score([1], [0.5])
        await b.make(DeleteJob("j"))
        await connected(a)
        for one in (a, b):
            assert one.hints.jobs.get("j").begun == {0}
            assert one.scores()[1] == 0.5


async def test_of_the_frozen_columns_of_one_epoch_only_the_first_waits(server):
    """The backlog keeps only the first column that ranks freeze for one epoch. All ranks of a proxy ask at
    the same moment, and each call brings a column.
    """
    async with Sharing(FakeLog(server), "a") as a, Sharing(FakeLog(server), "b") as b:
        await a.register(count=20_000)
        await until(b.knows)
        backlog = a.replication.backlog
        backlog._most_bytes = 100_000
        server.up = False
        await until(lambda: a.replication.cut_off)
        calls = (a.make(FreezeScores("j", 3, number * ones(), None)) for number in range(1, 33))
        found = await asyncio.gather(*calls)
        assert backlog.size_bytes < 300_000
        server.up = True
        await until(lambda: b.hints.frozen.get("j", 3))
        columns = {one.column[0] for one in (*found, b.hints.frozen.get("j", 3))}
        assert len(columns) == 1


def scoring(count):
    """Return a function that adds scores of samples to a backlog, and the column that all scores make."""
    hints, column = HintRegistry(page_size=4096), np.full(count, np.nan, np.float32)
    hints.put_dataset(dataset(count=count))
    PutJob("j", "train", 1, 1.0, 3600.0).apply(hints, 0.0)

    def add(backlog, ids, score):
        column[ids] = score
        backlog.add_scores(PutScores("j", hints.check_by_ids("j", ids, np.full(len(ids), score, np.float32))))

    return add, column


def sent(events, count):
    column = np.full(count, np.nan, np.float32)
    for event in events:
        column[np.frombuffer(event.keys, "<u4")] = np.frombuffer(event.scores, "<f4")
    return column


@pytest.mark.parametrize("batch", [256, 2_048, 70_000])
def test_of_all_scores_that_wait_the_latest_of_each_sample_are_sent(batch):
    backlog, rows = Backlog(), np.random.default_rng(1)
    add, column = scoring(70_000)
    for score in range(200):
        add(backlog, rows.choice(70_000, batch, replace=False), score)
    add(backlog, np.array([], int), 1.0)
    add(backlog, np.array([5, 6, 5]), 7.0)
    events = backlog.take_scores()
    assert np.array_equal(sent(events, 70_000), column, equal_nan=True)
    assert sum(len(event.keys) for event in events) == 4 * np.count_nonzero(~np.isnan(column))


def test_scores_that_wait_long_are_not_merged_again_and_again(monkeypatch):
    """While the log is away, the scores of a whole dataset wait. To merge them all for each few batches would
    hold up the event loop.
    """
    merged, fold = [], module._Waiting.fold

    def counting(waiting):
        merged.append(sum(len(column.keys) for column in waiting.columns))
        return fold(waiting)

    monkeypatch.setattr(module._Waiting, "fold", counting)
    backlog, rows = Backlog(), np.random.default_rng(1)
    add, _ = scoring(70_000)
    for score in range(2_000):
        add(backlog, rows.choice(70_000, 256, replace=False), score)
    assert sum(merged) < 3 * 2_000 * 256
    assert backlog.size_bytes < 4 * 8 * 70_000
