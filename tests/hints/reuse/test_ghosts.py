"""Ghosts: histories of pages without a place, in 12 bytes each."""

import numpy as np
import pytest

from shadeproxy.hints.reuse.ghosts import BYTES, Ghosts
from shadeproxy.policy.history import first_read, read_again


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
