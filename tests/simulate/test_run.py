"""The rows of a simulation, compared with ratios that formulas give."""

import math

import numpy as np
import pytest

from shadeproxy.core.errors import ConfigError, ShadeProxyError
from shadeproxy.simulate import plots
from shadeproxy.simulate.hints import Announce
from shadeproxy.simulate.run import NAMES, Question, parse_caches, parse_policies, simulate
from shadeproxy.simulate.trace import Trace
from shadeproxy.simulate.workloads import importance, lagged, shards, uniform

NOTHING = Announce(0)


def rows_of(trace, policies, caches, announce=NOTHING):
    return simulate(Question(trace, parse_policies(policies), parse_caches(caches, trace), announce))


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_shuffled_epochs_are_the_formulas(share):
    """Shuffled epochs hit as the formulas say. With a cache of share c, LRU has c + (1 - c) ln(1 - c). A
    policy that never evicts has c.
    """
    rows = rows_of(uniform(4000, 5), "lru,static,min", f"{share:.0%}").rows
    found = {row.policy: row.hit_ratio for row in rows}
    assert found["lru"] == pytest.approx(share + (1 - share) * math.log(1 - share), abs=0.006)
    assert found["static"] == pytest.approx(share, abs=1e-9)
    assert all(row.hit_ratio <= found["min"] for row in rows)


def test_a_stock_client_gets_the_cached_fraction_of_a_big_data_set_too():
    """A client without hints hits the cached fraction of a big dataset too. An epoch begins with a few pages
    that the previous epoch has read just before. From these the policy must not conclude that new pages are
    read again soon.
    """
    assert rows_of(uniform(40_000, 2, seed=3), "default", "20%").rows[0].hit_ratio >= 0.99 * 0.2


def test_rows_tell_ratios_bytes_distinct_and_share_of_the_bound():
    trace = Trace(
        np.array([0, 1, 2, 0, 1, 0], dtype=np.uint32),
        3,
        sizes=np.array([100, 300, 100]),
        epochs=np.array([0, 0, 0, 1, 1, 1], dtype=np.uint16),
    )
    result = rows_of(trace, "static,min", "400 B,80%")
    (row, bound, *_), (total, *_) = result.rows, result.all_reads
    assert (row.policy, row.cache, row.hit_ratio) == ("static", 0.8, 1.0)
    assert (row.byte_hit_ratio, row.distinct, row.of_min) == (1.0, 2.0, 1.0)
    assert (total.hits, total.hit_ratio) == (3, 0.5)
    assert bound.policy == "min"
    assert result.counted == "reads from each job's second epoch on"
    small = rows_of(trace, "static", "20%").rows[0]
    assert small.hit_ratio == pytest.approx(2 / 3)
    assert small.byte_hit_ratio == pytest.approx(200 / 500)


def test_nothing_to_hit_is_all_of_the_bound():
    row = rows_of(Trace(np.arange(5, dtype=np.uint32), 5), "lru", "20%").rows[0]
    assert (row.hit_ratio, row.of_min) == (0, 1)


def test_several_jobs_find_what_the_others_read():
    """Several jobs find pages that other jobs have read. Two jobs hit 11 % with LRU, and at least 43 % with
    the next epoch announced. Jobs with the same order, 15 % of an epoch apart, hit at least 48 %.
    """
    two = {
        row.policy: row.hit_ratio
        for row in rows_of(uniform(1000, 4, jobs=2), "default,lru", "20%", Announce(2)).rows
    }
    assert two["lru"] == pytest.approx(0.11, abs=0.02)
    assert two["default"] >= 0.43
    lag = {
        row.policy: row.hit_ratio for row in rows_of(lagged(1000, 3), "default,lru", "10%", Announce(1)).rows
    }
    assert lag["lru"] < 0.02
    assert lag["default"] >= 0.48


def test_one_node_of_four_needs_more_epochs():
    rows = rows_of(uniform(8000, 12, ranks=4), "default,lru,min", "20%", Announce(8)).rows
    found = {row.policy: row.hit_ratio for row in rows}
    assert found["lru"] == pytest.approx(0.086, abs=0.02)
    assert 0.47 <= found["default"] <= found["min"]


def test_shards_are_the_mixture():
    """Shards hit as the best mixture does. The static policy has 20 %, LRU 67 %, and the best mixture of both
    73 %.
    """
    rows = rows_of(shards(3000, 4), "static,lru,default", "20%").rows
    static, lru, mixture = (row.hit_ratio for row in rows)
    assert static == pytest.approx(0.2, abs=0.01)
    assert lru == pytest.approx(0.674, abs=0.01)
    assert mixture >= 0.72


def test_draws_are_with_replacement_and_heavier_tails_hit_more():
    shade, heavy = (
        rows_of(importance(1500, 4, draws=draws), "default", "10%").rows[0] for draws in ("shade", "heavy")
    )
    assert heavy.distinct < 0.7 * shade.distinct < 0.7 * 0.66 * 1500
    assert heavy.hit_ratio > shade.hit_ratio + 0.1


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", '--cache: no size is named; write shares of the data, as "5%,10%,20%"'),
        ("20%,0%", "--cache: '0%' is not a share of the data"),
        ("120%", "--cache: '120%' is not a share of the data"),
        ("x%", "--cache: 'x%' is not a share of the data"),
        ("8 GiB", "--cache: '8 GiB': this trace tells no sizes"),
    ],
)
def test_bad_cache_sizes(text, error):
    with pytest.raises(ConfigError) as caught:
        parse_caches(text, uniform(10, 1))
    assert str(caught.value).startswith(error)


def test_bad_sizes_where_sizes_are_known():
    trace = Trace(np.zeros(1, dtype=np.uint32), 1, sizes=np.array([5]))
    with pytest.raises(ConfigError, match="--cache: 'lots' is no size; write a share as 20%, or"):
        parse_caches("lots", trace)


def test_policies_by_name():
    assert parse_policies("all") == list(NAMES) == [
        "default", "lru", "lfu", "fifo", "random", "static", "importance", "shade",
        "s3-fifo", "w-tinylfu", "arc", "2q", "sieve", "min",
    ]  # fmt: skip
    assert parse_policies("lru, lru,min") == ["lru", "min"]
    with pytest.raises(
        ConfigError, match="--policy: no policy is called 'clock'; write all, or some of default"
    ):
        parse_policies("lru,clock")
    with pytest.raises(ConfigError, match="--policy: none is named"):
        parse_policies(" ")


def test_every_policy_has_a_line_in_plots_and_no_two_are_alike():
    assert set(plots._STYLES) == set(NAMES)
    assert len(set(plots._STYLES.values())) == len(NAMES)


def test_the_plot(tmp_path, monkeypatch):
    rows = rows_of(uniform(100, 2), "all", "10%,50%").rows
    plots.write_plot([("one", rows), ("two", rows)], tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ShadeProxyError, match=r"the plot cannot be written to .*: No such file or directory"):
        plots.write_plot([("one", rows)], tmp_path / "none" / "p.png")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(
        ShadeProxyError, match=r"the plot needs matplotlib; install with: pip install matplotlib"
    ):
        plots.write_plot([("one", rows)], tmp_path / "p.png")
