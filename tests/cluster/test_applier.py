"""The applier knows which ranks read through this proxy."""

import numpy as np
import pytest

from shadeproxy.hints.changes import PutDataset, PutJob
from tests.support.clock import ManualClock
from tests.support.cluster_log import FakeLog, Server
from tests.support.sharing import Sharing, dataset


@pytest.fixture
async def one():
    one = Sharing(FakeLog(Server()))
    one.applier._clock = ManualClock()
    yield one
    await one.__aexit__()


def begin(one, number):
    """Register a job, and let its rank 0 call this proxy."""
    one.applier.apply(PutDataset(dataset()), here=True)
    one.applier.apply(PutJob(f"j{number}", "train", 1, 1.0, 60.0, 0), here=True)


async def test_a_rank_that_called_long_ago_is_not_remembered(one):
    for number in range(100):
        begin(one, number)
        one.applier._clock.advance(20.0)
    assert len(one.applier._heard) == 3


async def test_a_rank_that_calls_again_counts_from_its_last_call(one):
    begin(one, 0)
    new = one.hints.check_order("j0", np.arange(10), epoch=0, rank=0)
    one.hints.orders.put(new, 0.0)
    for number in range(1, 4):
        one.applier._clock.advance(30.0)
        one.applier.heard_rank("j0", 0, here=True)
        begin(one, number)
    one.applier._clock.advance(50.0)
    one.applier.heard_rank("j1", 0, here=True)
    one.applier.heard_rank("j0", 0, here=False)
    assert not one.applier._tasks, "it still reads here"
    one.applier._clock.advance(20.0)
    one.applier.heard_rank("j0", 0, here=False)
    assert one.applier._tasks, "it reads elsewhere now"
