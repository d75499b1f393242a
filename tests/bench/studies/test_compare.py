"""The comparison of policies row by row: which bounds are met, which are missed, which results are stored,
and which rows can be chosen.
"""

import math

import pytest

from shadeproxy.simulate.replay import Replay
from shadeproxy.simulate.restart import Restart
from shadeproxy_bench.studies.hit_ratios import bounds, compare, rows
from shadeproxy_bench.studies.hit_ratios.bounds import Ratios
from shadeproxy_bench.studies.hit_ratios.compare import Kept, Task
from shadeproxy_bench.studies.hit_ratios.row import Row, later_quarters, of_the_client
from shadeproxy_bench.traffic import loop, stock_shards, zipf


def results(ours, *, lru=30.0, best=40.0, most=60.0, client=math.nan, of_lru=math.nan):
    found = {name: Ratios(20.0, 20.0, math.nan) for name in compare.OTHERS}
    return found | {
        "ours": Ratios(ours, ours / 2, client, stores=5.0),
        "lru": Ratios(lru, lru, of_lru),
        "w-tinylfu": Ratios(best, best / 2, math.nan),
        "arc": Ratios(99.0, 99.0, math.nan),
        "min": Ratios(most, most, math.nan),
    }


@pytest.mark.parametrize(
    ("bound", "ours", "margin"),
    [
        (bounds.at_least(49.5), 50, 0.5),
        (bounds.near_best(1), 38.5, -0.5),  # The policy "arc" does not count as a rival.
        (bounds.near_best_bytes(1), 57, -0.5),  # "lru" has 30 % of the bytes.
        (bounds.near_min(0.5), 59.6, 0.1),
        (bounds.times_best(1.25, 1.1)[0], 51, 1),
        (bounds.times_best(1.25, 1.1)[1], 64, -1),
        (bounds.share_of_gain(0.8), 55, 1),
        (bounds.ALL, 29, -1),
        (bounds.few_stores(4.5), 50, -0.5),
    ],
)
def test_a_margin_is_the_points_above_the_bound(bound, ours, margin):
    assert bound.margin(results(ours)) == pytest.approx(margin)


def test_a_client_keeps_what_lru_gives_it_or_all_gain_a_lot():
    assert bounds.CLIENT.margin(results(31, client=48.5, of_lru=50)) == pytest.approx(0.5)
    assert bounds.CLIENT.margin(results(31, client=40, of_lru=50)) == pytest.approx(-8)
    assert bounds.CLIENT.margin(results(41, client=40, of_lru=50)) == pytest.approx(1)


def test_a_line_has_every_policy_and_says_what_is_missed():
    row = Row("zipf", "some reads", zipf, 100, (bounds.near_best(0.5), bounds.near_min(0.5)))
    cells, good = compare.line(row, results(40), seed=3)
    assert cells == [
        "some reads, cache 100, seed 3", "40.0", "30.0", "20.0", "40.0", "99.0", "20.0", "20.0", "60.0",
        ">= best - 0.5 (+0.5); >= min - 0.5 (-19.5)", "**missed**",
    ]  # fmt: skip
    assert not good
    assert compare.line(row._replace(bounds=(bounds.at_least(40),)), results(40), seed=0)[1]


def test_rows_are_found_by_group_or_by_words():
    assert compare.chosen("") == list(rows.ROWS)
    assert len(compare.chosen("loops")) == 4
    assert {rows.ROWS[name].group for name in compare.chosen("loops,zipf")} == {"loops", "zipf"}
    assert compare.chosen("newest") == ["newest first, cache 500", "newest first, cache 1000"]
    with pytest.raises(SystemExit, match="--rows: 'nonsense' is in no row; name groups"):
        compare.chosen("nonsense")


def test_others_are_kept_and_ours_is_measured_again(tmp_path, monkeypatch):
    row = Row("zipf", "few reads", lambda seed: zipf(50, 500, 1.0, seed=seed), 10, (bounds.at_least(1),))
    monkeypatch.setitem(rows.ROWS, row.name, row)
    kept = Kept(tmp_path / "kept.json")
    task = Task(row.name, 0, "default", kept.known(row.name, 0))
    found = compare.measure(task)
    kept.add(task, found)
    again = Kept(tmp_path / "kept.json").known(row.name, 0)
    assert set(again.ratios) == set(compare.OTHERS)
    assert Kept(tmp_path / "kept.json").known(row.name, 1).ratios == {}
    with monkeypatch.context() as patch:
        patch.setattr(compare, "baseline_hits", None)
        assert str(compare.measure(Task(row.name, 0, "default", again))) == str(found)
        assert 2 <= found.ratios["ours"].stores <= 100 - found.ratios["ours"].hits
        assert math.isnan(found.ratios["w-tinylfu"].stores)
    monkeypatch.setitem(rows.ROWS, row.name, row._replace(cache=20))
    other = compare.measure(Task(row.name, 0, "default", again))
    assert other.ratios["lru"].hits > found.ratios["lru"].hits + 5


def test_only_our_policy_restarts_in_the_middle_of_a_row(monkeypatch):
    row = Row("loops", "a loop", lambda seed: loop(200, 10, seed=seed), 200, (bounds.at_least(90),))
    monkeypatch.setitem(rows.ROWS, row.name, row)
    restarts = []

    class Watched(Replay):
        def __init__(self, *arguments, restart, **options):
            restarts.append(restart)
            super().__init__(*arguments, restart=restart, **options)

    monkeypatch.setattr(compare, "Replay", Watched)
    found = compare.measure(Task(row.name, 0, "default", compare.Found(0, {}), restarts=True))
    assert restarts == [Restart(1000), None]
    assert found.ratios["ours"].hits == 90
    compare.measure(Task(row.name, 0, "default", compare.Found(0, {})))
    assert restarts[2:] == [None, None]


def test_the_command_says_how_many_are_missed(capsys, tmp_path):
    keep, out = str(tmp_path / "kept.json"), tmp_path / "out.md"
    name = "loop of 2 x the cache"
    arguments = ["--rows", name, "--processes", "1", "--keep", keep, "--out", str(out), "--policy"]
    assert compare.main([*arguments, "static"]) == 0
    assert compare.main([*arguments, "lru"]) == 1
    assert "1 rows, seeds 0, 1 missed." in out.read_text()
    assert "| **missed** |" in capsys.readouterr().out


def test_the_gain_beside_a_job_is_shared_over_rows():
    assert compare.shared_gain([results(45), results(60)]) == pytest.approx(0.75)
    assert compare.shared_gain([results(30, most=30)]) == 1


def test_what_counts():
    trace = zipf(50, 400, 1.0)
    assert later_quarters(trace).sum() == 300
    assert of_the_client(trace).all()
    assert stock_shards(20, 2, reads=2, readers=2).counted().sum() == 40


def test_names_differ_and_bounds_of_today_are_used():
    text = str(rows.ROWS)
    assert len(rows.ROWS) > 60
    assert len(rows.GROUPS) == len({row.group for row in rows.ROWS.values()})
    assert all(row.bounds for row in rows.ROWS.values()), text
    assert set(rows.STORES_TODAY) < set(rows.ROWS)
