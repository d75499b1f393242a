"""Expected next uses of pages, from the reads that jobs announce, and from their draws by score."""

import numpy as np
import pytest

from shadeproxy.policy.expected import JobColumns, expect
from shadeproxy.policy.hazard import LEAST_RATE

INF = np.inf


def test_draws_of_a_job_count_only_before_the_announced_use_and_after_its_order():
    order = JobColumns(np.array([50.0, INF]), np.array([0.01, 0.01]), 100.0)
    next_use, rate = expect([order], 2)
    assert next_use.tolist() == [50.0, INF]
    assert rate.tolist() == [0.0, pytest.approx(1 / (100 + 1 / 0.01))]


def test_the_earliest_of_several_jobs_counts_and_their_draws_add_up():
    jobs = [JobColumns(np.array([distance]), np.array([0.1]), 0.0, 1.0) for distance in (50.0, 20.0)]
    next_use, rate = expect(jobs, 1)
    assert (next_use[0], rate[0]) == (20.0, pytest.approx(0.2))


def test_no_job_says_nothing():
    next_use, rate = expect([], 3)
    assert np.isinf(next_use).all()
    assert not rate.any()


def test_a_page_announced_later_never_counts_as_nearer_because_its_job_is_in_doubt():
    distances = np.arange(10.0, 2000.0, 10.0)
    job = JobColumns(distances / 0.7, np.full(len(distances), 1e-3), 700.0, 0.3)
    next_use, rate = expect([job], len(distances))
    key = -np.expm1(-np.maximum(rate, LEAST_RATE) * next_use) / np.maximum(rate, LEAST_RATE)
    assert (np.diff(key) > 0).all()


def test_an_order_that_is_not_believed_leaves_all_pages_of_its_dataset_alike():
    job = JobColumns(np.array([50.0, 5000.0, INF]) / 1e-3, np.full(3, 1e-3), 0.0, 1.0)
    _, rate = expect([job], 3)
    assert rate == pytest.approx(np.full(3, 1e-3))


def test_what_a_job_said_stays_as_it_is():
    first, second = np.array([50.0, 5.0]), np.array([20.0, 70.0])
    jobs = [JobColumns(distance, np.zeros(2), 0.0) for distance in (first, second)]
    assert expect(jobs, 2)[0].tolist() == [20.0, 5.0]
    assert (first.tolist(), second.tolist()) == ([50.0, 5.0], [20.0, 70.0])


def test_columns_of_pages_that_no_job_announces_are_shared_and_refuse_to_be_written():
    for count in (0, 3, 5000):
        soonest, rates = expect([], count)
        assert len(soonest) == len(rates) == count
        assert np.isinf(soonest).all()
        assert not rates.any()
    (short, _), (again, _) = expect([], 3), expect([], 5)
    assert np.shares_memory(short, again)
    with pytest.raises(ValueError, match="read-only"):
        short[0] = 1.0
