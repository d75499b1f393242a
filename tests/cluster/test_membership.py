from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.cluster.duties import Open, Propose
from shadeproxy.cluster.log import Seat, ViewRecord
from shadeproxy.cluster.membership import Membership
from shadeproxy.cluster.signed import Seals
from shadeproxy.cluster.view import NodeFacts, View, seal_facts
from shadeproxy.core.errors import PeerError
from tests.support.cluster_members import OBJECTS, SEALS, TIMING, Cluster


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def three(cluster):
    """Return three nodes that have a settled view."""
    nodes = cluster.start_three(15)
    assert [bool(cluster.mine(node)) for node in nodes] == [True] * 3
    return nodes


def seated(cluster, **away):
    return {seat.node: seat.away for seat in cluster.server.view.seats}


def test_a_first_node_opens_the_log_and_owns_everything(cluster):
    node = cluster.start("a")
    calls = []
    for _ in range(10):
        calls += cluster.beat(node)
        cluster.now_s += 1
    assert [type(call) for call in calls] == [Open, Propose]
    assert cluster.mine(node) == set(OBJECTS)


def test_every_object_has_one_owner(cluster, three):
    shares = [cluster.mine(node) for node in three]
    assert set.union(*shares) == set(OBJECTS)
    assert sum(map(len, shares)) == len(OBJECTS)


def test_a_lease_ends_one_lease_after_its_beat_was_sent(cluster, three):
    a = three[0]
    cluster.beat(a, takes_s=2.5)
    assert a.leased(cluster.now_s)
    assert a.leased(cluster.now_s + 0.49)
    assert not a.leased(cluster.now_s + 0.5)
    cluster.now_s += 0.5
    assert cluster.mine(a) == set()


def test_an_answer_that_took_longer_than_a_lease_grants_nothing(cluster, three):
    a = three[0]
    cluster.beat(a, takes_s=3.1)
    assert not a.leased(cluster.now_s)


def test_a_lapsed_lease_makes_all_that_was_read_doubtful(cluster, three):
    a = three[0]
    read = a.epoch
    cluster.run(2)
    assert a.epoch == read
    assert all(a.trusts(x, read) for x in OBJECTS)
    cluster.run(4, three[1], three[2])
    cluster.run(2)
    assert cluster.mine(a)
    assert not any(a.trusts(x, read) for x in OBJECTS)
    assert all(a.trusts(x, a.epoch) for x in OBJECTS)


def test_a_view_makes_doubtful_only_what_it_moves(cluster, three):
    a, b, c = three
    before, read = cluster.mine(a), a.epoch
    cluster.start("d")
    cluster.run(4)
    kept = cluster.mine(a)
    assert kept < before
    assert all(a.trusts(x, read) for x in kept)
    assert not any(a.trusts(x, read) for x in before - kept)
    # When d leaves, its objects come back. They are not trusted, because d may have written them.
    cluster.run(140, a, b, c)
    assert cluster.mine(a) == before
    assert {x for x in before if a.trusts(x, read)} == kept


def test_a_share_waits_until_the_former_owner_has_adopted_the_view(cluster, three):
    a, b, c = three
    d = cluster.start("d")
    for _ in range(3):
        for node in (d, b, c):
            cluster.beat(node)
        cluster.now_s += 0.1
    lost = {x for x in OBJECTS if d.view.owner(x) == "d" and d.settled.owner(x) == "a"}
    assert lost
    assert cluster.mine(d) == set()
    assert lost < cluster.mine(a)
    cluster.beat(a)
    assert not lost & cluster.mine(a)
    cluster.beat(a)
    cluster.beat(d)
    assert lost < cluster.mine(d)


