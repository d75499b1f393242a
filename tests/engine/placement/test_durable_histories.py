"""Read histories survive a restart: those of residents, those of ghosts, and the learnt rates. Either all of
them are restored, or none.
"""

import numpy as np
import pytest

from shadeproxy.core.errors import StateError
from shadeproxy.core.off_loop import at_once
from shadeproxy.engine.index.prefix_groups import PrefixGroups
from shadeproxy.engine.index.residents import Residents
from shadeproxy.engine.placement import durable_histories
from shadeproxy.engine.placement.durable_histories import export, restore
from shadeproxy.engine.placement.histories import PageHistories

HASHES = np.random.default_rng(1).integers(1 << 62, size=5000, dtype=np.uint64) * np.uint64(3)
PAGE_SIZE, CAPACITY = 1 << 16, 1 << 24
NAMES = [("b", "train/", ""), ("b", "val/", "")]


class Process:
    """The read histories of one process, with the index that they belong to."""

    def __init__(self, capacity_bytes=CAPACITY):
        self.residents, self.groups = Residents(1), PrefixGroups()
        self.histories = PageHistories(self.residents, capacity_bytes, seed=3, off_loop=at_once)

    def enter(self, page, tick=0.0):
        slot = self.residents.add(int(HASHES[page]), 0, etag=1, body_bytes=10, group=0, tick=tick)
        self.histories.enter(slot, tick)
        return slot

    def learnt(self, page, tick):
        """Return the rate that was learnt for a page without a slot."""
        return self.histories.rates_of(HASHES[page : page + 1], np.zeros(1, np.uint32), tick)[0]

    def blocks(self, tick):
        return [encode() for encode in export(self.histories, NAMES, tick, PAGE_SIZE)]

    def restore(self, blocks, page_size=PAGE_SIZE):
        return restore(blocks, self.histories, self.groups, page_size)


@pytest.fixture
def first():
    """Return a process that has read pages 0 to 99 in turn, many times. Every other page has then left its
    slot.
    """
    process = Process()
    slots = [process.enter(page) for page in range(100)]
    for start in range(0, 3000, 100):
        process.histories.read_many(np.array(slots), np.arange(start + 1.0, start + 101.0))
    process.histories.learn(3000.0)
    for slot in slots[::2]:
        process.histories.leave(slot)
        process.residents.remove(slot)
    return process


def test_the_next_process_expects_what_the_first_one_did(first):
    second = Process()
    assert second.restore(first.blocks(3000.0)) == (3000.0, "")
    assert second.groups.names == NAMES
    kept = np.array([second.enter(page, 3000.0) for page in range(1, 100, 2)])
    expected = first.histories.rates(np.arange(1, 100, 2), 3050.0)
    assert expected.min() > 1e-4
    assert second.histories.rates(kept, 3050.0) == pytest.approx(expected, rel=0.2)
    assert second.learnt(4, 3050.0) == pytest.approx(first.learnt(4, 3050.0), rel=0.2)
    assert second.learnt(4000, 3050.0) == 0


def test_recovered_pages_get_the_history_that_was_kept_and_none_by_their_uses(first):
    second = Process()
    second.restore(first.blocks(3000.0))
    slots = np.array(
        [second.residents.add(int(HASHES[p]), 0, etag=1, body_bytes=9, group=0, tick=0.0) for p in (1, 4500)]
    )
    second.residents.uses[slots], second.residents.last_use[slots] = 1, 2000.0
    second.histories.enter_many(slots, 3000.0)
    known, unknown = (second.histories._of(slot) for slot in slots.tolist())
    assert (known.reads, known.last) == (9, 2902.0)
    assert unknown.reads == 0, "all its uses were explained by a job"


def test_a_cache_of_another_size_keeps_the_residents_and_what_was_learnt(first):
    second = Process(2 * CAPACITY)
    assert second.restore(first.blocks(3000.0)) == (3000.0, "ghosts of a cache of another size")
    assert second.learnt(4, 3050.0) == 0
    assert second.learnt(5, 3050.0) > 1e-4


def test_pages_of_another_size_are_refused(first):
    second = Process()
    with pytest.raises(StateError, match="they are of pages of 65,536 bytes, not of 4,096"):
        second.restore(first.blocks(3000.0), 4096)
    assert second.learnt(4, 3050.0) == 0


def test_there_may_be_nothing():
    assert Process().restore([]) == (0.0, "")


@pytest.mark.parametrize("damage", ["the learner", "the last block", "only a head"])
def test_nothing_is_half_restored(first, damage):
    blocks = first.blocks(3000.0)
    if damage == "only a head":
        del blocks[1:]
    else:
        blocks[1 if damage == "the learner" else -1] = b"nonsense"
    second = Process()
    with pytest.raises(StateError, match="a block cannot be read"):
        second.restore(blocks)
    assert second.groups.names == []
    assert not second.histories.ghosts.tag.any()
    slot = second.enter(4, 3000.0)
    second.histories.read(slot, 3001.0)
    assert second.histories.rates(np.array([slot]), 3001.0)[0] < 1e-9


def test_of_more_ghosts_than_are_kept_those_that_were_read_last_come_back(first, monkeypatch):
    for page in range(1000, 3000):
        first.histories.missed(int(HASHES[page]), 0, 2000.0 + page)
    monkeypatch.setattr(durable_histories, "MOST_GHOSTS", 1024)
    second = Process()
    second.restore(first.blocks(5000.0))
    kept = int(np.count_nonzero(second.histories.ghosts.tag))
    assert 900 < kept <= 1100
    assert second.learnt(2999, 5000.0) > 0
