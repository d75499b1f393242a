"""The policy MIN is exact. On traces small enough, it is compared with every possible choice."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadeproxy.simulate.bound import EXACT, FURTHEST_FIRST, clairvoyant_hits, name_of_bound
from shadeproxy.simulate.trace import Trace
from shadeproxy.simulate.workloads import importance, uniform


def most_hits(ids, sizes, capacity):
    """Return the largest possible number of hits. It is found by trying every set of pages to keep after
    every read.
    """

    @cache
    def best(position, kept):
        if position == len(ids):
            return 0
        page = ids[position]
        candidates = [*kept, page] if page not in kept else list(kept)
        after = 0
        for chosen in range(1 << len(candidates)):
            subset = frozenset(one for n, one in enumerate(candidates) if chosen >> n & 1)
            if sum(sizes[one] for one in subset) <= capacity:
                after = max(after, best(position + 1, subset))
        return after + (page in kept)

    return best(0, frozenset())


def trace_of(ids, sizes=None):
    ids = np.array(ids, dtype=np.uint32)
    return Trace(ids, 5, sizes=None if sizes is None else np.array(sizes))


@settings(max_examples=60, deadline=None)
@given(ids=st.lists(st.integers(0, 4), min_size=1, max_size=10), places=st.integers(0, 4))
def test_no_choice_has_more_hits(ids, places):
    assert clairvoyant_hits(trace_of(ids), places).sum() == most_hits(ids, [1] * 5, places)


@settings(max_examples=60, deadline=None)
@given(
    ids=st.lists(st.integers(0, 4), min_size=1, max_size=9),
    sizes=st.lists(st.integers(1, 4), min_size=5, max_size=5),
    capacity=st.integers(1, 9),
)
def test_with_different_sizes_it_is_what_could_be_and_no_more(ids, sizes, capacity):
    assert clairvoyant_hits(trace_of(ids, sizes), capacity).sum() <= most_hits(ids, sizes, capacity)


def test_one_size_in_bytes_is_as_many_places():
    trace = importance(500, 3)
    assert np.array_equal(
        clairvoyant_hits(trace, 100), clairvoyant_hits(replace(trace, sizes=np.full(500, 7)), 706)
    )


def test_both_ways_agree_where_sizes_hardly_differ():
    trace = importance(2000, 4, seed=1)
    sizes = np.full(2000, 1_000_000)
    sizes[0] += 1
    assert clairvoyant_hits(replace(trace, sizes=sizes), 400_000_000 + 1).mean() == pytest.approx(
        clairvoyant_hits(trace, 400).mean(), abs=0.001
    )


def test_the_output_says_which_it_is():
    trace = uniform(10, 2)
    assert name_of_bound(trace) == EXACT
    assert name_of_bound(replace(trace, sizes=np.full(10, 5))) == EXACT
    assert name_of_bound(replace(trace, sizes=np.arange(1, 11))) == FURTHEST_FIRST
