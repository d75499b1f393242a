import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.core.types import ObjectRef
from shadeproxy.hints import manifest
from shadeproxy.hints.datasets import Groups
from shadeproxy.hints.growing import GrowingSet
from shadeproxy.hints.hashing import object_hash


def hashes(*keys):
    return np.array([object_hash(ObjectRef("b", key)) for key in keys], dtype=np.uint64)


def first_pages(*keys):
    return hashes(*keys), np.zeros(len(keys), dtype=np.uint32)


def test_samples_are_found_by_hash(make):
    dataset = make(*(f"k{number}" for number in range(100)))
    assert dataset.samples_of(hashes("k7", "nothing", "k0", "k99")).tolist() == [7, -1, 0, 99]
    assert dataset.sample_of(object_hash(ObjectRef("b", "k42"))) == 42
    assert dataset.sample_of(0) is None
    assert dataset.sample_of((1 << 64) - 1) is None
    assert dataset.samples_of(hashes()).tolist() == []


@given(
    known=st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=300),
    asked=st.lists(st.integers(0, (1 << 64) - 1), max_size=50),
)
def test_groups_are_found_wherever_their_hashes_lie(known, asked):
    groups = Groups.of(np.array(known, dtype=np.uint64))
    asked = [*asked, *known, 0, 1, (1 << 63), (1 << 64) - 2, (1 << 64) - 1]
    found = groups.find(np.array(asked, dtype=np.uint64))
    assert [None if group < 0 else int(groups.hashes[group]) for group in found] == [
        hashed if hashed in known else None for hashed in asked
    ]
    for hashed in known:
        group = int(groups.find(np.array([hashed], dtype=np.uint64))[0])
        assert [known[item] for item in groups.samples(group)] == [hashed] * known.count(hashed)


def test_an_object_of_several_samples_is_found_as_its_lowest(make):
    dataset = make(("s1", 0, 5), ("s1", 5, 5), "x", ("s2", 0, 5), ("s1", 10, 5))
    assert dataset.samples_of(hashes("s1", "s2", "x")).tolist() == [0, 3, 2]
    assert dataset.samples_at([ObjectRef("b", "s1"), ObjectRef("b", "no"), ObjectRef("b", "x")]) == [
        [0, 1, 4],
        [],
        [2],
    ]


def test_an_object_listed_twice_keeps_both_samples(make):
    dataset = make("x", "y", "x")
    assert dataset.count == 3
    assert dataset.samples_at([ObjectRef("b", "x")]) == [[0, 2]]
    assert dataset.residency(*first_pages("x")).tolist() == [True, False, True]


def test_two_keys_of_one_hash_are_told_apart_by_key(make, monkeypatch):
    monkeypatch.setattr(manifest, "object_hash", lambda _ref: 7)
    dataset = make("x", "y")
    monkeypatch.undo()
    monkeypatch.setattr("shadeproxy.hints.datasets.object_hash", lambda _ref: 7)
    assert dataset.samples_at([ObjectRef("b", "y"), ObjectRef("b", "z")]) == [[1], []]
    assert [sample.ref.key for sample in dataset.samples()] == ["x", "y"]
    # Residency compares only hashes. In a collision it reports too many samples, which a locate call later
    # corrects.
    assert dataset.residency(np.array([7], dtype=np.uint64), np.zeros(1, np.uint32)).tolist() == [True, True]


@pytest.mark.parametrize("shards", [False, True])
def test_residency_agrees_with_the_plain_way(make, shards):
    keys = [f"k{number % 40 if shards else number}" for number in range(200)]
    dataset = make(*keys)
    resident = {f"k{number}" for number in range(0, 400, 3)}
    bits = dataset.residency(*first_pages(*sorted(resident)))
    assert bits.tolist() == [key in resident for key in keys]


def test_a_part_of_a_shard_is_resident_with_all_its_pages(make):
    dataset = make(
        ("s", 0, 60), ("s", 60, 80), ("s", 210, 0), ("s", 140, 300), "t", ("t", 50, 9), page_size=100
    )

    def resident(*pages):
        numbers = np.array([number for _, number in pages], dtype=np.uint32)
        return dataset.residency(hashes(*(key for key, _ in pages)), numbers).nonzero()[0].tolist()

    assert resident() == [2]
    assert resident(("s", 1), ("s", 2), ("s", 9), ("other", 0)) == [2]
    assert resident(("s", 1), ("s", 0)) == [0, 1, 2]
    assert resident(("s", 4), ("s", 1), ("s", 3), ("s", 2)) == [2, 3]
    assert resident(("t", 0)) == [2, 4, 5]
    assert resident(("t", 3)) == [2, 4]


def test_nothing_resident_is_all_zero(make):
    assert not make("x", "y").residency(*first_pages()).any()


def test_a_growing_set_numbers_objects_as_they_come():
    growing = GrowingSet("job:j", max_objects=3)
    assert growing.add([10, 20, 10]).tolist() == [0, 1, 0]
    assert growing.add([20, 30]).tolist() == [1, 2]
    assert growing.find(np.array([30, 99, 10], dtype=np.uint64)).tolist() == [2, -1, 0]


def test_a_full_growing_set_adds_nothing():
    growing = GrowingSet("job:j", max_objects=2)
    growing.add([10])
    with pytest.raises(Exception, match="at most 2 objects") as caught:
        growing.add([20, 30])
    assert "PUT /v1/datasets/NAME" in caught.value.hint
    assert growing.count == 1
    assert growing.add([10, 40]).tolist() == [0, 1]
