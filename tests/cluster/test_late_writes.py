"""A node checks its objects with the origin as long as late writes of other processes may arrive there."""

from dataclasses import replace

import pytest

from tests.support.cluster_members import OBJECTS, TIMING, Cluster


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def three(cluster):
    """Return three nodes that settled so long ago that no late write can arrive any more."""
    nodes = cluster.start_three(80)
    assert not any(map(cluster.checked, nodes))
    return nodes


def lose_log(cluster, seconds, *nodes):
    """Take the log away for some seconds. Then it comes back empty."""
    cluster.now_s += seconds
    cluster.server.lose()
    until_leased(cluster, *nodes)


def until_leased(cluster, *nodes):
    """Let the nodes send beats as often as the product does, until all have a lease."""
    for _ in range(400):
        for node in nodes:
            while cluster.beat(node):
                pass  # A beat that makes a call to the log is followed by the next beat at once.
        if all(node.view and node.view.id.inc == cluster.server.inc and cluster.mine(node) for node in nodes):
            return
        cluster.now_s += 0.2
    raise AssertionError("no lease")


def test_the_nodes_of_a_new_cluster_answer_at_once(cluster):
    nodes = [cluster.start(node, is_new=True) for node in "abc"]
    until_leased(cluster, *nodes)
    assert [cluster.checked(node) for node in nodes] == [set()] * 3
    cluster.run(5)
    assert [cluster.checked(node) for node in nodes] == [set()] * 3


def test_a_new_node_answers_at_once_for_what_a_living_node_gave_it(cluster, three):
    d = cluster.start("d", is_new=True)
    cluster.run(6)
    assert cluster.mine(d)
    assert not cluster.checked(d)


def test_a_new_node_checks_what_a_dead_node_had(cluster, three):
    """A new node checks objects that a dead node owned. The dead node leaves in the same view in which the
    new node gets its share.
    """
    a, b, c = three
    share = cluster.mine(c)
    d = cluster.start("d", is_new=True)
    cluster.server.forget(cluster.server.inc, "c")
    cluster.run(8, a, b, d)
    assert share & cluster.mine(d)
    assert cluster.checked(d) == {x for x in cluster.mine(d) if x in share}


@pytest.mark.parametrize("rate", [1.0, 0.9 / 1.1])
def test_a_new_node_that_pauses_before_its_first_lease_checks(cluster, three, rate):
    """A new node that pauses before its first lease checks its objects, because the other nodes may have
    retired it meanwhile. ``rate`` is the rate of its clock, compared with the clocks of the other nodes.
    """
    a, b, c = three
    d = cluster.start("d", is_new=True)
    cluster.beat(d)  # The node d proposes a view with itself.
    began_s = cluster.now_s
    for _ in range(30):
        cluster.run(1, a, b, c)
        if next(seat for seat in cluster.server.view.seats if seat.node == "d").away:
            break
    else:
        raise AssertionError("it is not retired")
    assert (cluster.now_s - began_s) * rate > TIMING.lease_s
    until_leased(cluster, a, b, c, d)
    assert cluster.checked(d) == cluster.mine(d)


def test_a_restarted_node_checks(cluster, three):
    c = cluster.start("c", boot="2")
    cluster.run(12)
    assert cluster.checked(c) == cluster.mine(c) != set()


@pytest.mark.parametrize("is_new", [False, True])
def test_the_log_may_restart_within_a_second_or_two(cluster, is_new):
    """The log may restart within a second or two, and no node has to check its objects. The leases last until
    the new log answers. So no other node can have written meanwhile.
    """
    nodes = [cluster.start(node, is_new=is_new) for node in "abc"]
    cluster.run(80)
    for seconds in (0.0, 1.0, 1.7):
        cluster.run(4)
        lose_log(cluster, seconds, *nodes)
        assert [cluster.checked(node) for node in nodes] == [set()] * 3


def test_a_log_that_fails_over_may_have_retired_a_node_meanwhile(cluster, three):
    for node in three:
        node.timing = replace(TIMING, failover_s=1.0)
    lose_log(cluster, 0.0, *three)
    assert [cluster.checked(node) for node in three] == [cluster.mine(node) for node in three]


def test_after_a_longer_absence_of_the_log_all_is_checked(cluster, three):
    """After a longer absence of the log, all objects are checked. Before the log lost its data, other nodes
    may have retired this node and written. The new log does not show this.
    """
    lose_log(cluster, 3.1, *three)
    assert [cluster.checked(node) for node in three] == [cluster.mine(node) for node in three]
    assert set.union(*map(cluster.mine, three)) == set(OBJECTS)


def test_a_node_that_was_retired_before_and_after_the_loss_of_the_log_checks(cluster, three):
    a, b, c = three
    cluster.run(10, a, b)
    assert cluster.mine(a) | cluster.mine(b) == set(OBJECTS)
    lose_log(cluster, 0.0, a, b)
    cluster.run(10, a, b)
    until_leased(cluster, a, b, c)
    assert cluster.checked(c) == cluster.mine(c)


def test_a_node_that_sees_the_new_log_and_then_pauses_checks(cluster, three):
    """A node that has seen the new log and then pauses checks its objects. The other nodes may retire it in
    the new incarnation.
    """
    a, b, c = three
    cluster.server.lose()
    cluster.beat(c)
    until_leased(cluster, a, b)
    cluster.run(12, a, b)
    assert cluster.mine(a) | cluster.mine(b) == set(OBJECTS), "they write for it"
    until_leased(cluster, a, b, c)
    assert cluster.checked(c) == cluster.mine(c)


def test_a_node_that_was_new_in_an_earlier_incarnation_is_not_new(cluster, three):
    """A node that was new in an earlier incarnation does not count as new. It had a seat there before its
    first lease, and another node may have written in its place.
    """
    a, b, c = three
    d = cluster.start("d", is_new=True)
    cluster.beat(d)
    cluster.run(12, a, b, c)
    lose_log(cluster, 0.0, a, b, c, d)
    assert cluster.checked(d) == cluster.mine(d)
