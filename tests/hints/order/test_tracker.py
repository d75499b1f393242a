"""The order tracker, compared with a model that gets the same reads one by one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.announcing import COUNT, NOW_S, announce, coming, known, read, read_together

pytestmark = pytest.mark.usefixtures("kernel_form")


def next_places(hints, job="one"):
    """Return the next place of each sample in the tracker, or None."""
    tracker = hints.orders.trackers[job]
    return [None if at == 2**31 - 1 else at for at in tracker.columns.next_at.tolist()]


def expected(sequence):
    """Return the next place of each sample in the model. It is the sample's first place that is left."""
    return [next((place for place, of in sequence if of == number), None) for number in range(COUNT)]


# ------------------------------------------------------------------ ranks, epochs, pieces


orders = st.lists(st.integers(0, COUNT - 1), max_size=30)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.integers(0, 3), st.dictionaries(st.integers(0, 2), orders, max_size=3), max_size=4))
def test_what_comes_is_every_epoch_in_turn_with_its_ranks_in_lock_step(parts):
    hints = known(world_size=3)
    for epoch, ranks in parts.items():
        for rank, ids in ranks.items():
            announce(hints, ids, epoch=epoch, rank=rank)
    sequence = []
    for _, ranks in sorted(parts.items()):
        longest = max((len(ids) for ids in ranks.values()), default=0)
        sequence += [
            ids[position]
            for position in range(longest)
            for _, ids in sorted(ranks.items())
            if position < len(ids)
        ]
    assert coming(hints) == sequence
    if sequence:
        assert next_places(hints) == expected(list(enumerate(sequence)))


@settings(max_examples=150, deadline=None)
@given(
    order=st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=60),
    shifts=st.lists(st.integers(0, 5), min_size=60, max_size=60),
    together=st.lists(st.integers(1, 7), min_size=1, max_size=20),
    late=st.lists(st.integers(0, COUNT - 1), max_size=20),
    when=st.integers(0, 60),
)
def test_reads_in_any_order_within_a_window_leave_what_was_not_read(order, shifts, together, late, when):
    """Reads in any order within a window leave exactly the unread places. Reads come out of order by a few
    places. At some time in between, a second epoch is announced.
    """
    hints = known()
    announce(hints, order)
    places = [place for _, place in sorted((place + shifts[place], place) for place in range(len(order)))]
    left = list(enumerate(order))
    at = group = 0
    while at < len(places):
        if at <= when and late and len(left) <= len(order) and at + 7 > when:
            announce(hints, late, epoch=1)
            left += list(enumerate(late, len(order)))
            when, late = -1, []
        size = together[group % len(together)]
        batch = places[at : at + size]
        for place in batch:
            # Places of one sample look the same, so a read takes the earliest of them.
            left.remove(next(one for one in left if one[1] == order[place]))
        ids = [order[place] for place in batch]
        (read if group % 2 else read_together)(hints, ids)
        at, group = at + size, group + 1
    tracker = hints.orders.trackers["one"]
    # Only places far behind count as passed unread, and there are none here.
    assert coming(hints) == [number for _, number in left]
    assert next_places(hints) == expected(left)
    assert tracker.left == len(left)


def test_pieces_follow_one_another_and_a_piece_again_replaces_what_was_from_there_on():
    hints = known()
    announce(hints, [1, 2, 3])
    announce(hints, [4, 5], offset=3)
    assert coming(hints) == [1, 2, 3, 4, 5]
    announce(hints, [6], offset=2)
    assert coming(hints) == [1, 2, 6]
    announce(hints, [7, 8])
    assert coming(hints) == [7, 8]


def test_what_was_read_stays_read_when_another_rank_or_epoch_is_announced():
    hints = known(world_size=2)
    announce(hints, [0, 1, 2, 3])
    read(hints, [0, 1])
    announce(hints, [10, 11, 12, 13], rank=1)
    assert coming(hints) == [10, 11, 2, 12, 3, 13]
    announce(hints, [0], epoch=1)
    assert coming(hints) == [10, 11, 2, 12, 3, 13, 0]


def test_a_withdrawn_epoch_is_not_coming_and_the_next_one_is():
    hints = known()
    announce(hints, [0, 1, 2], epoch=4)
    announce(hints, [5, 6], epoch=5)
    read(hints, [0])
    hints.orders.withdraw("one", 4, None, NOW_S)
    hints.orders.settle()
    assert coming(hints) == [5, 6]
    assert hints.orders.state("one").epochs == {5: 2}


def test_a_job_that_announces_an_earlier_epoch_begins_there_again():
    hints = known()
    announce(hints, [0, 1, 2, 3], epoch=7)
    read(hints, [0, 1, 2])
    announce(hints, [5, 6], epoch=3)
    assert coming(hints) == [5, 6, 0, 1, 2, 3]
    assert hints.orders.state("one").epoch == 3


def test_skip_and_count_cut_what_comes():
    hints = known()
    announce(hints, range(20))
    read(hints, [0, 2])
    assert coming(hints, 3) == [1, 3, 4]
    assert coming(hints, 3, skip=2) == [4, 5, 6]
    assert coming(hints, 3, skip=100) == []
    assert coming(hints, job="other") == []
