"""What waits for the log: nothing is answered twice, and nothing that is gone is still to be sent."""

import numpy as np
import pytest

from tests.support.cluster_log import FakeLog, Server
from tests.support.sharing import Sharing, until


@pytest.fixture
def server():
    return Server()


async def test_a_change_that_finds_no_room_in_the_backlog_is_made_alone(server):
    """It is answered when it is dropped; a proxy that is cut off must not answer it again."""
    async with Sharing(FakeLog(server), "a") as a:
        await a.register(count=20_000)
        a.replication.backlog._most_bytes = 50_000
        server.up = False
        await until(lambda: a.replication.cut_off)
        await a.announce(np.arange(20_000))
        assert len(a.order()) == 20_000
        assert a.replication.backlog.dropped == 1
