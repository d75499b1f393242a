"""Hints of real length, which go through blobs of the log: a manifest, orders and scores of 70,000
samples.
"""

import numpy as np
import pytest

from shadeproxy.hints.changes import FreezeScores, PutJob, ReportProgress
from shadeproxy.hints.jobs import Progress
from shadeproxy.hints.scoreboard import ScoreColumn
from tests.support.cluster_log import FakeLog, Server
from tests.support.sharing import Sharing, until

COUNT = 70_000


@pytest.fixture
def server():
    return Server()


async def test_a_proxy_that_joins_gets_scores_of_a_proxy_that_has_restarted_since(server):
    """The joining proxy reads one stream after the other: first the changes after the restart, then the
    scores before it.
    """
    async with Sharing(FakeLog(server), "a") as a:
        async with Sharing(FakeLog(server), "b") as b:
            await a.register(count=COUNT)
            await until(b.knows)
            await a.keeper._write((await a.log.names())["snapshot"])
            await b.score(np.arange(COUNT), np.full(COUNT, 0.5, np.float32))
        async with Sharing(FakeLog(server), "b", boot=2) as b:
            await b.make(PutJob("k", "train", 1, 1.0, 60.0))
            async with Sharing(FakeLog(server), "c") as c:
                await until(lambda: c.knows("k") and c.scores()[-1] == 0.5)
                assert c.scores() == a.scores() == [0.5] * COUNT


def order_of(epoch):
    return np.random.default_rng(epoch).permutation(COUNT)


async def test_the_log_does_not_grow_while_scores_and_orders_change(server):
    """The log holds the hints that count, and for a while those that no longer count. With a day of old
    scores and orders, it would need gigabytes.
    """
    async with Sharing(FakeLog(server), "a") as a, Sharing(FakeLog(server), "b") as b:
        await a.register(count=COUNT)
        await until(b.knows)
        sizes = []
        for epoch in range(6):
            writer, other = (a, b) if epoch % 2 else (b, a)
            await writer.announce(order_of(epoch), epoch=epoch)
            await writer.score(np.arange(COUNT), np.random.default_rng(epoch).random(COUNT))
            await writer.make(FreezeScores("j", epoch, np.full(COUNT, epoch, np.float32), None))
            await until(lambda epoch=epoch, other=other: other.hints.frozen.get("j", epoch))
            await writer.make(ReportProgress("j", 0, Progress(epoch, 0)))
            await until(lambda epoch=epoch, other=other: other.order(epoch=epoch - 1) is None)
            await other.keeper.step()  # It reads the snapshot that it replaces.
            assert (await other.keeper._write(other.keeper._sealed)).is_own
            server.expire()
            sizes.append(sum(map(len, server.blobs.values())))
        assert sizes[-1] < 1.2 * sizes[1], sizes
        async with Sharing(FakeLog(server), "c") as c:
            assert c.order(epoch=5) == order_of(5).tolist()
            assert c.hints.frozen.names() == [("j", 4), ("j", 5)]
            await until(lambda: c.scores() == a.scores() == b.scores())


async def test_a_proxy_that_joins_takes_long_columns_of_scores_in_pieces(server, monkeypatch):
    """To take all scores of a long dataset at once would hold up the event loop."""
    async with Sharing(FakeLog(server), "a") as a:
        await a.register(count=COUNT)
        await a.score(np.arange(COUNT), np.random.default_rng(1).random(COUNT))
        await a.keeper._write((await a.log.names())["snapshot"])
        for stream in list(server.streams):
            del server.streams[stream]
        taken, write = [], ScoreColumn.set

        def counting(column, ids, scores):
            taken.append(len(ids))
            write(column, ids, scores)

        monkeypatch.setattr(ScoreColumn, "set", counting)
        async with Sharing(FakeLog(server), "b") as b:
            assert b.scores() == a.scores()
        assert max(taken) <= 1 << 16
        assert sum(taken) == COUNT
