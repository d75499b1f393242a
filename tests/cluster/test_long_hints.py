"""Hints of real length, which go through blobs of the log: a manifest, orders and scores of 70,000
samples.
"""

import numpy as np
import pytest

from shadeproxy.hints.changes import PutJob
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
