import numpy as np
import pytest

from shadeproxy.cluster.rendezvous import Rendezvous
from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import ObjectRef

HASHES = np.random.default_rng(1).integers(0, 2**64, 200_000, dtype=np.uint64)


def nodes(count):
    return [f"node{number}" for number in range(count)]


def owners(names, weights):
    """Return the name of the owner of each object."""
    rendezvous = Rendezvous(names, weights)
    return np.array(rendezvous.nodes)[rendezvous.find_many(HASHES)]


def test_owners_never_change_between_releases():
    """The owner of an object never changes between releases. Two releases that differed here would both
    believe that they own the object.
    """
    refs = [ObjectRef("bucket", f"train/{number}.jpg") for number in range(16)]
    refs.append(ObjectRef("bucket", "train/0.jpg", "team"))
    equal, weighted = Rendezvous(nodes(4), [1] * 4), Rendezvous(nodes(4), [1, 2.5, 0, 7])
    assert "".join(equal.find(object_hash(ref))[-1] for ref in refs) == "23333003232130103"
    assert "".join(weighted.find(object_hash(ref))[-1] for ref in refs) == "33333333333133303"


@pytest.mark.parametrize("weights", [[1, 1, 1, 1, 1], [1, 2, 3.5, 0, 900], [1e-3, 1e6, 5, 5, 5]])
def test_both_forms_name_the_same_owner(weights):
    rendezvous = Rendezvous(nodes(5), weights)
    many = rendezvous.find_many(HASHES[:20_000])
    assert [rendezvous.find(int(one)) for one in HASHES[:20_000]] == [rendezvous.nodes[at] for at in many]


def test_equal_weights_give_the_same_owners_by_either_way_of_comparing():
    by_bits, by_logarithm = Rendezvous(nodes(8), [3.0] * 8), Rendezvous(nodes(8), [3.0] * 8)
    by_logarithm._equal = False
    assert (by_bits.find_many(HASHES) == by_logarithm.find_many(HASHES)).all()


@pytest.mark.parametrize("weights", [[1] * 8, [1, 2, 3, 4, 5, 6, 7, 8]])
def test_a_node_owns_the_share_of_its_weight(weights):
    found = owners(nodes(8), weights)
    for node, weight in zip(nodes(8), weights, strict=True):
        share = (found == node).mean() / (weight / sum(weights))
        assert share == pytest.approx(1, abs=0.04)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 20])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_node_that_joins_or_leaves_moves_its_own_share_and_nothing_else(count, weighted):
    weights = [1 + (number % 3 if weighted else 0) for number in range(count + 1)]
    before, after = owners(nodes(count), weights[:count]), owners(nodes(count + 1), weights)
    moved = before != after
    assert set(after[moved]) == {f"node{count}"}
    assert moved.mean() <= 1.02 * weights[count] / sum(weights)


def test_a_new_weight_of_one_node_moves_objects_only_from_or_to_it():
    before, more = owners(nodes(4), [2, 2, 2, 2]), owners(nodes(4), [2, 3, 2, 2])
    assert set(more[before != more]) == {"node1"}
    less = owners(nodes(4), [2, 1, 2, 2])
    assert set(before[before != less]) == {"node1"}


def test_the_order_of_the_hashes_bits_does_not_matter():
    """The order of the bits in the hashes does not matter. Names with consecutive numbers have hashes without
    a pattern, so no node gets more of them.
    """
    numbers = np.arange(100_000, dtype=np.uint64)
    found = np.bincount(Rendezvous(nodes(4), [1] * 4).find_many(numbers))
    assert found.min() > 24_000


def test_a_node_of_weight_0_owns_nothing_while_another_can():
    assert set(owners(nodes(3), [1, 0, 1])) == {"node0", "node2"}
    assert set(owners(nodes(2), [0, 0])) == {"node0", "node1"}


def test_no_nodes_own_nothing():
    assert Rendezvous([], []).find(1) is None
    assert Rendezvous([], []).find_many(HASHES[:3]).tolist() == [-1, -1, -1]
