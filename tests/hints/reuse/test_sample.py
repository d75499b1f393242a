"""The reuse sample: the pages whose reads teach the learner. Each has a history of its own."""

import numpy as np
import pytest

from shadeproxy.hints.reuse.sample import Reads, ReuseSample
from shadeproxy.policy.hazard import Evidence, Hazards
from shadeproxy.policy.history import Histories

pytestmark = pytest.mark.usefixtures("kernel_form")
HASHES = np.random.default_rng(0).integers(1 << 63, size=5000, dtype=np.uint64) * np.uint64(2)


def test_the_sample_holds_its_maximum_by_halving_what_it_takes():
    sample, evidence = ReuseSample(3, most=100), Evidence.empty(1)
    groups, prefix_of = np.zeros(5000, dtype=np.intp), np.zeros(1, dtype=np.intp)
    for round_ in range(3):
        ticks = 5000.0 * round_ + np.arange(5000)
        sample.observe(Reads(HASHES[:5000], groups, ticks, ticks), evidence, Hazards.unknown(1), prefix_of)
        assert 20 < len(sample) <= 100
    # Each round samples the same pages. So every page that is still in the sample was read again.
    assert evidence.events.sum() >= 2 * len(sample) * 0.8


def test_the_sample_depends_on_its_secret():
    taken = []
    for seed in (1, 2):
        sample, evidence = ReuseSample(seed, most=100), Evidence.empty(1)
        reads = Reads(HASHES[:5000], np.zeros(5000, dtype=np.intp), np.arange(5000.0), np.arange(5000.0))
        sample.observe(reads, evidence, Hazards.unknown(1), np.zeros(1, dtype=np.intp))
        waits = sample.waiting(5000.0, np.zeros(1, dtype=np.intp))
        taken.append(set((5000.0 - waits.until).tolist()))
    assert len(taken[0] & taken[1]) < 20


def test_pages_that_wait_longer_than_the_table_reaches_leave_the_sample():
    sample, evidence = ReuseSample(3), Evidence.empty(1)
    prefix_of = np.zeros(1, dtype=np.intp)
    reads = Reads(HASHES[:100], np.zeros(100, dtype=np.intp), np.arange(100.0), np.arange(100.0))
    sample.observe(reads, evidence, Hazards.unknown(1), prefix_of)
    sample.waiting(2.0**21, prefix_of)
    assert len(sample) == 0


def test_waits_count_once():
    sample, evidence, prefix_of = ReuseSample(3), Evidence.empty(1), np.zeros(1, dtype=np.intp)
    none = Hazards.unknown(1)
    reads = Reads(HASHES[:1], np.zeros(1, dtype=np.intp), np.array([0.0]), np.array([0.0]))
    sample.observe(reads, evidence, none, prefix_of)
    for tick in (10.0, 50.0, 300.0):
        evidence.expose(sample.waiting(tick, prefix_of), none)
    assert evidence.exposure.sum() == pytest.approx(300.0)
    sample.observe(
        reads._replace(ticks=np.array([1000.0]), lasts=np.array([1000.0])), evidence, none, prefix_of
    )
    assert evidence.exposure.sum() == pytest.approx(1000.0)
    assert evidence.events.sum() == 1


def test_quick_reads_that_count_as_one_wait_from_the_latest_on():
    sample, evidence, prefix_of = ReuseSample(3), Evidence.empty(1), np.zeros(1, dtype=np.intp)
    none, group = Hazards.unknown(1), np.zeros(1, dtype=np.intp)
    for tick, end in ((0.0, 40.0), (100.0, 140.0)):
        reads = Reads(HASHES[:1], group, np.array([tick]), np.array([end]))
        sample.observe(reads, evidence, none, prefix_of)
    assert (evidence.events.sum(), evidence.exposure.sum()) == (1, pytest.approx(60.0))
    assert sample.waiting(150.0, prefix_of).until.tolist() == [10.0]


def test_the_sample_grows_again_after_a_scan():
    sample, evidence, prefix_of = ReuseSample(3, most=400), Evidence.empty(1), np.zeros(1, dtype=np.intp)
    none = Hazards.unknown(1)

    def read(pages, tick):
        ticks = tick + np.arange(float(len(pages)))
        reads = Reads(HASHES[pages], np.zeros(len(pages), dtype=np.intp), ticks, ticks)
        sample.observe(reads, evidence, none, prefix_of)

    read(np.arange(5000), 0.0)
    assert sample._below < 1 << 62
    for round_ in range(20):
        tick = 2.0**20 + 1000.0 * round_
        read(np.arange(100), tick)
        sample.waiting(tick + 500, prefix_of)
    read(np.arange(100), 2.0**21 - 2.0**19)
    assert len(sample) == 100


def test_pages_of_an_earlier_process_wait_from_now_on():
    sample = ReuseSample(0)
    pages = np.array([5, 6], np.uint64)
    told = Histories(np.array([100.0, 200.0]), np.array([0.0, 50.0]), np.array([1, 2]), np.array([0, 17]))
    sample.enter(pages, np.array([0, 0]), told, 1000.0)
    waits = sample.waiting(1500.0, np.zeros(1, np.intp))
    assert waits.states.tolist() == [0, 17]
    assert waits.since.tolist() == [900.0, 800.0], "what they waited before taught already"
    assert waits.until.tolist() == [1400.0, 1300.0]
    sample.enter(pages, np.array([0, 0]), told, 2000.0)
    assert sample.waiting(2000.0, np.zeros(1, np.intp)).since.tolist() == [1400.0, 1300.0]


def test_a_sample_that_is_halved_among_reads_still_finds_its_pages():
    """A sample that is halved in the middle of a batch of reads still finds its pages. Each further read of a
    page that stays adds one read to its history.
    """
    sample, evidence, prefix_of = ReuseSample(3, most=64), Evidence.empty(1), np.zeros(1, dtype=np.intp)
    pages = np.concatenate([HASHES[:60], HASHES[1000:1040], HASHES[:60]])
    groups, ticks = np.zeros(160, dtype=np.intp), np.arange(160.0)
    sample.observe(Reads(pages, groups, ticks, ticks), evidence, Hazards.unknown(1), prefix_of)
    state = sample.state()
    again = np.isin(state.pages, sample._mix(HASHES[:60]))
    assert 10 < again.sum() < 60
    assert set(state.reads[again].tolist()) == {2}
    assert set(state.reads[~again].tolist()) == {1}
    assert set((state.last - state.gap)[again].tolist()) <= set(range(60))
    assert evidence.met.sum() == again.sum()
