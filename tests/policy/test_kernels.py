"""The compiled kernels and the Python code beside them give equal results, to the last bit."""

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.core.off_loop import at_once
from shadeproxy.engine.index.hash_table import page_hash
from shadeproxy.engine.index.residents import NewRows, Residents
from shadeproxy.engine.placement import histories as histories_module
from shadeproxy.engine.placement.histories import PageHistories
from shadeproxy.hints.reuse.ghosts import Ghosts
from shadeproxy.hints.reuse.sample import Reads, ReuseSample
from shadeproxy.policy import kernels
from shadeproxy.policy.hazard import Evidence, Hazards, Waits, gittins, learn
from shadeproxy.policy.history import AGE_BINS, GAP_GROUPS, STATES

pytestmark = pytest.mark.skipif(not kernels.COMPILED, reason="nothing is compiled")

ages = st.floats(0, 2.0**22) | st.integers(0, 2**21).map(float) | st.sampled_from([0.0, 1.0, 2.0, 2.0**0.5])
seeds = st.integers(0, 2**32 - 1)


def both(work):
    """Return the two results of ``work``: compiled and interpreted."""
    results = []
    for compiled in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernels, "COMPILED", compiled)
            results.append(work())
    return results


def columns_of(evidence):
    return [evidence.events, evidence.exposure, evidence.met, evidence.expected, evidence.fresh]


def same(one, other):
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right, strict=True)


@given(seeds, st.lists(st.tuples(st.integers(0, 2), st.integers(0, STATES - 1), ages, ages), max_size=40))
def test_evidence_of_waits_and_its_table(seed, rows):
    random = np.random.default_rng(seed)
    promised = Hazards(*(random.random(3 * STATES * AGE_BINS) for _ in range(3)))
    of, states = (np.array([row[at] for row in rows], np.intp) for at in (0, 1))
    since, until = (np.array([order(row[2:]) for row in rows], np.float64) for order in (min, max))
    empty = Evidence.empty(3)

    def work():
        evidence = copy.deepcopy(empty)
        for _ in range(2):
            evidence.expose(Waits(of, states, since, until), promised)
            evidence.meet(of, states, until)
        table = learn(evidence)
        return [*columns_of(evidence), table.rates, table.candidates, table.hazards]

    same(*both(work))


@given(seeds)
def test_indices_of_hazards(seed):
    random = np.random.default_rng(seed)
    hazards = 10.0 ** random.uniform(-18, 1, (random.integers(1, 30), AGE_BINS))
    hazards[random.random(hazards.shape) < 0.1] = 0.0
    prices = random.choice([0.05, 0.25], len(hazards))
    same(*both(lambda: gittins(hazards, prices)))


