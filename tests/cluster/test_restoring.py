"""A log that lost all its data gets its view back at once from a node that knows the view (docs/adr/0065)."""

from dataclasses import replace

import pytest

from shadeproxy.cluster.duties import Propose
from shadeproxy.cluster.log import NO_VIEW, Beat, ViewId
from tests.support.cluster_logs import FakeCluster, RedisCluster, opened, seats
from tests.support.cluster_members import TIMING, Cluster

# ---------------------------------------------------------------------------------------------- the nodes


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def three(cluster):
    """Return three nodes that have a settled view."""
    return cluster.start_three(15)


def beat_until_leased(cluster, node):
    """Send the three beats that follow each other without a rest after the log has become empty. Return
    whether the node then has a lease.
    """
    for _ in range(3):
        cluster.beat(node)
    assert node.inc == cluster.server.inc
    return node.leased(cluster.now_s)


def test_a_log_that_is_back_within_a_lease_is_restored_at_once(cluster, three):
    shares = [cluster.mine(node) for node in three]
    read = three[0].epoch
    cluster.now_s += 1.5
    cluster.server.lose()
    assert [beat_until_leased(cluster, node) for node in three] == [True] * 3
    assert [cluster.mine(node) for node in three] == shares
    assert {node.settled.id.inc for node in three} == {cluster.server.inc}
    assert all(three[0].trusts(x, read) for x in shares[0]), "nobody else had the share meanwhile"
    for _ in range(2):
        cluster.server.lose()
        assert [beat_until_leased(cluster, node) for node in three] == [True] * 3


def test_a_seat_is_kept_for_the_process_that_had_it(cluster, three):
    a, b, _ = three
    share = cluster.mine(b)
    cluster.server.lose()
    copy = cluster.start("b", boot="2")
    assert beat_until_leased(cluster, a)
    assert not beat_until_leased(cluster, copy)
    assert beat_until_leased(cluster, b)
    assert cluster.mine(b) == share
    cluster.run(10, a, copy)
    assert cluster.mine(copy) >= share, "the earlier process is gone"


def test_a_node_whose_lease_is_over_restores_nothing(cluster, three):
    """A node whose lease is over does not restore its view. Another node may have taken its share and changed
    the view meanwhile, and may be cut off now.
    """
    a, b, c = three
    cluster.run(12, a, b)
    cluster.server.lose()
    assert not beat_until_leased(cluster, c)
    assert not cluster.server.opened
    assert c.view.seats.keys() == {"a", "b", "c"}


def test_a_node_that_knows_a_view_that_is_not_settled_restores_nothing(cluster, three):
    a, b, _ = three
    d = cluster.start("d")
    cluster.beat(d)
    cluster.beat(a)
    cluster.server.lose()
    assert a.view.id != a.settled.id
    assert not [call for call in cluster.beat(a) if isinstance(call, Propose)]
    assert beat_until_leased(cluster, b)
    assert a.inc == b.inc
    assert beat_until_leased(cluster, a)
    assert set(cluster.server.settled.seats) == set(b.view.seats.values()), "without d"


def test_a_node_that_lost_its_seat_lost_its_lease_and_restores_nothing(cluster, three):
    """A node that lost its seat also lost its lease, and restores no view. Later views settle without its
    acknowledgement. So it cannot know whether its own view is the last one.
    """
    c = three[2]
    cluster.server.forget(cluster.server.inc, "c")
    for node in three * 3:
        cluster.beat(node)
    assert c.view.id == c.settled.id
    assert "c" not in c.view.seats
    assert not c.leased(cluster.now_s), "another process of its name may take a seat now"
    cluster.server.lose()
    assert not beat_until_leased(cluster, c)
    assert not cluster.server.opened


def test_a_log_that_may_have_two_servers_is_not_restored(cluster, three):
    a = three[0]
    a.timing = replace(TIMING, failover_s=1.0)
    cluster.server.lose()
    assert not [call for call in cluster.beat(a) if isinstance(call, Propose)]


# ---------------------------------------------------------------------------------------------- the log


@pytest.fixture(params=["fake", "redis"])
async def logs(request):
    return FakeCluster() if request.param == "fake" else RedisCluster(request.getfixturevalue("redis"))


@pytest.fixture
async def log(logs):
    log = logs.connect()
    yield log
    await log.close()


async def restored(logs, log, *nodes):
    """Let the log lose its data, and restore its view. Return the incarnation before, and the id of the
    restored view.
    """
    old = await opened(log, *nodes)
    logs.lose()
    inc = (await log.beat(Beat(nodes[0], "b", old))).inc
    return old.inc, await log.propose(ViewId(inc, 0), seats(*nodes), kept=old.inc)


async def test_a_restored_view_is_settled_and_each_seat_is_kept_for_its_process(logs, log):
    before, view = await restored(logs, log, "a", "b")
    answer = await log.beat(Beat("b", "b", None))
    assert (answer.inc, answer.closed, answer.seat_kept) == (view.inc, False, True)
    answer = await log.beat(Beat("b", "restarted", None, view.inc))
    assert (answer.taken, answer.token, answer.view) == (True, "", answer.settled)
    assert answer.view == (view.number, tuple(seats("a", "b")))
    assert not (await log.beat(Beat("b", "b", None, view.inc, "earlier"))).token
    answer = await log.beat(Beat("b", "b", None, view.inc, before))
    assert (bool(answer.token), answer.taken) == (True, False)
    assert (await log.beat(Beat("b", "restarted", None, view.inc, before))).taken
    new = await log.propose(view, seats("b"))
    await log.beat(Beat("b", "b", new))
    assert (await log.beat(Beat("b", "b", new))).settled.number == view.number, "a has not adopted the view"


async def test_a_kept_seat_is_free_when_it_is_retired(logs, log):
    _, view = await restored(logs, log, "a")
    answer = await log.beat(Beat("a", "restarted", None, view.inc))
    assert await log.retire(view.inc, "a", answer.nodes[0].count)
    assert (await log.beat(Beat("a", "restarted", None))).token


async def test_only_a_closed_incarnation_is_restored_and_by_one_node(logs, log):
    before, view = await restored(logs, log, "a")
    assert await log.propose(ViewId(view.inc, 0), seats("b"), kept=before) is None
    logs.lose()
    inc = (await log.beat(Beat("a", "b", view))).inc
    assert await log.propose(ViewId(view.inc, 0), seats("a"), kept=before) is None
    await log.open(inc)
    assert await log.propose(ViewId(inc, 0), seats("a"), kept=view.inc) is None
    assert (await log.beat(Beat("a", "b", view))).view == NO_VIEW
