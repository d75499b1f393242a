import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.hints.datasets import Groups
from shadeproxy.hints.scoreboard import ScoreColumn

SCORES = st.floats(0, 2.0**127, width=32) | st.floats(0, 2, width=32)
BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 11), SCORES), max_size=20), max_size=8)


def put(column, batch):
    ids = np.array([item for item, _ in batch], dtype=np.int64)
    column.set(ids, np.array([score for _, score in batch], dtype=np.float32))


@given(batches=BATCHES)
def test_a_column_is_a_dict_whose_mean_weighs_one(batches):
    column, model = ScoreColumn(12, None, None), {}
    for batch in batches:
        put(column, batch)
        model.update(batch)
        assert column.known == len(model)
        weights = column.weights(np.arange(12))
        assert np.isnan(weights).tolist() == [item not in model for item in range(12)]
        if model:
            mean = sum(model.values()) / len(model)
            expected = [score / mean if mean else 1.0 for score in model.values()]
            assert weights[list(model)] == pytest.approx(expected, rel=1e-4, abs=1e-300)


def test_of_an_id_that_comes_twice_the_last_score_counts():
    column = ScoreColumn(4, None, None)
    put(column, [(1, 9.0), (2, 1.0), (1, 3.0)])
    assert column.values[1] == 3.0
    assert column.mean == 2.0


def test_a_giant_that_leaves_takes_nothing_with_it():
    column = ScoreColumn(3, None, None)
    put(column, [(0, 1.0), (1, 3e38)])
    put(column, [(1, 3.0)])
    assert column.mean == 2.0


def test_unknown_and_outside_samples_weigh_nan():
    column = ScoreColumn(4, None, None)
    put(column, [(3, 1.0)])
    assert np.isnan(column.weights(np.array([-1, 0]))).all()
    assert column.weights(np.array([3])).tolist() == [1.0]


def test_a_column_grows_without_losing_scores():
    column = ScoreColumn(0, None, None)
    column.grow(2)
    put(column, [(0, 1.0), (1, 3.0)])
    column.grow(100)
    assert column.weights(np.array([0, 1, 99])).tolist()[:2] == [0.5, 1.5]
    assert np.isnan(column.weights(np.array([99]))).all()


PAGE = 100


def shards():
    """Return groups and pages of twelve samples in four objects, three samples in each. The second sample of
    an object lies in two pages. In the third object, each sample is the whole object.
    """
    groups = Groups.of(np.repeat(np.array([40, 10, 30, 20], dtype=np.uint64), 3))
    length = np.tile([60, 80, 60], 4)
    length[6:9] = -1
    pages = groups.index(np.tile([0, 60, 140], 4), length, PAGE)
    return groups, pages


@given(batches=BATCHES)
def test_a_unit_weighs_what_its_samples_weigh_together(batches):
    groups, pages = shards()
    column, model = ScoreColumn(12, groups, pages), {}
    asked = np.arange(-1, len(pages))
    for batch in batches:
        put(column, batch)
        model.update(batch)
        weights = column.unit_weights(asked)
        assert np.isnan(weights[0])
        mean = sum(model.values()) / len(model) if model else 0
        for unit in range(len(pages)):
            members = pages.samples(unit).tolist()
            if not model:
                assert np.isnan(weights[unit + 1])
            else:
                expected = sum(model.get(item, mean) / mean if mean else 1.0 for item in members)
                # Beside scores of 2**127, rounding loses small scores.
                assert weights[unit + 1] == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_a_giant_that_leaves_takes_nothing_of_its_page_with_it():
    groups = Groups.of(np.zeros(4, dtype=np.uint64))
    column = ScoreColumn(4, groups, groups.index(np.arange(4) * 10, np.full(4, 10), PAGE))
    put(column, [(0, 1.0), (1, 3e38)])
    put(column, [(1, 3.0)])
    assert column.unit_weights(np.array([0])).tolist() == [(1 + 3) / 2 + 2]


def test_a_restored_column_goes_on_as_before():
    column = ScoreColumn(12, *shards())
    put(column, [(0, 1.0), (5, 3.0)])
    again = ScoreColumn(12, *shards())
    again.restore(column.values)
    for each in (column, again):
        put(each, [(0, 5.0)])
    assert again.mean == 4.0
    assert again.known == 2
    units = np.arange(len(shards()[1]))
    assert again.unit_weights(units).tolist() == column.unit_weights(units).tolist()


def halves(count=12):
    """Return groups and pages of samples that are half a page long, five in each shard. So a page has one or
    two samples.
    """
    hashes, numbers = np.arange(1, count + 1, dtype=np.uint64) // 5, np.arange(count, dtype=np.int64) % 5
    groups = Groups.of(hashes * np.uint64(0x9E3779B97F4A7C15))
    return groups, groups.index(numbers * 8, np.full(count, 8, dtype=np.int64), 16)


@pytest.mark.parametrize("pages", [False, True])
@given(batches=BATCHES)
def test_the_weight_of_reads_drawn_by_weight_is_kept_up_to_date(pages, batches):
    groups, index = halves() if pages else (None, None)
    column = ScoreColumn(12, groups, index)
    for batch in batches:
        put(column, batch)
    units = np.arange(len(index) if pages else 12)
    weights = column.draw_weights(units)
    if not column.known or not column.mean > 0:
        assert column.drawn_weight(12) == 0
        return
    if not pages:
        assert [column.draw_weight(one) for one in range(12)] == pytest.approx(weights.tolist())
        assert column.few_weights([3, 11, 0]) == [column.draw_weight(one) for one in (3, 11, 0)]
    expected = float(weights @ weights / weights.sum())
    assert column.drawn_weight(12) == pytest.approx(expected, rel=1e-3)
