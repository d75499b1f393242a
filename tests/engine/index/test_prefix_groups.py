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


def test_missing_objects_of_a_hundred_thousand_buckets_have_a_bounded_number_of_groups():
    """Any client can name buckets that do not exist."""
    groups = PrefixGroups()
    for number in range(_MAX_GROUPS):
        groups.of_missing(ObjectRef("b", f"{number}/key"))
    missing = {groups.of_missing(ObjectRef(f"bucket-{number}", "key")) for number in range(100_000)}
    assert len(missing) == 1
    assert len(groups) == _MAX_GROUPS + 1
    cached = groups.of(ObjectRef("bucket-1", "key"))
    assert groups.of_missing(ObjectRef("bucket-1", "other/key")) == cached
    assert groups.candidates("bucket-1", "") == [cached], "a purge finds the pages that are cached"
    assert groups.of_missing(ObjectRef("b", "17/other")) == groups.of(ObjectRef("b", "17/key"))


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
