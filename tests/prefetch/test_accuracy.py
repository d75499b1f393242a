"""Guesses of a prefix group are fetched only while most of them turn out right."""

import pytest

from shadeproxy.engine.index.hash_table import page_hash
from shadeproxy.prefetch.accuracy import GuessAccuracy

GROUP = 3
PAGES = [(hashed, 1) for hashed in range(1, 4000) if page_hash(hashed, 1) % 8]


class Guesses:
    """Guesses, each repaid by five hits. ``hits``: the hits of those that are still in the cache."""

    def __init__(self):
        self.accuracy = GuessAccuracy()
        self.hits = {}
        self.pages = iter(PAGES)

    def guess(self, *, hits, late=False):
        """Fetch the next page, judge it after so many hits, and drop it from the cache. ``late``: a reader
        asks for it while it is on its way.
        """
        page, before = next(self.pages), dict(self.hits)
        self.hits[page] = hits
        self.accuracy.note_fetched(page, GROUP, 5, self.hits.get, read=late)
        self.hits = before

    @property
    def trusted(self):
        return self.accuracy.trusts(PAGES[0], GROUP)


@pytest.fixture
def guesses():
    return Guesses()


def test_a_new_group_is_trusted_until_three_guesses_left_unread(guesses):
    for _ in range(3):
        assert guesses.trusted
        guesses.guess(hits=0)
    guesses.guess(hits=5)  # A guess is judged when a later one arrives.
    assert not guesses.trusted
    assert guesses.accuracy.trusts(PAGES[0], GROUP + 1)


@pytest.mark.parametrize("late", [False, True])
def test_a_reader_in_a_row_stays_trusted_although_each_tenth_guess_is_in_vain(guesses, late):
    for number in range(500):
        guesses.guess(hits=5 * (number % 10 > 0), late=late and number % 10 > 0)
        assert guesses.trusted


def test_guesses_of_which_half_are_right_are_not_trusted(guesses):
    """At random, many unread pages are read by chance before they leave, as the displaced pages would be."""
    for number in range(100):
        guesses.guess(hits=5 * (number % 2))
    assert not guesses.trusted


def test_a_few_hits_before_a_page_leaves_do_not_repay_it(guesses):
    for _ in range(10):
        guesses.guess(hits=4)
    assert not guesses.trusted


def test_an_untrusted_group_is_tested_by_one_page_in_eight_and_recovers(guesses):
    for _ in range(30):
        guesses.guess(hits=0)
    trusted = [
        page for page in ((hashed, 1) for hashed in range(1, 801)) if guesses.accuracy.trusts(page, GROUP)
    ]
    assert 60 <= len(trusted) <= 140
    for _ in range(30):
        guesses.guess(hits=5)
    assert guesses.trusted


def test_resident_guesses_are_not_judged_and_do_not_hide_those_that_have_left(guesses):
    """Many guesses stay unread in the cache. Those behind them leave."""
    for page in PAGES[1000:1100]:
        guesses.hits[page] = 4
        guesses.accuracy.note_fetched(page, GROUP, 5, guesses.hits.get, read=False)
    assert guesses.trusted
    for _ in range(60):
        guesses.guess(hits=0)
    assert not guesses.trusted


def test_guesses_that_are_not_judged_yet_are_bounded(guesses):
    for page in PAGES[:3000]:
        guesses.accuracy.note_fetched(page, GROUP, 5, lambda _: 0, read=False)
    assert len(guesses.accuracy.open) == 1024


def test_a_guess_that_one_hit_repays_is_right_at_its_first_read(guesses):
    """Its reader goes on to the next page. When that one comes, the page has left already."""
    for page in PAGES[:20]:
        guesses.hits[page] = 0
        guesses.accuracy.note_fetched(page, GROUP, 1, guesses.hits.get, read=False)
        guesses.hits[page] = 1
        guesses.accuracy.note_read(page, guesses.hits.get)
        del guesses.hits[page]
        assert guesses.trusted
    assert not guesses.accuracy.open


def test_guesses_are_judged_when_the_reader_of_the_next_one_begins(guesses):
    before = None
    for page in PAGES[:20]:
        guesses.hits[page] = 0
        guesses.accuracy.note_fetched(page, GROUP, 5, guesses.hits.get, read=False)
        guesses.hits[page] = 1
        guesses.accuracy.note_read(page, guesses.hits.get)
        guesses.hits[page] = 5
        guesses.hits.pop(before, None)
        before = page
        assert guesses.trusted


def test_a_guess_that_left_unread_is_wrong_although_it_is_fetched_again_for_a_reader(guesses):
    for page in PAGES[:5]:
        guesses.hits[page] = 0
        guesses.accuracy.note_fetched(page, GROUP, 1, guesses.hits.get, read=False)
        del guesses.hits[page]
        guesses.accuracy.note_missed(page)
        guesses.hits[page] = 1
    assert not guesses.trusted