def test_the_duty_of_a_dead_node_moves_and_its_place_stays_until_leave_after(cluster, three):
    a, b, c = three
    share = cluster.mine(c)
    cluster.run(4, a, b)
    assert not share & (cluster.mine(a) | cluster.mine(b))
    cluster.run(4, a, b)
    assert share < cluster.mine(a) | cluster.mine(b)
    assert seated(cluster) == {"a": False, "b": False, "c": True}
    assert all(a.view.home(x) == "c" for x in share)
    cluster.run(130, a, b)
    assert seated(cluster) == {"a": False, "b": False}
    assert not any(a.view.home(x) == "c" for x in OBJECTS)


def test_a_node_that_comes_back_gets_its_share_back_and_nothing_else_moves(cluster, three):
    a, b, _ = three
    shares = [cluster.mine(node) for node in three]
    cluster.run(10, a, b)
    read = a.epoch
    cluster.run(4)
    assert seated(cluster) == {"a": False, "b": False, "c": False}
    assert [cluster.mine(node) for node in three] == shares
    assert all(a.trusts(x, read) for x in shares[0])


def test_reads_ask_the_origin_while_a_write_of_a_dead_node_may_arrive(cluster, three):
    a, b, c = three
    cluster.run(61)
    mine, of_c = cluster.mine(a), cluster.mine(c)
    assert not any(a.must_check(x, cluster.now_s) for x in mine)
    cluster.run(8, a, b)
    taken_over = cluster.mine(a) & of_c
    assert taken_over
    assert all(a.must_check(x, cluster.now_s) for x in taken_over)
    assert not any(a.must_check(x, cluster.now_s) for x in mine)
    cluster.run(61, a, b)
    assert not any(a.must_check(x, cluster.now_s) for x in taken_over)


def test_a_share_that_was_handed_over_needs_no_such_check(cluster, three):
    cluster.run(61)
    d = cluster.start("d")
    cluster.run(70)
    three[0].duties.facts = NodeFacts(node="a", weight=0.0)
    cluster.run(3)
    gained = {x for x in cluster.mine(d) if d.trusts(x, d.epoch) and not d.must_check(x, cluster.now_s)}
    assert gained == cluster.mine(d)


def test_after_a_loss_of_the_log_the_nodes_propose_their_view_again(cluster, three):
    shares = [cluster.mine(node) for node in three]
    read = three[0].epoch
    cluster.now_s += 3
    cluster.server.lose()
    cluster.start("z")
    cluster.run(3)
    assert not any(cluster.mine(node) for node in three)
    del cluster.nodes["z"]
    cluster.run(4)
    assert [cluster.mine(node) for node in three] == shares
    assert not any(three[0].trusts(x, read) for x in shares[0])


def test_a_log_that_comes_back_empty_empties_no_view(cluster, three):
    """When the log comes back empty, the nodes keep their view. In dingodb/DingoCache#80 the first answer
    after an outage listed no members, and all pages were lost.
    """
    view = three[0].view
    cluster.server.lose()
    for _ in range(5):
        cluster.beat(three[0])
        assert three[0].view is not None
        assert set(three[0].view.facts) == set(view.facts)
        cluster.now_s += 1


def test_a_goodbye_moves_the_duty_at_once(cluster, three):
    a, b, c = three
    goodbye = c.end()
    assert cluster.mine(c) == set()
    assert cluster.server.retire(goodbye.inc, goodbye.node, goodbye.count)
    cluster.run(3, a, b)
    assert cluster.mine(a) | cluster.mine(b) == set(OBJECTS)
    assert c.adopt(cluster.server.beat(c.beat()), cluster.now_s, cluster.now_s) == []
    assert cluster.mine(c) == set()


def test_a_node_that_never_had_a_lease_says_no_goodbye(cluster):
    assert cluster.start("a").end() is None


def test_a_goodbye_does_not_end_the_lease_of_another_process(cluster, three):
    a, b, c = three
    cluster.run(8, b, c)
    cluster.run(3, cluster.start("a", boot="2"), b, c)
    cluster.beat(a)
    assert a.end() is None


