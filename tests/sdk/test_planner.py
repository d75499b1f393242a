import math

import pytest

import shadeproxy_sdk as shade
from shadeproxy_sdk.planner import ImportanceControl, PublishedControl


def run(name, values):
    control = ImportanceControl()
    return [control.validated(**{"accuracy": None, "loss": None, name: value}) for value in values]


def test_each_result_that_is_no_new_best_relaxes_by_a_quarter_each_best_tightens():
    assert run("accuracy", [0.5, 0.6, 0.6, 0.5, 0.59, 0.61, 0.62]) == [1.0, 1.0, 0.75, 0.5, 0.25, 0.5, 0.75]
    assert run("loss", [2.0, 1.0, 1.5, 0.9]) == [1.0, 1.0, 0.75, 1.0]


def test_it_stays_within_bounds_and_comes_back():
    assert run("loss", [1.0] * 8)[-1] == 0.0
    assert run("loss", [1.0] * 8 + [0.5])[-1] == 0.25


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_no_improvement(value):
    assert run("loss", [value, 1.0]) == [0.75, 1.0]


def test_a_loss_of_zero_is_a_result():
    assert run("loss", [0.5, 0.0, 0.1]) == [1.0, 1.0, 0.75]


@pytest.mark.parametrize("both", [{"accuracy": None, "loss": None}, {"accuracy": 0.5, "loss": 0.5}])
def test_exactly_one_result_is_taken(both):
    with pytest.raises(shade.ConfigError, match=r"either accuracy=\.\.\. or loss=\.\.\."):
        ImportanceControl().validated(**both)


def test_as_published_the_mean_of_the_latest_three_changes_decides():
    control = PublishedControl()
    assert control.aggressiveness == 1.0
    results = [0.5, 0.6, 0.55, 0.5, 0.52, 0.6, math.nan, 0.61]
    found = [control.validated(accuracy=value, loss=None) for value in results]
    # The accuracy changes by 0, +.1, -.05, -.05, +.02, +.08, 0 (no number) and +.01.
    assert found == [0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert [PublishedControl().validated(accuracy=None, loss=1.0)] == [0.0]


def test_a_published_switch_goes_on_after_a_checkpoint():
    control, again = PublishedControl(), PublishedControl()
    for value in (0.5, 0.4):
        control.validated(accuracy=value, loss=None)
    again.restore(control.state())
    results = [one.validated(accuracy=0.45, loss=None) for one in (control, again)]
    assert results == [0.0, 0.0]
    again.restore(ImportanceControl().state())
    assert again.aggressiveness == 1.0
