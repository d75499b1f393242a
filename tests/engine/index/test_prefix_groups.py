"""Prefix groups: their number is bounded, and a purge still finds every key under its prefix."""

from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.index.prefix_groups import _MAX_GROUPS, PrefixGroups


def test_a_hundred_thousand_prefixes_have_a_bounded_number_of_groups():
    groups, buckets = PrefixGroups(), ("one", "two")
    of = {
        (bucket, number): groups.of(ObjectRef(bucket, f"{number}/key"))
        for number in range(50_000)
        for bucket in buckets
    }
    assert len(groups) == len(groups.names) == _MAX_GROUPS + len(buckets)
    assert len({of["one", number] for number in range(40_000, 50_000)}) == 1, "those beyond share one"
    assert of["one", 49_999] != of["two", 49_999], "buckets share none"


def test_a_purge_looks_at_the_shared_group_too():
    groups = PrefixGroups()
    known = [groups.of(ObjectRef("b", f"{number}/key")) for number in range(_MAX_GROUPS)]
    late = groups.of(ObjectRef("b", "late/key"))
    assert groups.candidates("b", "late/") == [late]
    assert groups.candidates("b", "17/") == [known[17], late]
    assert groups.candidates("other", "late/") == []


def test_the_same_prefix_has_one_group_in_each_namespace():
    groups = PrefixGroups()
    first = groups.of(ObjectRef("b", "train/a"))
    assert groups.of(ObjectRef("b", "train/b")) == first
    assert groups.of(ObjectRef("b", "train/a", "team")) != first
