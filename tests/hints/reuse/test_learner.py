"""The reuse learner. Observed reads change its table, and groups that are read often get a table of their
own.
"""

import numpy as np
import pytest

from shadeproxy.hints.reuse.learner import MOST_PREFIXES, ReuseLearner
from shadeproxy.policy.history import STATES, first_read, read_again

pytestmark = pytest.mark.usefixtures("kernel_form")
HASHES = np.random.default_rng(0).integers(1 << 63, size=200_000, dtype=np.uint64) * np.uint64(2)


def feed(learner, ids, start=0, groups=None, batch=256):
    for at in range(0, len(ids), batch):
        part = np.asarray(ids[at : at + batch])
        ticks = start + at + np.arange(1.0, len(part) + 1)
        of = np.zeros(len(part), dtype=np.intp) if groups is None else np.asarray(groups)[part]
        learner.observe(HASHES[part], of, ticks)
        if learner.is_due(float(ticks[-1])):
            learner.finish(learner.begin(float(ticks[-1]), 0).run())
    return start + len(ids)


def rate(learner, age, state=0, prefix=0):
    return learner.rate(prefix, state, age)


def test_pages_that_come_back_are_worth_more_than_pages_of_a_scan():
    loop, scan = ReuseLearner(1), ReuseLearner(1)
    feed(loop, list(range(500)) * 10)
    feed(scan, range(5000))
    assert rate(loop, 400.0) > 100 * rate(scan, 400.0)


def test_one_table_is_made_at_a_time_and_reads_meanwhile_are_not_lost():
    learner = ReuseLearner(1)
    feed(learner, list(range(100)) * 5)
    refresh = learner.begin(1000.0, 0)
    assert not learner.is_due(1e9)
    learner.observe(HASHES[:100], np.zeros(100, dtype=np.intp), 1000.0 + np.arange(100.0))
    learner.finish(refresh.run())
    assert learner.is_due(1e9)
    evidence = learner.begin(2000.0, 0)
    evidence.run()
    assert evidence.fresh.events.sum() == 100


def test_prefixes_are_told_apart_once_both_are_read_often():
    groups = np.where(np.arange(200_000) < 300, 0, 7)
    learner = ReuseLearner(1)
    for round_ in range(40):
        ids = np.concatenate([np.arange(300), 300 + 300 * round_ + np.arange(300)])
        feed(learner, ids, start=600 * round_, groups=groups)
    hot, scanned = learner.prefix(0), learner.prefix(7)
    assert hot != scanned
    often = first_read(0.0)
    for number in range(1, 10):
        often = read_again(often, 600.0 * number)
    assert rate(learner, 500.0, often.state, hot) == pytest.approx(1 / 600, rel=5)
    assert rate(learner, 500.0, often.state, hot) > 100 * rate(learner, 500.0, 0, scanned)
    assert learner.prefix(100_000) == 0


def test_a_million_groups_take_bounded_memory():
    learner = ReuseLearner(1)
    random = np.random.default_rng(1)
    for start in range(0, 200_000, 1000):
        part = np.arange(start, start + 1000)
        learner.observe(HASHES[part], random.integers(0, 4096, 1000), part + 1.0)
    learner.finish(learner.begin(200_000.0, 0).run())
    assert len(learner.hazards.rates) <= 64 * STATES * 40


def test_no_number_of_groups_makes_more_prefixes_than_the_most():
    learner, count = ReuseLearner(1), 2 * MOST_PREFIXES
    pages = np.arange(count * 1100)
    for tick in (0.0, 200_000.0):
        learner.observe(HASHES[pages], pages % count, tick + pages)
        learner.finish(learner.begin(tick + len(pages), 0).run())
    found = learner.prefixes(np.arange(count))
    assert set(found.tolist()) == set(range(MOST_PREFIXES))
    assert (found == 0).sum() == count - MOST_PREFIXES + 1, "the others share prefix 0"


def test_more_groups_than_prefixes_in_one_refresh_leave_no_row_without_a_table():
    learner = ReuseLearner(1)
    pages = np.arange(70 * 1100)
    learner.observe(HASHES[pages], pages % 70, pages + 1.0)
    refresh = learner.begin(80_000.0, 0)
    groups, states = np.arange(70), np.zeros(70, dtype=np.intp)
    assert (learner.rates(learner.prefixes(groups), states, np.ones(70)) > 0).all()
    learner.observe(HASHES[pages], pages % 70, 80_000.0 + pages)
    learner.finish(refresh.run())


def test_a_refresh_that_failed_costs_its_evidence_and_no_more():
    learner = ReuseLearner(1)
    feed(learner, list(range(100)) * 10)
    learner.begin(2000.0, 0)
    learner.fail()
    assert learner.is_due(1e9)
    feed(learner, list(range(100)) * 30, start=2000)
    assert rate(learner, 80.0) > 0
    assert learner.hazards.rates.max() > 1e-4
