"""The space of a tier: records that are placed in one run get the same places as records placed one
by one.
"""

import tempfile
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.tiers.location import address_of
from shadeproxy.tiers.record import LEAST_UNITS
from shadeproxy.tiers.segment import BLOCK_BYTES, UNITS_PER_BLOCK, Segment
from shadeproxy.tiers.space import Space

BLOCKS = 48
TOTAL = BLOCKS * UNITS_PER_BLOCK
OWN_FROM = 150

lengths_of_records = st.integers(LEAST_UNITS, 400)
histories = st.lists(st.tuples(lengths_of_records, st.booleans()), max_size=30)
runs = st.lists(lengths_of_records, min_size=1, max_size=8)


@contextmanager
def spaces(capacity_blocks, count):
    """Yield ``count`` equal spaces, each with one empty segment."""
    with tempfile.TemporaryDirectory() as directory:
        segments = [
            Segment(Path(directory) / f"{number}.seg", 0, size_bytes=BLOCKS * BLOCK_BYTES)
            for number in range(count)
        ]
        made = []
        for segment in segments:
            space = Space(capacity_blocks * BLOCK_BYTES, slack_bytes=8 * BLOCK_BYTES)
            space.add_segment(segment)
            made.append(space)
        try:
            yield made
        finally:
            for segment in segments:
                segment.close()


def place(space, units):
    return space.place(units, to_block_end=units >= OWN_FROM)


def live(space, history):
    """Place the records of ``history``, and free the records that do not stay. Return the extents of the
    records that stay.
    """
    placed = [(place(space, units), stays) for units, stays in history]
    for extent, stays in placed:
        if extent is not None and not stays:
            space.free(*extent)
    return [extent for extent, stays in placed if extent is not None and stays]


def state(space):
    segment = space.segments[0]
    return (
        space.used_bytes,
        space.slack_bytes,
        space.empty_segments,
        segment.records,
        segment.held_blocks,
        segment.slack_blocks,
        sorted(space._free),
    )


def check_books(space, held):
    """Check the space's accounts against the extents that are in use."""
    segment = space.segments[0]
    used = [unit for start, length in held for unit in range(start, start + length)]
    free = [unit for start, length in space._free for unit in range(start, start + length)]
    first = address_of(0, 0)
    assert sorted(used + free) == list(range(first, first + TOTAL))
    blocks = {(unit - first) // UNITS_PER_BLOCK for unit in used}
    assert space.used_bytes == space.overhead_bytes(segment) + len(blocks) * BLOCK_BYTES
    assert space.slack_bytes == segment.slack_blocks * BLOCK_BYTES
    assert space.claimed_bytes <= space.limit_bytes
    assert segment.records == len(held)
    assert space.empty_segments == (not held)


def extents(run):
    """Return address and length of each record of a run."""
    if run is None:
        return None
    address, lengths = run
    return [(address + sum(lengths[:place]), taken) for place, taken in enumerate(lengths)]


@given(histories, runs, st.integers(4, BLOCKS + 4))
def test_a_run_keeps_the_books_and_a_refused_one_changes_nothing(history, lengths, capacity_blocks):
    with spaces(capacity_blocks, 1) as [space]:
        held = live(space, history)
        before = state(space)
        run = extents(space.place_run(lengths, OWN_FROM))
        if run is None:
            assert state(space) == before
        else:
            assert all(taken >= units for (_, taken), units in zip(run, lengths, strict=True))
            held += run
        check_books(space, held)
        for extent in held:
            space.free(*extent)
        check_books(space, [])


@given(runs, st.integers(-200, 700), st.integers(4, BLOCKS + 4))
def test_in_one_free_extent_a_run_lies_where_single_records_would(lengths, spare, capacity_blocks):
    first = min(max(TOTAL - sum(lengths) - spare, LEAST_UNITS), TOTAL - LEAST_UNITS)
    with spaces(capacity_blocks, 2) as [one, other]:
        free = TOTAL if one.place(first) is None else TOTAL - first
        other.place(first)
        run = extents(one.place_run(lengths, OWN_FROM))
        singles = [place(other, units) for units in lengths]
        if run is not None:
            assert run == singles
            assert state(one) == state(other)
        elif None not in singles:
            # A run reserves, for each record, the most that may be lost up to the end of a block. So it may
            # refuse the last few units.
            padding = sum(units >= OWN_FROM for units in lengths) * (UNITS_PER_BLOCK - 1)
            assert free < sum(lengths) + padding