def test_a_node_that_has_no_lease_in_a_new_incarnation_gives_none_up(cluster, three):
    """A node that has no lease in a new incarnation gives none up. The count that it knows may there belong
    to another process.
    """
    a = three[0]
    cluster.server.lose()
    cluster.beat(a)
    assert a.inc == cluster.server.inc
    assert a.end() is None


def test_a_second_process_of_one_node_id_gets_no_lease_and_is_reported(cluster, three):
    a, *rest = three
    copy = cluster.start("a", boot="2")
    cluster.run(10, a, copy, *rest)
    assert copy.duties.conflict
    assert cluster.mine(copy) == set()
    assert cluster.mine(a)
    assert not a.duties.conflict


def test_two_processes_of_one_node_id_do_not_take_turns_at_its_seat(cluster, three):
    a, *rest = three
    copy = cluster.start("a", boot="2", peer="10.0.0.9:9002")
    cluster.run(4, a, copy, *rest)
    view = a.view.id
    cluster.run(10, a, copy, *rest)
    assert a.view.id == view == a.settled.id
    assert a.view.facts["a"].peer == ""


def test_a_restarted_process_takes_over_from_the_one_before(cluster, three):
    share = cluster.mine(three[0])
    again = cluster.start("a", boot="2")
    cluster.run(8)
    assert cluster.mine(again) == share
    assert not again.duties.conflict


def test_a_forgotten_node_leaves_and_stays_out_until_it_restarts(cluster, three):
    a, b, c = three
    cluster.server.forget(cluster.server.inc, "c")
    cluster.run(6)
    assert seated(cluster) == {"a": False, "b": False}
    assert cluster.mine(a) | cluster.mine(b) == set(OBJECTS)
    assert cluster.mine(c) == set()
    again = cluster.start("c", boot="2")
    cluster.run(4)
    assert cluster.mine(again)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"wire": 2}, "version 1 of the"),
        ({"origin": "other"}, "another origin"),
        ({"config": "x"}, "settings"),
    ],
)
def test_a_node_that_does_not_fit_gets_no_share_and_says_why(cluster, three, facts, said):
    shares = [cluster.mine(node) for node in three]
    odd = cluster.start("d", **facts)
    cluster.run(5)
    assert said in odd.duties.refusal
    assert [cluster.mine(node) for node in three] == shares
    assert cluster.mine(odd) == set()
    # The other nodes leave one by one, as in an upgrade. Then this node is the cluster.
    cluster.run(8, odd)
    assert odd.duties.refusal == ""
    assert cluster.mine(odd) == set(OBJECTS)


@pytest.mark.parametrize("facts", [{"wire": 2}, {"origin": "other"}, {"config": "x"}])
def test_a_node_that_does_not_fit_takes_no_seat_when_the_log_has_lost_its_data(cluster, three, facts):
    odd = cluster.start("d", **facts)
    cluster.run(5)
    cluster.server.lose()
    cluster.run(6, odd)  # It opens the log, and is the first to propose a view.
    cluster.run(6)
    assert seated(cluster) == {"a": False, "b": False, "c": False}
    assert all(cluster.mine(node) for node in three)
    assert [bool(node.duties.refusal) for node in (*three, odd)] == [False, False, False, True]
    # It is the cluster once the others have ended.
    cluster.run(TIMING.leave_after_s + 8, odd)
    assert cluster.mine(odd) == set(OBJECTS)


def test_a_node_whose_seal_the_others_would_not_accept_takes_no_seat_and_harms_nobody():
    """With such a seat in the view, no other node could use the view."""
    cluster = Cluster()
    old, both = Seals("c", ["old"]), Seals("c", ["new", "old"])
    nodes = [cluster.start(node, seals=old) for node in "abc"]
    cluster.run(15)
    odd = cluster.start("d", seals=both)
    cluster.run(5)
    assert "does not accept the first secret of this one's cluster.secret" in odd.duties.refusal
    assert all(cluster.mine(node) for node in nodes)
    for node in "abcd":
        cluster.start(node, "2", seals=Seals("c", ["old", "new"]))
        cluster.run(5)
    last = cluster.start("d", "3", seals=both)
    cluster.run(5)
    assert (last.duties.refusal, seated(cluster).keys()) == ("", set("abcd"))


