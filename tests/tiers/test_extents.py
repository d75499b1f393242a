"""FreeExtents behaves like a plain set of free units."""

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from shadeproxy.tiers.extents import Extent, FreeExtents

TOTAL = 5000


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 700)), max_size=60), st.randoms())
def test_extents_never_overlap_touch_or_get_lost(steps, random):
    free, model, held = FreeExtents(), set(range(TOTAL)), []
    free.add(0, TOTAL)
    for take, length in steps:
        if take:
            start, fits = next(free.candidates(length), (None, 0))
            if start is None:
                continue
            assert fits >= length
            free.take(start, length)
            taken = set(range(start, start + length))
            assert taken <= model
            model -= taken
            held.append(Extent(start, length))
        elif held:
            extent = held.pop(random.randrange(len(held)))
            free.add(*extent)
            model |= set(range(extent.start, extent.start + extent.length))
        extents = sorted(free)
        assert {unit for start, length in extents for unit in range(start, start + length)} == model
        assert all(a.start + a.length < b.start for a, b in itertools.pairwise(extents))


@given(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=50), st.integers(1, 1 << 20))
@example([1200, *[1030] * 5], 1050)
def test_a_fitting_extent_in_a_larger_bin_is_always_found(lengths, wanted):
    free, start = FreeExtents(), 0
    for length in lengths:
        free.add(start, length)
        start += length + 1
    found = list(free.candidates(wanted))
    assert all(fits >= wanted for _, fits in found)
    # The widest bin spans an eighth of its length. So a search must find an extent that is longer than this.
    if any(length > wanted * 9 / 8 + 1 for length in lengths):
        assert found
