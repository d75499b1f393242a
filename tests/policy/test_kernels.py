"""The compiled kernels and the Python code beside them: equal results, to the last bit."""

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.policy import kernels
from shadeproxy.policy.hazard import Evidence, Hazards, Waits, gittins, learn
from shadeproxy.policy.history import AGE_BINS, GAP_GROUPS, STATES

pytestmark = pytest.mark.skipif(not kernels.COMPILED, reason="nothing is compiled")

ages = st.floats(0, 2.0**22) | st.integers(0, 2**21).map(float) | st.sampled_from([0.0, 1.0, 2.0, 2.0**0.5])
seeds = st.integers(0, 2**32 - 1)


def both(work):
    """Return the results of ``work``, compiled and interpreted."""
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
