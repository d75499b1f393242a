"""Read histories follow their pages into a slot, out of it, and over a restart."""

import numpy as np
import pytest

from shadeproxy.core.off_loop import at_once
from shadeproxy.engine.index.hash_table import page_hash
from shadeproxy.engine.index.residents import Residents
from shadeproxy.engine.placement.histories import PageHistories

pytestmark = pytest.mark.usefixtures("kernel_form")


@pytest.fixture
def residents():
    return Residents(1)


@pytest.fixture
def histories(residents):
    return PageHistories(residents, 1 << 24, seed=3, off_loop=at_once)


HASHES = (
    np.random.default_rng(1).integers(1 << 63, size=5000, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
).tolist()


def enter(residents, histories, page, tick=0.0):
    slot = residents.add(HASHES[page], 0, etag=1, body_bytes=10, group=0, tick=tick)
    histories.enter(slot, tick)
    return slot


def teach(residents, histories, period=100, rounds=30):
    """Read pages from number 1,000 on in turn, many times. The learner then expects frequent reads of such
    pages.
    """
    slots = [enter(residents, histories, 1000 + n) for n in range(period)]
    ticks = np.arange(1.0, period * rounds + 1)
    histories.read_many(np.array(slots * rounds), ticks)
    histories.learn(ticks[-1])
    return float(ticks[-1])


def test_reads_one_by_one_and_many_at_once_teach_the_same(residents):
    random = np.random.default_rng(2)
    one, many = (PageHistories(residents, 1 << 24, seed=3, off_loop=at_once) for _ in range(2))
    slots = np.array(
        [residents.add(HASHES[n], 0, etag=1, body_bytes=9, group=0, tick=0.0) for n in range(40)]
    )
    reads, ticks = slots[random.integers(0, 40, 600)], np.arange(1.0, 601.0)
    for slot, tick in zip(reads.tolist(), ticks.tolist(), strict=True):
        one.read(slot, tick)
    for start in range(0, 600, 100):
        many.read_many(reads[start : start + 100], ticks[start : start + 100])
    for histories in (one, many):
        histories.learn(601.0)
    assert many.rates(slots, 601.0) == pytest.approx(one.rates(slots, 601.0), rel=0.6)
    assert [many._of(slot) for slot in slots.tolist()] == [one._of(slot) for slot in slots.tolist()]


def test_a_page_takes_its_history_out_of_its_slot_and_into_the_next(residents, histories):
    tick = teach(residents, histories)
    slot = enter(residents, histories, 1, tick)
    assert histories.rates(np.array([slot]), tick)[0] == 0, "no reader is known"
    for read in range(4):
        histories.read(slot, tick + 100.0 * read)
    known = histories.rates(np.array([slot]), tick + 300)[0]
    histories.leave(slot)
    residents.remove(slot)
    ghost = histories.rates_of(np.array(HASHES[1:2], np.uint64), np.zeros(1, np.uint32), tick + 300)[0]
    assert ghost == pytest.approx(known)
    other = enter(residents, histories, 2, tick + 300)
    assert histories.rates(np.array([other]), tick + 300)[0] == 0, "the slot has another page now"
    back = enter(residents, histories, 1, tick + 300)
    assert histories.rates(np.array([back]), tick + 300)[0] == pytest.approx(known)


def test_misses_count_before_a_page_has_a_slot(residents, histories):
    tick = teach(residents, histories)
    for read in range(4):
        histories.missed(HASHES[1], 0, tick + 100.0 * read)
    slot = enter(residents, histories, 1, tick + 300)
    assert histories._of(slot).reads == 4
    assert histories.rates(np.array([slot]), tick + 300)[0] > 0


@pytest.fixture
def tick(residents, histories):
    """Return the tick after many reads: each page was read again after four reads, ten times in all."""
    tick = 0.0
    for start in range(1000, 1200, 4):
        slots = [enter(residents, histories, start + n) for n in range(4)]
        for slot in 10 * slots:
            tick += 1
            histories.read(slot, tick)
    histories.learn(tick)
    return tick


def rate_of(histories, page, tick):
    return histories.rates_of(np.array([HASHES[page]], np.uint64), np.zeros(1, np.uint32), tick)[0]


def test_the_time_that_a_page_was_under_way_says_nothing_about_its_next_read(histories, tick):
    """A reader in a row waits for each part before it asks for the next."""
    for page in (1, 2):
        for read in range(3):
            histories.missed(HASHES[page], 0, tick + 4 * read)
    soon = rate_of(histories, 1, tick + 8)
    histories.arrived([HASHES[1], HASHES[3]], [0, 0], tick + 100)
    assert rate_of(histories, 1, tick + 100) == pytest.approx(soon)
    assert rate_of(histories, 2, tick + 100) < soon / 2, "this page has not come"
    assert rate_of(histories, 3, tick + 100) == 0, "no read waited for this page"
    assert histories.ghosts.find(HASHES[1], tick + 100).history.reads == 3


def test_a_page_that_no_new_read_waited_for_keeps_its_age(histories, tick):
    """An order or scores explain the read, or the page is prefetched."""
    for read in range(3):
        histories.missed(HASHES[1], 0, tick + 4 * read)
    histories.arrived([HASHES[1]], [0], tick + 8)
    late = rate_of(histories, 1, tick + 100)
    histories.arrived([HASHES[1]], [0], tick + 100)
    assert rate_of(histories, 1, tick + 100) == late


def test_pages_that_never_come_are_not_awaited_for_ever(histories):
    for number in range(80_000):
        histories.missed(page_hash(HASHES[1], number), 0, float(number))
    assert len(histories._awaited) <= 32_768 + 64


def test_a_page_is_awaited_while_ten_thousand_others_are(histories):
    for number in range(80_000):
        histories.missed(page_hash(HASHES[1], number), 0, float(number))
        assert number < 10_000 or page_hash(HASHES[1], number - 10_000) in histories._awaited


def test_pages_of_an_earlier_process_get_a_history_from_their_uses(residents, histories):
    slots = np.array([enter(residents, histories, n, 0.0) for n in range(3)])
    residents.uses[slots] = [0, 1, 11]
    residents.admitted[slots], residents.last_use[slots] = -1000.0, [-1000.0, -1000.0, -50.0]
    histories.enter_many(slots, 0.0)
    never, once, often = (histories._of(slot) for slot in slots.tolist())
    assert never.reads == 0
    assert (once.reads, once.last, once.state) == (1, -1000.0, 0)
    assert often.reads == 2
    assert often.gap == pytest.approx(95.0)
    assert often.last == -50.0


def test_columns_grow_with_the_table(residents, histories):
    slots = [enter(residents, histories, n) for n in range(3000)]
    histories.read(slots[-1], 1.0)
    assert histories._of(slots[-1]).reads == 1
    assert histories._of(slots[0]).reads == 0


def test_of_thousands_of_hits_at_once_those_of_one_page_count_as_one(residents, histories):
    slots = np.array([enter(residents, histories, n) for n in range(3)])
    ticks = np.arange(1.0, 4001.0)
    histories.read_many(slots[np.arange(4000) % 2], ticks)
    histories.read_many(slots[np.arange(4000) % 2], 4000 + ticks)
    first, second, unread = (histories._of(slot) for slot in slots.tolist())
    assert (first.reads, first.gap, first.last) == (2, 2.0, 7999.0)
    assert (second.reads, second.gap, second.last) == (2, 2.0, 8000.0)
    assert unread.reads == 0