def test_a_node_with_a_shorter_lease_ends_no_lease_of_the_others(cluster, three):
    """The cluster refuses it. But by its own lease, it would take the others' leases to be over too soon."""
    a, b, c = three
    odd = cluster.start("d", timing=replace(TIMING, lease_s=0.6), config="another lease")
    cluster.beat(a)
    while a.leased(cluster.now_s):
        for node in (odd, b, c):
            cluster.beat(node)
        assert sum(map(len, map(cluster.mine, three))) == len(OBJECTS), "each object has one owner"
        cluster.now_s += 0.2
    assert odd.duties.refusal
    cluster.run(5, odd, b, c)
    assert seated(cluster) == {"a": True, "b": False, "c": False}


@pytest.mark.parametrize("shorter", [{"lease_s": 0.6}, {"failover_s": 0.0}])
def test_a_node_with_a_shorter_lease_opens_no_log_while_leases_of_the_others_last(cluster, shorter):
    timing = replace(TIMING, failover_s=2.0)
    nodes = [cluster.start(node, timing=timing) for node in "abc"]
    cluster.run(15)
    odd = cluster.start("d", timing=replace(timing, **shorter), config="another lease")
    cluster.run(2)
    cluster.server.lose()
    began_s = cluster.now_s
    while not cluster.server.opened:
        cluster.beat(odd)
        cluster.now_s += 0.1
    assert cluster.now_s - began_s >= timing.surely_over_s + timing.failover_s
    cluster.run(5)
    assert all(map(cluster.mine, nodes))


def test_a_new_weight_or_address_is_proposed(cluster, three):
    cluster.start("a", boot="2", weight=5.0, peer="10.0.0.9:9002")
    cluster.run(9)
    assert three[1].view.facts["a"].peer == "10.0.0.9:9002"
    assert len(cluster.mine(cluster.nodes["a"])) > len(OBJECTS) / 2


def test_a_forged_node_is_not_adopted_and_the_lease_ends(cluster, three):
    a = three[0]
    view = a.view
    forged = Seat("z", Seals("c", ["guessed"]).seal("node", b"\x80"))
    cluster.server.propose(view.id, [*cluster.server.view.seats, forged])
    for _ in range(4):
        with pytest.raises(PeerError, match=r"cluster\.secret"):
            cluster.beat(a)
        cluster.now_s += 1
    assert a.view is view
    assert cluster.mine(a) == set()


def test_many_changes_of_views_distrust_no_more_than_needed_and_never_less(cluster, three):
    a = three[0]
    reads = []
    for number in range(40):
        reads.append((a.epoch, cluster.mine(a)))
        cluster.start("d", boot=str(number))
        cluster.run(6)
        cluster.server.forget(cluster.server.inc, "d")
        cluster.run(6)
    epoch, mine = reads[-1]
    assert any(a.trusts(x, epoch) for x in mine)
    epoch, mine = reads[0]
    assert not any(a.trusts(x, epoch) for x in mine)


def test_a_node_is_cut_off_when_the_log_has_not_answered_for_a_lease(cluster, three):
    a = three[0]
    cluster.beat(a)
    assert not a.cut_off(cluster.now_s + 2.9)
    assert a.cut_off(cluster.now_s + 3.0)


def test_a_request_for_distrust_ends_all_trust_and_settles(cluster, three):
    a, b, c = three
    reads = [node.epoch for node in three]
    number = b.ask_for_distrust()
    assert not b.is_distrusted(number)
    for node in (b, a, a, c):
        cluster.beat(node)
    assert not b.is_distrusted(number), "c has not said that it adopted the view"
    cluster.run(3)
    assert b.is_distrusted(number)
    for node, read in zip(three, reads, strict=True):
        assert cluster.mine(node)
        assert not any(node.trusts(x, read) for x in OBJECTS)
    read = a.epoch
    cluster.run(10)
    assert a.epoch == read, "one request is heeded once"
    assert b.ask_for_distrust() == number + 1


