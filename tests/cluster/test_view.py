import pytest

from shadeproxy.cluster.log import Seat, ViewRecord
from shadeproxy.cluster.signed import Seals
from shadeproxy.cluster.view import NodeFacts, View, seal_facts
from shadeproxy.core.errors import PeerError

SEALS = Seals("c", ["secret"])


def seat(node, *, away=False, weight=1.0, seals=SEALS):
    return Seat(node, seal_facts(NodeFacts(node=node, weight=weight, peer=f"{node}:9002"), seals), away)


def view(*seats):
    return View("inc", ViewRecord(7, seats), SEALS)


def test_facts_come_from_the_seats():
    assert view(seat("a"), seat("b", weight=4)).facts["b"] == NodeFacts(node="b", weight=4, peer="b:9002")


def test_a_misfit_names_the_settings_unless_the_other_node_is_of_an_earlier_release():
    own = NodeFacts(node="a", weight=1, config="owned 1", settings=(("lease", "1"), ("page_size", "1")))
    other = NodeFacts(node="b", weight=1, config="owned 2", settings=(("lease", "2"), ("page_size", "1")))
    reason = "node b of the cluster has other settings in which nodes must agree"
    assert own.misfit(other) == f"{reason}: lease"
    assert own.misfit(NodeFacts(node="b", weight=1, config="owned 2")) == reason


def test_a_node_that_is_away_keeps_its_place_and_owns_nothing():
    all_here, without = view(seat("a"), seat("b"), seat("c")), view(seat("a"), seat("c"))
    away = view(seat("a"), seat("b", away=True), seat("c"))
    for one in range(0, 1 << 64, 1 << 54):
        assert away.home(one) == all_here.owner(one)
        assert away.owner(one) == without.owner(one)
    assert view(seat("a", away=True)).owner(1) is None


def test_parts_of_the_objects_follow_the_weights_of_the_owners():
    found = view(seat("a", weight=3), seat("b"), seat("c", away=True), seat("d", weight=0))
    assert [found.part_of(node) for node in "abcde"] == [0.75, 0.25, None, 0.0, None]
    drained = view(seat("a", weight=0), seat("b", weight=0))
    assert [drained.part_of(node) for node in "ab"] == [0.5, 0.5]
    assert view(seat("a", away=True)).part_of("a") is None


def test_the_order_of_the_seats_does_not_matter():
    one, other = view(seat("a"), seat("b")), view(seat("b"), seat("a"))
    assert one.owners.nodes == other.owners.nodes == ("a", "b")


@pytest.mark.parametrize(
    "forged",
    [
        seat("b", seals=Seals("c", ["guessed"])),
        seat("b", seals=Seals("another", ["secret"])),
        Seat("b", seat("a").facts),
        Seat("b", SEALS.seal("node", b"\x80")),
        Seat("b", b""),
    ],
)
def test_one_forged_seat_makes_the_view_unusable(forged):
    with pytest.raises(PeerError, match="node b"):
        view(seat("a"), forged)