@given(seeds, st.integers(1, 12), st.booleans())
def test_histories_of_pages_in_slots_and_as_ghosts(seed, sets, taught):
    """With compiled code and without it, the histories of pages are equal. Pages are missed, get slots, lose
    them to other pages, and are read again. The table has room for only few ghosts.
    """

    def work():
        random, residents = np.random.default_rng(seed), Residents(1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(histories_module, "ghosts_for", lambda _bytes: 8 * sets)
            histories = PageHistories(residents, 1 << 20, seed=3, off_loop=at_once)
        learner, pages = histories.learner, random.integers(1 << 64, size=60, dtype=np.uint64)
        learner.put_off(1 << 50)
        learner.prefix_of[:3] = [0, 1, 2]
        tables = random.random((2, 3 * STATES * AGE_BINS)) if taught else np.ones((2, 3 * STATES * AGE_BINS))
        learner.hazards, learner._fresh = Hazards(*tables, tables[0]), Evidence.empty(3)
        tick, known, slots = float(random.integers(1 << 40)), [], np.empty(0, np.int64)
        for turn in range(12):
            coming = random.choice(60, random.integers(1, 20), replace=turn % 3 == 0)
            numbers = random.integers(0, 2, len(coming)).astype(np.uint32)
            for one, number in zip(coming.tolist(), numbers.tolist(), strict=True):
                tick += float(random.integers(0, 2**turn))
                hashed = pages.item(one)
                if residents.occupant(hashed, number) is None:
                    histories.missed(page_hash(hashed, number), one % 3, tick)
            known.append(histories.rates_of(pages[coming], numbers, tick))
            new = [
                at
                for at, one in enumerate(zip(coming.tolist(), numbers.tolist(), strict=True))
                if residents.occupant(pages.item(one[0]), one[1]) is None
                and one not in [(coming[n], numbers[n]) for n in range(at)]
            ]
            rows = rows_of(pages[coming[new]], numbers[new], coming[new] % 3, tick)
            if not new:
                continue
            if turn % 2 or len(slots) < len(new):
                slots = np.append(slots, histories.add_many(rows, 0))
            else:
                histories.take_over(random.choice(slots, len(new), replace=False), rows)
            histories.read_many(read := random.choice(slots, 5), tick + np.arange(1.0, 6.0))
            known.append(histories.rates(slots, tick := tick + 5, displacing=int(read[0]) % len(slots)))
        ghosts = histories.ghosts
        asked = ghosts.find_many(pages, tick)
        ghosts.put_many(pages[::-1], asked)
        return [*known, *asked, *ghosts.columns(), *histories.of_residents(0, 100).histories]

    same(*both(work))


@given(seeds, st.integers(1, 40))
def test_samples_that_are_halved(seed, most):
    pages = np.random.default_rng(seed).integers(1 << 64, size=120, dtype=np.uint64)

    def work():
        random, sample, evidence = (
            np.random.default_rng(seed),
            ReuseSample(seed, most=most),
            Evidence.empty(3),
        )
        tick, tables = 0.0, random.random((3, 3 * STATES * AGE_BINS))
        for _ in range(8):
            count = int(random.integers(0, 60))
            ticks = tick + np.cumsum(random.integers(1, 9, count)).astype(np.float64)
            lasts, groups = ticks + random.integers(0, 2, count), random.integers(0, 4, count)
            reads = Reads(random.choice(pages, count), groups, ticks, lasts)
            sample.observe(reads, evidence, Hazards(*tables), np.array([0, 1, 2, 0]))
            tick += 1000.0
            waits = sample.waiting(tick, np.array([0, 1, 2, 0]))
        return [*waits, *sample.state(), *columns_of(evidence)]

    same(*both(work))


def rows_of(hashes, numbers, groups, tick):
    ones = np.ones(len(hashes), np.int64)
    return NewRows(hashes, numbers, hashes, groups.astype(np.intp), ones, ones, ones * 0.0, tick)


@given(seeds)
def test_ghosts_that_share_a_set_displace_each_other_in_turn(seed):
    random = np.random.default_rng(seed)
    pages, prefix_of = random.integers(1 << 64, size=40, dtype=np.uint64), np.arange(3)
    # Without compiled code, few pages are read one by one, and many as columns.
    counts, base = random.integers(1, 40, 6).tolist(), float(random.integers(1 << 34))

    def work():
        ghosts, tick, rng = Ghosts(8 * 16), base, np.random.default_rng(seed)
        found = []
        for count in counts:
            chosen = rng.choice(pages, count).tolist()
            ticks = [tick := tick + float(gap) for gap in rng.integers(0, 40, count).tolist()]
            ghosts.read_many(
                [*zip(chosen, rng.integers(0, 3, count).tolist(), ticks, strict=True)], prefix_of
            )
            found += ghosts.find_many(pages, tick)
        return [*found, *ghosts.columns()]

    same(*both(work))


def test_what_does_not_fit_is_refused_before_a_loop():
    one, table = np.zeros(1), np.zeros((STATES, AGE_BINS))
    index, column = np.zeros(1, np.intp), np.zeros(STATES * AGE_BINS)
    expected = np.zeros(GAP_GROUPS)
    for wrong in (np.array([-1]), np.array([STATES])):
        with pytest.raises(IndexError):
            kernels.expose(table, expected, column, index, wrong, one, one)
    with pytest.raises(IndexError):
        kernels.expose(table, expected, column, index + 1, index, one, one)
    for columns in ((column[1:], index), (column, np.zeros(2, np.intp))):
        with pytest.raises(ValueError, match="different"):
            kernels.expose(table, expected, columns[0], index, columns[1], one, one)
    with pytest.raises(ValueError, match="different"):
        kernels.gittins(table, table[1:], np.zeros(STATES), table, table)


def test_slots_and_columns_that_do_not_fit_are_refused():
    columns = [np.zeros(16, kind) for kind in (np.uint32, np.uint32, np.uint8, np.uint8, np.uint8, np.uint8)]
    with pytest.raises(ValueError, match="different"):
        kernels.GhostKernels(*columns[:5], columns[5][1:])
    ghosts = kernels.GhostKernels(*columns)
    histories, column, index = kernels.HistoryKernels(ghosts), np.ones(4), np.ones(4, np.intp)
    histories.bind(column, column, index, index)
    hashes, numbers, groups = np.ones(4, np.uint64), np.ones(4, np.uint32), np.zeros(4, np.int32)
    for slots in (np.array([4]), np.array([-1])):
        with pytest.raises(IndexError):
            histories.rates(slots, 0, 1.0, groups, index, column, column)
        with pytest.raises(IndexError):
            histories.enter(slots, hashes[:1], numbers[:1], 1.0)
        with pytest.raises(IndexError):
            histories.exchange(slots, hashes[:1], numbers[:1], 1.0, hashes, numbers, groups, index)
    with pytest.raises(IndexError):
        histories.rates(np.array([0]), 0, 1.0, groups, index, column, column)
    with pytest.raises(ValueError, match="different"):
        histories.enter(np.array([0]), hashes, numbers[:1], 1.0)
    with pytest.raises(ValueError, match="different"):
        histories.exchange(np.array([0]), hashes, numbers[:1], 1.0, hashes, numbers, groups, index)
    with pytest.raises(ValueError, match="different"):
        ghosts.put_many(hashes, column, column, index, index, index[1:])
    with pytest.raises(ValueError, match="different"):
        ghosts.rates(hashes, numbers[1:], 1.0, column)
    sample = kernels.SampleKernels(index, index, index, column, column, column)
    observed = (hashes, index, column, column)
    found, ages = np.zeros((2, 4), np.intp), np.zeros((2, 4))
    for row in (
        (observed, 0, found[:, :3].copy(), ages),
        ((hashes, index[1:], column, column), 0, found, ages),
    ):
        with pytest.raises(ValueError, match="different"):
            sample.observe({}, 0, 1 << 63, *row[0], *row[1:], 0)
    with pytest.raises(IndexError):
        sample.observe({}, 0, 1 << 63, *observed, 5, found, ages, 0)
    with pytest.raises(IndexError):
        sample.observe({}, 0, 1 << 63, *observed, 0, found, ages, 1)
    with pytest.raises(ValueError, match="different"):
        kernels.SampleKernels(index, index, index[1:], column, column, column)
    ghosts.read_many([(1, 0, 1.0)], index)
    with pytest.raises(IndexError):
        ghosts.rates(hashes, numbers * 0, 1.0, column)
    with pytest.raises(ValueError, match="different"):
        histories.bind(column, column, index, index[1:])
