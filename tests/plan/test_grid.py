"""The rows of a plan, their cost, and the choice of the cheapest row under a deadline."""

import pytest

from shadeproxy.core.errors import ConfigError
from shadeproxy.plan.grid import CacheSize, Question, make_plan
from shadeproxy.plan.hits import uniform_hits
from shadeproxy.plan.predict import Predictor
from shadeproxy.plan.prices import Prices, load_prices
from tests.support.profiles import BYTES, PRICES, SAMPLES, epoch, profile, truth


@pytest.fixture
def prices(tmp_path):
    path = tmp_path / "prices.toml"
    path.write_text(PRICES)
    return load_prices(path)


@pytest.fixture(scope="module")
def predictor():
    return Predictor(profile(*(epoch(number, truth(), 0.2) for number in range(2))))


def sizes(*shares):
    return [CacheSize(f"{share:.0%}", share, share * SAMPLES * BYTES) for share in shares]


def question(**fields):
    return Question(**({"caches": sizes(0.2), "workers": [8], "orders": [False], "epochs": 3} | fields))


def test_a_row_for_each_combination(predictor):
    plan = make_plan(
        predictor,
        uniform_hits("default"),
        question(caches=sizes(0.2, 0.5), workers=[8, 16], orders=[False, True]),
    )
    assert [(row.cache, row.workers, row.announced) for row in plan.rows] == [
        (cache, workers, announced)
        for cache in ("20%", "50%")
        for workers in (8, 16)
        for announced in (False, True)
    ]
    first = plan.rows[0]
    assert first.hit_ratio == 0.2
    assert first.meets is None
    assert plan.chosen is None


def test_the_first_epoch_of_a_run_is_cold(predictor):
    row = make_plan(predictor, uniform_hits("default"), question()).rows[0]
    assert row.run_s > 3 * row.epoch_s
    once = make_plan(predictor, uniform_hits("default"), question(epochs=1)).rows[0]
    assert row.run_s == pytest.approx(once.run_s + 2 * row.epoch_s)


def test_a_run_costs_time_cache_requests_and_bytes(predictor, prices):
    row = make_plan(
        predictor, uniform_hits("default"), question(prices=prices, instances=["small"], epochs=2)
    ).rows[0]
    hours = row.run_s / 3600
    assert row.cost.training == pytest.approx(hours)
    assert row.cost.cache == pytest.approx(hours * 0.2 * SAMPLES * BYTES / 2**30 * 0.01)
    requests = SAMPLES * 1.8
    assert row.cost.origin == pytest.approx(requests / 1000 * 0.5 + requests * BYTES / 2**30 * 0.1)
    assert row.cost.total == row.cost.training + row.cost.cache + row.cost.origin


def test_the_cheapest_row_within_the_deadline_is_chosen(predictor, prices):
    asked = question(
        caches=sizes(0.2, 0.9),
        orders=[False, True],
        prices=prices,
        instances=["small", "big"],
        deadline_s=1e9,
    )
    plan = make_plan(predictor, uniform_hits("default"), asked)
    totals = [row.cost.total for row in plan.rows]
    assert totals[plan.chosen] == min(totals)
    slowest = max(row.run_s for row in plan.rows)
    tight = make_plan(
        predictor, uniform_hits("default"), question(**(fields(asked) | {"deadline_s": slowest}))
    )
    able = [row for row in tight.rows if row.run_s * (1 + row.error) <= slowest]
    assert tight.rows[tight.chosen].cost.total == min(row.cost.total for row in able)
    assert len(able) < len(tight.rows)


def test_no_row_is_chosen_where_none_meets_the_deadline(predictor):
    plan = make_plan(predictor, uniform_hits("default"), question(deadline_s=1e-3))
    assert plan.chosen is None
    assert not plan.rows[0].meets


def test_without_prices_the_smallest_cache_that_meets_the_deadline_is_chosen(predictor):
    asked = question(caches=sizes(0.9, 0.5, 0.2), deadline_s=1e9)
    assert make_plan(predictor, uniform_hits("default"), asked).chosen == 2


def test_one_profiled_epoch_is_given_a_tenth_of_error():
    alone = Predictor(profile(epoch(0, truth(), 0.2)))
    plan = make_plan(alone, uniform_hits("default"), question())
    assert plan.error is None
    assert plan.rows[0].error == 0.1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[instances.a]\nper_hour = -1", "per_hour"),
        ("[instances.a]", "per_hour"),
        ("[instances.a]\nper_hour = 1\n[orgin]\nper_gib = 1", "unknown field `orgin`"),
        ("[instances.a]\nper_hour = 1\nspeed = 0", "speed"),
        ("[instances.a]\nper_hour = inf", "per_hour"),
        ("[instances.a]\nper_hour = nan", "per_hour"),
        ("[instances.a]\nper_hour = 1\nspeed = 1e-300", "speed"),
        ("[instances.a]\nper_hour = 1\nspeed = inf", "speed"),
        ("date = 1", "instances"),
        ("[instances]", r"names no instance: add \[instances.NAME\] with per_hour"),
        ("a = ", "is no TOML"),
    ],
)
def test_prices_that_cannot_be_meant_are_refused(tmp_path, text, said):
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_prices(path)


def test_a_file_of_prices_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"--prices .*none.toml: No such file"):
        load_prices(tmp_path / "none.toml")


def fields(asked):
    return {name: getattr(asked, name) for name in Question.__slots__}


def test_prices_are_what_the_file_says(prices):
    assert isinstance(prices, Prices)
    assert prices.instances["big"].speed == 2.0
    assert prices.instances["small"].speed == 1.0