def test_a_request_for_distrust_is_seen_by_a_node_that_missed_the_views_before_it(cluster, three):
    a, *rest = three
    a.ask_for_distrust()
    cluster.run(4)
    again = cluster.start("a", boot="2")
    cluster.run(10)
    epoch = rest[0].epoch
    number = again.ask_for_distrust()
    cluster.run(4)
    assert again.is_distrusted(number)
    assert not any(rest[0].trusts(x, epoch) for x in OBJECTS)


def test_a_number_of_an_earlier_process_says_nothing(cluster, three):
    a = three[0]
    a.ask_for_distrust()
    cluster.run(4, *three)
    again = cluster.start("a", boot="2")
    number = again.ask_for_distrust()
    again.settled = a.settled
    assert not again.is_distrusted(number)


WEIGHTS = st.sampled_from([0.0, 1.0, 1.0, 2.5, 7.0])
NODES = st.dictionaries(st.sampled_from("abcd"), st.tuples(WEIGHTS, st.booleans()), min_size=1)


@given(st.lists(NODES, min_size=1, max_size=6), st.lists(st.integers(0, 2**64 - 1), max_size=20), st.data())
def test_trust_in_columns_of_objects_is_trust_in_each(views, hashes, data):
    def view(number, nodes):
        seats = [
            Seat(node, seal_facts(NodeFacts(node=node, weight=weight), SEALS), away)
            for node, (weight, away) in sorted(nodes.items())
        ]
        return View("i", ViewRecord(number, tuple(seats)), SEALS)

    member = Membership(NodeFacts(node="a", weight=1.0), "a1", SEALS, TIMING)
    made = [view(number, nodes) for number, nodes in enumerate(views, 1)]
    settled = 0
    for number, now in enumerate(made):
        settled = data.draw(st.integers(settled, number))
        member._take(now, made[settled], 0.0)
        if data.draw(st.booleans()):
            member._take_lease(("i", str(data.draw(st.integers(0, 1)))), 0.0, 0.0)
    for epoch in range(member.epoch + 1):
        keep = member.keep_since(epoch)
        kept = [False] * len(hashes) if keep is None else keep(np.array(hashes, np.uint64)).tolist()
        assert kept == [member.trusts(x, epoch) for x in hashes]


def test_a_view_that_does_not_settle_names_the_nodes_it_waits_for(cluster, three):
    a, b, _ = three
    assert (a.unsettled_s(cluster.now_s), a.duties.late) == (0.0, ())
    b.duties.change_facts(NodeFacts(node="b", weight=2.0))
    cluster.beat(b)
    began_s = cluster.now_s
    for _ in range(3):
        cluster.beat(a)
        cluster.beat(b)
        cluster.now_s += 1
    assert a.view.id != a.settled.id
    assert a.duties.late == ("c",)
    assert a.unsettled_s(cluster.now_s) == cluster.now_s - began_s
    answer = cluster.server.beat(a.beat())
    gone = replace(next(one for one in answer.nodes if one.node == "c"), retired=True)
    a.duties.of_open(replace(answer, nodes=(gone,)), a.view, cluster.now_s)
    assert a.duties.late == (), "its lease is over, so it is not waited for"
    cluster.run(3)
    assert (a.unsettled_s(cluster.now_s), a.duties.late) == (0.0, ())
    b.duties.change_facts(NodeFacts(node="b", weight=3.0))
    cluster.beat(b)
    cluster.now_s += 1
    cluster.beat(a)
    assert a.unsettled_s(cluster.now_s) == 0.0, "the time begins with this view"
