import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.engine.knowledge.datasets import Groups
from shadeproxy.engine.knowledge.scoreboard import ScoreColumn

SCORES = st.floats(0, 2.0**127, width=32) | st.floats(0, 2, width=32)
BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 11), SCORES), max_size=20), max_size=8)


def put(column, batch):
    ids = np.array([item for item, _ in batch], dtype=np.int64)
    column.set(ids, np.array([score for _, score in batch], dtype=np.float32))


@given(batches=BATCHES)
def test_a_column_is_a_dict_whose_mean_weighs_one(batches):
    column, model = ScoreColumn(12, None), {}
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
    column = ScoreColumn(4, None)
    put(column, [(1, 9.0), (2, 1.0), (1, 3.0)])
    assert column.values[1] == 3.0
    assert column.mean == 2.0


def test_a_giant_that_leaves_takes_nothing_with_it():
    column = ScoreColumn(3, None)
    put(column, [(0, 1.0), (1, 3e38)])
    put(column, [(1, 3.0)])
    assert column.mean == 2.0


def test_unknown_and_outside_samples_weigh_nan():
    column = ScoreColumn(4, None)
    put(column, [(3, 1.0)])
    assert np.isnan(column.weights(np.array([-1, 0]))).all()
    assert column.weights(np.array([3])).tolist() == [1.0]


def test_a_column_grows_without_losing_scores():
    column = ScoreColumn(0, None)
    column.grow(2)
    put(column, [(0, 1.0), (1, 3.0)])
    column.grow(100)
    assert column.weights(np.array([0, 1, 99])).tolist()[:2] == [0.5, 1.5]
    assert np.isnan(column.weights(np.array([99]))).all()


def shards():
    """Twelve samples in four objects of three."""
    return Groups.of(np.repeat(np.array([40, 10, 30, 20], dtype=np.uint64), 3))


@given(batches=BATCHES)
def test_an_object_weighs_as_its_weightiest_sample(batches):
    groups = shards()
    column, model = ScoreColumn(12, groups), {}
    asked = np.array([-1, 0, 1, 2, 3])
    for batch in batches:
        put(column, batch)
        model.update(batch)
        weights = column.group_weights(asked)
        assert np.isnan(weights[0])
        mean = sum(model.values()) / len(model) if model else 0
        for group in range(4):
            known = [model[int(item)] for item in groups.samples(group) if int(item) in model]
            if not known:
                assert np.isnan(weights[group + 1])
            else:
                expected = max(known) / mean if mean else 1.0
                assert weights[group + 1] == pytest.approx(expected, rel=1e-4, abs=1e-300)


def test_in_a_big_column_rises_show_at_once_and_falls_soon():
    count = 64 * 64
    groups = Groups.of(np.repeat(np.arange(count // 2, dtype=np.uint64), 2))
    column = ScoreColumn(count, groups)
    column.set(np.arange(count), np.ones(count, dtype=np.float32))
    first = np.array([0])
    assert column.group_weights(first)[0] == 1.0
    put(column, [(0, 50.0)])
    assert column.group_weights(first)[0] > 49
    put(column, [(0, 0.5), *((item, 1.0) for item in range(2, 66))])
    assert column.group_weights(first)[0] == pytest.approx(1.0, rel=1e-3)


def test_a_restored_column_goes_on_as_before():
    column, groups = ScoreColumn(12, shards()), shards()
    put(column, [(0, 1.0), (5, 3.0)])
    again = ScoreColumn(12, groups)
    again.restore(column.values)
    put(again, [(0, 5.0)])
    assert again.mean == 4.0
    assert again.known == 2
