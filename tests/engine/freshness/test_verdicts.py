"""A write to an object ends its verdicts, and the memory for verdicts is bounded."""

import pytest

from shadeproxy.core.types import ObjectRef, Upstream
from shadeproxy.engine.freshness.verdicts import Verdicts

ALICE, BOB = Upstream("alice"), Upstream("bob")
REF, OTHER, ELSEWHERE = ObjectRef("b", "k"), ObjectRef("b", "other"), ObjectRef("elsewhere", "k")


@pytest.fixture
def verdicts():
    verdicts = Verdicts(60.0)
    for ref in (REF, OTHER, ELSEWHERE):
        for upstream in (ALICE, BOB):
            verdicts.allow(upstream, ref, 0.0, verdicts.begin(ref))
    return verdicts


def test_a_verdict_is_for_one_upstream_and_one_object_and_expires(verdicts):
    assert verdicts.allowed(ALICE, REF, 59.9)
    assert not verdicts.allowed(ALICE, REF, 60.0)
    assert not verdicts.allowed(Upstream("mallory"), REF, 0.0)
    assert not verdicts.allowed(ALICE, ObjectRef("b", "unknown"), 0.0)


def test_forgetting_an_object_forgets_it_for_everybody_and_nothing_else(verdicts):
    verdicts.forget("b", "k")
    assert not verdicts.allowed(ALICE, REF, 0.0)
    assert not verdicts.allowed(BOB, REF, 0.0)
    assert verdicts.allowed(ALICE, OTHER, 0.0)
    assert len(verdicts) == 4


def test_forgetting_a_bucket_forgets_its_objects_until_they_are_allowed_anew(verdicts):
    verdicts.forget("b")
    assert not verdicts.allowed(ALICE, REF, 0.0)
    assert not verdicts.allowed(BOB, OTHER, 0.0)
    assert verdicts.allowed(ALICE, ELSEWHERE, 0.0)
    verdicts.allow(ALICE, REF, 0.0)
    assert verdicts.allowed(ALICE, REF, 0.0)


@pytest.mark.parametrize("key", ["k", None])
def test_an_answer_that_was_asked_for_before_a_write_counts_for_nothing(verdicts, key):
    epoch = verdicts.begin(REF)
    verdicts.forget("b", key)
    verdicts.allow(ALICE, REF, 0.0, epoch)
    assert not verdicts.allowed(ALICE, REF, 0.0)
    verdicts.allow(ALICE, REF, 0.0, verdicts.begin(REF))
    assert verdicts.allowed(ALICE, REF, 0.0)


def test_memory_is_bounded_and_the_object_allowed_longest_ago_leaves():
    verdicts = Verdicts(60.0, capacity=3)
    refs = [ObjectRef("b", str(n)) for n in range(3)]
    for ref in refs:
        verdicts.allow(ALICE, ref, 0.0)
    verdicts.allow(ALICE, refs[0], 0.0)  # The verdict is renewed, so it is no longer the oldest one.
    verdicts.allow(BOB, refs[0], 0.0)
    assert [verdicts.allowed(ALICE, ref, 0.0) for ref in refs] == [True, False, True]
    assert len(verdicts) == 3


def test_forgetting_looks_at_no_other_verdict(verdicts):
    verdicts._allowed = Unscannable(verdicts._allowed)
    verdicts.forget("b", "k")
    verdicts.forget("b")


class Unscannable(dict):
    """A dict that raises when it is iterated over. So a test sees that only single keys are looked up."""

    def __iter__(self):
        raise AssertionError("every verdict was looked at")

    keys = values = items = __iter__
