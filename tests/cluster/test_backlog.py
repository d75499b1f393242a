"""What waits for the log: nothing is answered twice, and nothing that is gone is still to be sent."""

import numpy as np
import pytest

from shadeproxy.cluster.backlog import Backlog
from shadeproxy.cluster.events import INLINE_BYTES, OrderEvent, Packed, content_of
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
    """The log took it, but its answer was late, so it was queued again."""
    backlog = Backlog()
    first, second = backlog.add(None, packed), backlog.add(None, packed)
    backlog.came_back(first)
    assert backlog.filled.is_set()
    backlog.came_back(second)
    assert not backlog.filled.is_set()
