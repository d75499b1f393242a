"""Ghosts: the read histories of pages that are in no tier, at 12 bytes each."""

import numpy as np
import pytest

from shadeproxy.hints.reuse.ghosts import BYTES, GhostColumns, Ghosts
from shadeproxy.policy.history import History, first_read, read_again

pytestmark = pytest.mark.usefixtures("kernel_form")


def pages(count, seed=0):
    return np.random.default_rng(seed).integers(1 << 63, size=count, dtype=np.uint64).tolist()


def test_a_history_comes_back_as_it_was_stored():
    ghosts, page = Ghosts(1000), pages(1)[0]
    history = read_again(read_again(first_read(10.0), 110.0), 230.0)
    ghosts.put(page, history, 3)
    found = ghosts.find(page, 500.0)
    assert found is not None
    assert found.prefix == 3
    assert found.history.last == 230.0
    assert found.history.reads == 3
    assert found.history.state == history.state
    assert found.history.gap == pytest.approx(history.gap, rel=0.03)
    assert ghosts.find(page ^ 1, 500.0) is None


def test_the_page_of_a_set_that_was_read_longest_ago_makes_room():
    ghosts, many = Ghosts(64), pages(400)
    for tick, page in enumerate(many):
        ghosts.put(page, first_read(float(tick)), 0)
    found = [ghosts.find(page, 400.0) is not None for page in many]
    assert sum(found[-32:]) >= 30
    assert not any(found[:300])


def test_a_history_is_forgotten_when_as_many_reads_have_passed_as_there_are_places():
    ghosts, page = Ghosts(64), pages(1)[0]
    ghosts.put(page, first_read(100.0), 0)
    assert ghosts.find(page, 100.0 + len(ghosts)) is not None
    assert ghosts.find(page, 101.0 + len(ghosts)) is None


def test_ticks_beyond_32_bits_keep_their_distance():
    ghosts, page, tick = Ghosts(64), pages(1)[0], float(5 << 32) - 3
    ghosts.put(page, first_read(tick), 0)
    found = ghosts.find(page, tick + 10)
    assert found is not None
    assert found.history.last == tick


def test_memory_is_what_is_said():
    ghosts = Ghosts(8000)
    columns = (ghosts.tag, ghosts.last, ghosts.gap, ghosts.reads, ghosts.state, ghosts.prefix)
    assert sum(column.nbytes for column in columns) == BYTES * len(ghosts) == BYTES * 8000


def histories_of(found):
    return [History(*row) for row in zip(*(column.tolist() for column in found[:4]), strict=True)]


def test_pages_together_are_stored_and_found_as_one_by_one():
    one, many, random = Ghosts(1024), Ghosts(1024), np.random.default_rng(4)
    there, new = pages(400), pages(200, seed=5)
    for ghosts in (one, many):
        for tick, page in enumerate(there):
            ghosts.put(page, read_again(first_read(float(tick)), tick + 7.0), 2)
    coming = there[::4] + new
    reads = [
        read_again(first_read(400.0), 410.0 + (n + gap) / 10) for n, gap in enumerate(random.random(300))
    ]
    for page, history in zip(coming, reads, strict=True):
        one.put(page, history, 3)
    columns = GhostColumns(*(np.array(column) for column in zip(*reads, strict=True)), np.full(300, 3))
    many.put_all(np.array(coming, np.uint64), columns)
    asked = there + new
    found = histories_of(many.find_many(np.array(asked, np.uint64), 500.0))
    expected = [one.find(page, 500.0) for page in asked]
    assert [history.reads for history in found] == [
        0 if one is None else one.history.reads for one in expected
    ]
    for history, ghost in zip(found, expected, strict=True):
        assert ghost is None or history == ghost.history
    assert 350 < sum(ghost is not None for ghost in expected) < 600, "some sets overflowed"
    assert all(many.find(page, 500.0) == one.find(page, 500.0) for page in asked)


def test_pages_together_are_forgotten_as_one_by_one():
    ghosts, page = Ghosts(64), pages(1)[0]
    ghosts.put(page, first_read(float(5 << 32)), 0)
    asked = np.array([page], np.uint64)
    assert ghosts.find_many(asked, float(5 << 32) + len(ghosts)).reads[0] == 1
    assert ghosts.find_many(asked, float(5 << 32) + len(ghosts)).last[0] == float(5 << 32)
    assert ghosts.find_many(asked, float(5 << 32) + len(ghosts) + 1).reads[0] == 0


def test_pages_that_are_read_together_get_the_histories_of_single_reads():
    one, many, random = Ghosts(4096), Ghosts(4096), np.random.default_rng(7)
    known, prefix_of = pages(3000), np.array([0, 2, 1])
    tick = 0.0
    for turn in range(200):
        coming = random.choice(known, 20).tolist()
        ticks = [tick := tick + gap for gap in random.integers(1, 60, 20).tolist()]
        reads = [(page, turn % 3, when) for page, when in zip(coming, ticks, strict=True)]
        for read in reads:
            one.read_many([read], prefix_of)
        many.read_many(reads, prefix_of)
    assert one.reads.max() > 2
    assert set(one.prefix[one.tag != 0].tolist()) == {0, 1, 2}
    for name in ("tag", "last", "gap", "reads", "state", "prefix"):
        assert np.array_equal(getattr(one, name), getattr(many, name)), name
