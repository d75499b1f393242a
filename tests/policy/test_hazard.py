"""Learnt hazards: evidence, priors, forgetting, surprise, and the index by which pages are ranked."""

import numpy as np
import pytest

from shadeproxy.policy.hazard import LEAST_RATE, Evidence, Hazards, Waits, gittins, learn
from shadeproxy.policy.history import AGE_BINS, EDGES, STATES, age_bin

pytestmark = pytest.mark.usefixtures("kernel_form")
ONE = np.zeros(1, dtype=np.intp)


def waits(until, since=0.0, state=0, prefix=0):
    return Waits(ONE + prefix, ONE + state, np.array([float(since)]), np.array([float(until)]))


def taught(*pairs, evidence=None, state=0, unread=()):
    """Return evidence of page reads. ``pairs`` are (age, times) of pages that were read. ``unread`` are (age,
    times) of pages that still wait.
    """
    evidence = evidence or Evidence.empty(1)
    for age, times in pairs:
        for _ in range(times):
            evidence.expose(waits(age, state=state), Hazards.unknown(evidence.prefixes))
            evidence.meet(ONE, ONE + state, np.array([float(age)]))
    for age, times in unread:
        for _ in range(times):
            evidence.expose(waits(age, state=state), Hazards.unknown(evidence.prefixes))
    return evidence


def rate(hazards, age, state=0, prefix=0):
    return hazards.rates[(prefix * STATES + state) * AGE_BINS + age_bin(age)]


def test_exposure_of_a_wait_lies_in_the_bins_that_it_crosses():
    evidence = Evidence.empty(1)
    evidence.expose(waits(1000.0, since=3.0), Hazards.unknown(1))
    cells = evidence.exposure[0]
    assert cells.sum() == pytest.approx(997.0)
    assert cells[age_bin(500.0)] == pytest.approx(EDGES[age_bin(500.0) + 1] - EDGES[age_bin(500.0)])
    assert np.flatnonzero(cells).tolist() == list(range(age_bin(3.0), age_bin(1000.0) + 1))
    evidence.expose(waits(2.0**30, since=2.0**29), Hazards.unknown(1))
    assert evidence.exposure[0, -1] == pytest.approx(2.0**29), "the last bin holds every greater age"


def test_nothing_known_ranks_all_pages_alike():
    rates = Hazards.unknown(2).rates
    assert (rates == rates[0]).all()
    assert rates[0] > 1000 * LEAST_RATE, "a page that was read before beats one that was not"


def test_pages_that_are_read_at_one_age_are_worth_most_just_before_it():
    hazards = learn(taught((1000, 50)))
    assert rate(hazards, 900) > 2 * rate(hazards, 10)
    assert rate(hazards, 10) == pytest.approx(1 / 1000, rel=0.6)


def test_silence_teaches_while_it_lasts():
    read = taught((100, 50))
    ended = taught((100, 50), unread=[(20_000, 50)])
    assert rate(learn(ended), 15_000) < rate(learn(read), 15_000) / 20


def test_a_state_without_evidence_takes_the_rates_of_all_pages():
    hazards = learn(taught((100, 50)))
    assert rate(hazards, 50, state=17) == pytest.approx(rate(hazards, 50, state=0), rel=0.3)


def test_a_prefix_without_evidence_takes_those_of_its_state():
    evidence = taught((100, 50), evidence=Evidence.empty(2))
    hazards = learn(evidence)
    assert rate(hazards, 50, prefix=1) == pytest.approx(rate(hazards, 50), rel=0.3)


def test_full_cells_forget_in_evidence_not_in_time():
    evidence = taught((100, 1000))
    usual = rate(learn(evidence), 50)
    assert evidence.events.sum() <= 100
    before = evidence.events.copy()
    assert rate(learn(evidence), 50) == pytest.approx(usual, rel=0.05)
    assert evidence.events == pytest.approx(before, rel=0.02), "nothing came, so nothing is forgotten"


def surprised(state):
    """Return the usual rate of a page, and its rate after 600 pages have waited in vain for expected
    reads.
    """
    evidence = taught((100, 200), state=state)
    known = learn(evidence)
    for _ in range(600):
        evidence.expose(waits(100.0, state=state), known)
    return rate(known, 60, state), rate(learn(evidence), 60, state)


def test_far_fewer_reads_than_expected_lower_the_rates_at_once():
    usual, now = surprised(state=17)
    assert now < usual / 2
    assert now > usual / 100, "a pause looks like an end"


def test_pages_that_were_read_once_lose_less_by_surprise():
    """Pages that were read only once lose less of their rate by a surprise. The first pages of a new dataset
    are read again only in its second epoch, and until then look silent.
    """
    usual, now = surprised(state=0)
    assert now < usual / 2
    assert now > 1.4 * surprised(state=17)[1]


def test_the_index_is_the_best_ratio_over_all_times_to_wait():
    random = np.random.default_rng(3)
    hazards = random.random((5, AGE_BINS)) ** 4 / np.maximum(EDGES[1:], 10)
    widths = np.diff(EDGES)
    prices = np.array([0.0, 0.1, 0.2, 0.5, 0.9])
    for row, price, found, left in zip(hazards, prices, *gittins(hazards, prices), strict=True):
        for age in range(0, AGE_BINS, 7):
            alive, held, best, repaid = 1.0, 0.0, 0.0, 0.0
            for hazard, width in zip(row[age:], widths[age:], strict=True):
                held += alive * -np.expm1(-hazard * width) / hazard
                alive *= np.exp(-hazard * width)
                best = max(best, (1 - alive) / held)
                repaid = max(repaid, (1 - alive - price) / held)
            assert found[age] == pytest.approx(best, rel=1e-6)
            assert left[age] == pytest.approx(repaid, rel=1e-6, abs=LEAST_RATE)


def test_a_candidate_that_is_surely_read_pays_a_little_for_its_store():
    hazards = learn(taught((1000, 50)))
    for state, price in ((0, 0.05), (17, 0.05), (STATES - 1, 0.25)):
        at = state * AGE_BINS + age_bin(1)
        assert hazards.candidates[at] == pytest.approx((1 - price) * hazards.rates[at], rel=0.02)


def test_a_candidate_that_is_rarely_read_again_does_not_repay_its_store():
    """An admission candidate that is rarely read again does not repay its store. One in forty such pages is
    read again, and soon. Its rate is high for a short time. In this time it saves less than its store costs.
    """
    hazards = learn(taught((100, 50), unread=[(2.0**18, 2000)]))
    resident, candidate = hazards.rates[age_bin(1)], hazards.candidates[age_bin(1)]
    assert resident > 1e-4
    assert candidate < resident / 20


def test_a_page_that_is_always_read_at_a_bound_of_a_bin_is_surely_read():
    """A page that is always read exactly at a bound of a bin is expected with certainty. All reads come at
    age 8, where a bin begins. So no page waits within this bin.
    """
    hazards = learn(taught((8, 50), state=17))
    at = 17 * AGE_BINS + age_bin(1)
    assert hazards.rates[at] == pytest.approx(1 / 7, rel=0.1)
    assert hazards.candidates[at] > hazards.rates[at] / 2


def test_evidence_grows_by_prefixes_and_adds_up():
    evidence = taught((100, 5)).grown(3)
    assert evidence.prefixes == 3
    evidence.add(taught((100, 2), evidence=Evidence.empty(3)))
    assert evidence.events.sum() == 7
    assert evidence.events[STATES:].sum() == 0
