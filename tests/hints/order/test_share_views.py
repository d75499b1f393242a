"""Announced orders of a share after the cluster's view has changed."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from shadeproxy.api.control.order_builder import OrderBuilder
from shadeproxy.hints.order.share import OwnedShare
from tests.support.announcing import NOW_S, Long, restarted
from tests.support.owning import Owned, owners_of, share_of

COUNT = 4096
NEAR = 128
"""The number of reads by which a proxy's place of a job may be late."""


@pytest.mark.parametrize("nodes", [3, 5])
def test_in_the_middle_of_an_epoch_each_proxy_goes_on_with_its_new_share(nodes):
    job = Owned(max(nodes, 4))
    job.set_view(0, 4)
    job.announce()
    job.announce(job.order[::-1].copy(), epoch=1)
    job.read(job.order[:2000], epoch=0)
    job.set_view(1, nodes)
    if nodes == 5:
        job.report(0, 2000)  # Without this report the proxy that has joined does not know the place.
    for number, left in enumerate(job.left()):
        coming = job.mine(number, [*job.order[2000:], *job.order[::-1]])
        assert left[-len(coming) :] == coming if coming else not left
        assert len(left) - len(coming) <= NEAR, "what was read is over, but for a little near the place"
    job.read(job.order[2000:], epoch=0)
    job.read(job.order[::-1][:2000], epoch=1)
    for number, state in enumerate(job.states):
        assert (state.believed, state.surprises) == (True, 0)
        assert state.missed == 0, "what another proxy may have answered before is not missed"
        if job.mine(number, job.order):
            assert state.epoch == 1
            assert state.position == pytest.approx(2000, abs=nodes * NEAR)


def test_a_loader_that_reads_ahead_is_believed_after_the_view_changes():
    """The order of a loader that reads ahead is still believed after the view has changed. Workers read
    neighbouring batches at the same time, so the reads of a stretch come in any order.
    """
    job, random = Owned(4), np.random.default_rng(4)
    reads = np.concatenate([random.permutation(part) for part in np.split(job.order, 16)])
    job.announce()
    for start in range(0, COUNT, 128):
        if start % 1024 == 128:
            job.set_view(start, 3 + start // 1024 % 2)
        job.report(0, start)
        job.read(reads[start : start + 128])
    for state in job.states:
        assert state.believed
        assert state.surprises <= state.found // 100
        assert state.missed <= state.found // 10


def test_a_proxy_that_joins_finds_the_place_of_a_job_that_reports_no_progress():
    job = Owned(5)
    job.set_view(0, 4)
    for epoch in range(2):
        job.announce(job.order[:: 1 - 2 * epoch].copy(), epoch=epoch)
    job.read(job.order[:1000])
    job.set_view(1, 5)
    job.read(job.order[1000:])
    assert [state.believed for state in job.states] == [True] * 5
    assert [state.surprises for state in job.states[:4]] == [0] * 4
    assert job.nodes[4].orders.coming("one", COUNT).tolist() == job.mine(4, job.order[::-1])


def test_an_epoch_that_a_proxy_has_read_is_kept_until_the_job_has_left_it():
    """A proxy that has read its share of an epoch keeps the epoch's order until the job has left the epoch.
    The next view may give the proxy other samples of this epoch.
    """
    job = Owned(2)
    job.announce()
    job.announce(job.order[::-1].copy(), epoch=1)
    job.read(job.mine(0, job.order), epoch=0)
    job.set_view(1)
    job.read(job.order[:1], epoch=0)
    assert job.nodes[0].orders.announced.ids("one", 0, 0) is not None
    job.read(job.order[::-1], epoch=1)
    assert job.nodes[0].orders.announced.ids("one", 0, 0) is None
    assert job.nodes[0].orders.announced.ids("one", 1, 0) is not None


def test_a_proxy_that_owns_nothing_forgets_epochs_that_are_over():
    job = Owned(2)
    job.set_view(1, 1)
    for epoch in range(3):
        job.announce(epoch=epoch)
    job.report(1, 5)
    announced = job.nodes[1].orders.announced
    assert [announced.ids("one", epoch, 0) is None for epoch in range(3)] == [True, False, False]


def test_a_share_of_the_same_number_changes_nothing_and_another_one_builds_orders_again():
    lost = []
    job = Long(COUNT, on_lost=lambda _orders, name: lost.append(name))
    job.announce()
    job.hints.set_share(None)
    assert lost == []
    for view, times in ((1, 1), (1, 1), (2, 2)):
        job.hints.set_share(share_of(0, 2, view))
        assert lost == ["one"] * times
        job.orders.settle()
    job.hints.set_share(None)
    assert lost == ["one"] * 3


async def test_orders_of_a_new_view_are_built_off_the_loop_and_reads_meanwhile_count():
    asked = []

    def owns(hashes):
        asked.append((asyncio._get_running_loop(), len(hashes)))
        return owners_of(hashes, 2) == 0

    with ThreadPoolExecutor(1) as pool:
        builder = OrderBuilder(pool)
        job = Long(COUNT, jobs=("one", "two"), on_lost=builder.seek)
        job.announce(job="two")
        job.announce()
        job.announce(job.order[::-1].copy(), epoch=1)
        mine = [one for one in job.order.tolist() if owners_of(job.hashes[[one]], 2)[0] == 0]
        share = OwnedShare(7, owns)
        asked.clear()
        job.hints.set_share(share)
        assert job.state.left == 2 * COUNT, "the old order is used until the new one is built"
        job.read(mine[:100], epoch=0)
        await builder.settled(job.orders, "one")
        await builder.settled(job.orders, "two")
    assert job.orders.state("two").left == len(mine)
    assert job.state.left == 2 * len(mine) - 100
    assert job.orders.coming("one", 3).tolist() == mine[100:103]
    assert asked == [(None, COUNT)], "once for a dataset, and in no event loop"


def test_after_a_restart_a_proxy_without_a_view_keeps_the_place_of_the_job():
    job = Owned(2)
    job.announce()
    job.read(job.order[:2000])
    again = restarted(job.nodes[0].hints, NOW_S)
    again.set_share(OwnedShare(0, lambda hashes: np.zeros(len(hashes), np.bool_)))
    again.orders.settle()
    assert again.orders.state("one").left == 0
    again.set_share(share_of(0, 2, 1))
    again.orders.settle()
    mine = [one for one in job.order[2000:].tolist() if owners_of(job.hashes[[one]], 2, 1)[0] == 0]
    left = again.orders.coming("one", COUNT).tolist()
    assert left[-len(mine) :] == mine
    assert len(left) - len(mine) <= NEAR


def test_a_proxy_that_owns_nothing_any_more_keeps_the_place_until_the_job_begins_again():
    job = Owned(2)
    for epoch in range(2):
        job.announce(epoch=epoch)
    job.read(job.order[:2000], epoch=0)
    job.set_view(1, 1)
    orders = job.nodes[1].orders
    assert (orders.state("one").epoch, orders.state("one").left) == (None, 0)
    epoch, position = orders.position("one")
    assert (epoch, position) == (0, pytest.approx(2000, abs=2 * NEAR)), "as it is stored"
    job.announce(epoch=0, now_s=NOW_S + 60)
    assert orders.position("one") is None
    job.set_view(2)
    assert job.left()[1] == job.mine(1, [*job.order, *job.order])
