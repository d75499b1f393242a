"""The simulator makes the same decisions as the product."""

from dataclasses import replace

import numpy as np
import pytest

from shadeproxy.policy.registry import POLICIES, get_policy
from shadeproxy.simulate import replay
from shadeproxy.simulate.bound import clairvoyant_hits
from shadeproxy.simulate.hints import Announce, parse_announce
from shadeproxy.simulate.replay import Replay
from shadeproxy.simulate.workloads import importance, shards, uniform


def hits_of(trace, policy, capacity_bytes, announce="none", seed=0):
    return Replay(
        trace, get_policy(policy), capacity_bytes, announce=parse_announce(announce), seed=seed
    ).run()


def with_sizes(trace, seed=3):
    return replace(trace, sizes=np.random.default_rng(seed).integers(500, 3000, trace.objects))


DETERMINISTIC = [name for name in POLICIES if name != "random"]
TRACES = {
    "shuffled": uniform(250, 4, seed=1),
    "draws": importance(300, 4, seed=2),
    "sizes": with_sizes(importance(300, 4, seed=4)),
    "shards": shards(500, 3, seed=5),
    # Many pages of this trace have rates that differ only by rounding.
    "shards read twice": shards(500, 3, seed=1, reads=2),
}


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("policy", DETERMINISTIC)
@pytest.mark.parametrize("share", [0.1, 0.3])
def test_every_read_hits_or_misses_as_in_the_engine(engine_hits, policy, name, share):
    trace = TRACES[name]
    capacity = int(share * trace.total_bytes)
    ours, engine = hits_of(trace, policy, capacity), engine_hits(trace, policy, capacity)
    assert np.array_equal(ours, engine)
    assert ours.any()


@pytest.mark.parametrize("announce", ["epoch", "next-half", "all"])
@pytest.mark.parametrize("jobs", [1, 3])
def test_so_it_does_where_orders_are_announced(engine_hits, jobs, announce):
    trace = uniform(256, 3, seed=11, jobs=jobs) if jobs > 1 else with_sizes(importance(512, 4, seed=12))
    trace = replace(trace, weights=None)
    capacity = int(0.2 * trace.total_bytes)
    ours = hits_of(trace, "default", capacity, announce)
    assert np.array_equal(ours, engine_hits(trace, "default", capacity, announce))


@pytest.mark.parametrize("announce", ["epoch", "next-half"])
def test_announced_where_victims_are_drawn(engine_hits, announce):
    """With announced orders and a sampled eviction, both hit about as often. For each new page the engine
    computes the key of a drawn victim again. The simulator keeps the key that the victim had when it was
    drawn.
    """
    trace = importance(6000, 3, seed=6)
    ours, engine = (hits(trace, "default", 1200, announce).mean() for hits in (hits_of, engine_hits))
    assert ours == pytest.approx(engine, abs=0.004)


@pytest.mark.parametrize("policy", POLICIES)
def test_where_victims_are_drawn_ratios_agree(engine_hits, policy):
    """With a sampled eviction, the hit ratios agree. Beyond 1,024 pages engine and simulator both draw a
    random sample, each with other random numbers.
    """
    trace = importance(6000, 2, seed=6)
    ours, engine = hits_of(trace, policy, 1200), engine_hits(trace, policy, 1200)
    assert ours.mean() == pytest.approx(engine.mean(), abs=0.004)


def test_a_long_trace_in_a_small_cache_draws_ahead_and_hits_as_much(monkeypatch):
    trace = importance(3000, 4, seed=7)
    for policy in ("default", "lru"):
        exact = hits_of(trace, policy, 600, "next-half").mean()
        monkeypatch.setattr(replay, "_LONG_TRACE", 0)
        assert hits_of(trace, policy, 600, "next-half").mean() == pytest.approx(exact, abs=0.006)
        monkeypatch.undo()


def test_the_same_seed_gives_the_same_hits():
    trace = uniform(3000, 3)
    first, again = (hits_of(trace, "random", 1500, seed=9) for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, hits_of(trace, "random", 1500, seed=10))


@pytest.fixture(scope="module")
def unannounced():
    """Return a trace, its hits if nothing is announced, and the hits of the clairvoyant."""
    trace = importance(1500, 5, seed=8)
    return trace, hits_of(trace, "default", 300).sum(), clairvoyant_hits(trace, 300).sum()


@pytest.mark.parametrize("announce", ["epoch", "next-half", "3", "all"])
def test_what_is_announced_helps_and_never_beats_the_clairvoyant(announce, unannounced):
    trace, unknown, best = unannounced
    assert unknown + 1000 < hits_of(trace, "default", 300, announce).sum() <= best


def test_all_announced_is_nearly_the_clairvoyant():
    trace = uniform(900, 5, jobs=2)
    best = clairvoyant_hits(trace, 180)[900:].mean()
    assert best - 0.012 < hits_of(trace, "default", 180, "all")[900:].mean() <= best


def test_no_capacity_no_hits_and_an_object_that_is_too_big_is_passed_by():
    trace = replace(uniform(50, 3), sizes=np.full(50, 100))
    assert not hits_of(trace, "default", 99).any()
    assert not hits_of(trace, "lru", 99).any()
    assert hits_of(trace, "lru", 100 * 50).sum() == 100


@pytest.mark.parametrize(("reads", "readers"), [(4, 8), (4, 32), (2, 32)])
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_more_readers_of_parts_than_two_per_cent_hold_pages_cost_no_more_than_with_lru(share, reads, readers):
    """Many readers of parts cost no more than with LRU, even if they need more pages than the staging share
    of two per cent has. In these caches two per cent are 4 or 10 pages.
    """
    trace = shards(1000, 4, reads=reads, readers=readers)
    counted = trace.counted()
    places = int(share * trace.objects)
    ours, lru = (hits_of(trace, policy, places)[counted].mean() for policy in ("default", "lru"))
    assert ours >= lru - 0.01


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.8, 0.9])
@pytest.mark.parametrize("objects", [500, 6_000])
def test_shuffled_epochs_of_a_stock_client_hit_what_is_cached(objects, share):
    trace = uniform(objects, 3, seed=1)
    hits = hits_of(trace, "default", int(share * objects)).reshape(3, -1).mean(axis=1)
    assert all(hits[1:] >= 0.99 * share)


def test_nothing_announced_asks_for_no_epochs():
    trace = replace(uniform(50, 2), epochs=None)
    assert Replay(trace, get_policy("default"), 10, announce=Announce(0)).run().shape == (100,)
