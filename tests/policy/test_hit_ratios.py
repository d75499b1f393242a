"""Hit ratios of the policies on small workloads, each compared with the best possible ratio. Seeds are fixed.
Pages have one size, except where a test sets sizes.

The workloads are small versions of those in docs/adr/0027. The study of hit ratios (bench) has all of them.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from shadeproxy.policy.registry import POLICIES, get_policy
from shadeproxy.simulate.bound import clairvoyant_hits
from shadeproxy.simulate.hints import parse_announce
from shadeproxy.simulate.replay import Replay
from shadeproxy.simulate.trace import Trace
from shadeproxy.simulate.workloads import importance, lagged, shards, uniform

SHARE = 0.2


def hits_of(trace, policy="default", places=None, announce="none"):
    places = int(SHARE * trace.objects) if places is None else places
    return Replay(trace, get_policy(policy), places, announce=parse_announce(announce)).run()


def ratio(trace, *args, **options):
    return hits_of(trace, *args, **options)[trace.counted()].mean()


def reads_of(ids):
    return Trace(np.asarray(ids, np.uint32), int(np.max(ids)) + 1)


def zipf(objects, reads, exponent, seed=1):
    random = np.random.default_rng(seed)
    odds = np.arange(1.0, objects + 1) ** -exponent
    return random.permutation(objects)[random.choice(objects, reads, p=odds / odds.sum())]


def test_lru_on_shuffled_epochs_is_the_formula():
    """LRU on shuffled epochs hits as the formula says. The formula is c + (1 - c) ln(1 - c): 2.1 % with a
    cache of c = 20 %.
    """
    expected = SHARE + (1 - SHARE) * math.log(1 - SHARE)
    assert expected == pytest.approx(0.0215, abs=0.0001)
    assert ratio(uniform(1000, 20), "lru") == pytest.approx(expected, abs=0.003)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.8])
@pytest.mark.parametrize("objects", [500, 2000])
def test_shuffled_epochs_of_which_nothing_is_known_are_the_optimum(objects, share):
    trace = uniform(objects, 5)
    assert ratio(trace, places=int(share * objects)) >= 0.998 * share


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("announce", ["none", "epoch", "next-half"])
def test_no_policy_beats_the_clairvoyant(policy, announce):
    trace = importance(600, 3)
    assert hits_of(trace, policy, announce=announce).sum() <= clairvoyant_hits(trace, 120).sum()


def test_importance_draws_by_what_is_known():
    """Draws by importance hit more, the more is known. LRU hits 21 %. With the current epoch announced the
    ratio is about 49 %. It is at least 54 % if the next epoch is announced in the middle of the current one.
    The bound is 57 %.
    """
    trace = importance(1000, 6)
    bound = clairvoyant_hits(trace, 200)[trace.counted()].mean()
    assert ratio(trace, "lru") == pytest.approx(0.21, abs=0.02)
    assert ratio(trace) > ratio(trace, "lru")
    assert ratio(trace, announce="epoch") >= 0.48
    assert 0.54 <= ratio(trace, announce="next-half") < bound < ratio(trace, announce="all") + 0.03


def test_popular_objects_stay():
    trace = reads_of(zipf(3000, 30_000, 0.8))
    ours, lru = (hits_of(trace, policy, 150)[10_000:].mean() for policy in ("default", "lru"))
    assert ours >= lru + 0.08


def test_a_page_is_stored_only_if_its_reads_repay_the_store():
    """A page is stored only if its reads repay the store. LRU stores every page that it misses. The price of
    a store costs no hits on popular objects, and none on shuffled epochs.
    """
    for ids, places, most_stores, least_hits in (
        (zipf(2000, 40_000, 0.8), 400, 0.12, 0.62),
        (
            np.concatenate([np.random.default_rng(epoch).permutation(2000) for epoch in range(10)]),
            400,
            0.04,
            0.179,
        ),
    ):
        replay = Replay(reads_of(ids), get_policy("default"), places, announce=parse_announce("none"))
        hits = replay.run()
        assert hits.mean() >= least_hits
        assert replay.stores <= most_stores * len(ids)


def test_a_scan_does_not_flush_what_is_popular():
    popular = zipf(1000, 40_000, 1.0)
    ids = np.concatenate([popular[:20_000], 1000 + np.arange(3000), popular[20_000:]])
    after = slice(23_000, 25_000)
    hits = hits_of(reads_of(ids), places=200)
    assert hits[after].mean() >= hits[18_000:20_000].mean() - 0.05


def test_a_loop_a_little_longer_than_the_cache_hits_nearly_as_often_as_can_be():
    trace = reads_of(np.tile(np.arange(1100), 60))
    assert not hits_of(trace, "lru", 1000).any()
    assert hits_of(trace, places=1000).mean() >= clairvoyant_hits(trace, 1000).mean() - 0.05


def test_a_finished_dataset_drains_away_for_the_next():
    random = np.random.default_rng(3)
    ids = [random.permutation(1000) for _ in range(5)] + [1000 + random.permutation(1000) for _ in range(8)]
    hits = hits_of(reads_of(np.concatenate(ids)), places=1000).reshape(13, 1000).mean(axis=1)
    assert hits[4] == 1.0
    assert hits[5] == 0.0
    assert hits[7:].mean() >= 0.8
    assert hits[-1] >= 0.98


def test_the_pages_of_the_next_dataset_are_stored_in_its_first_epoch():
    random = np.random.default_rng(3)
    ids = [random.permutation(2000) for _ in range(5)] + [2000 + random.permutation(2000) for _ in range(2)]
    hits = hits_of(reads_of(np.concatenate(ids)), places=2000).reshape(7, 2000).mean(axis=1)
    assert hits[5] == 0.0
    assert hits[6] >= 0.93


def test_jobs_that_follow_each_other_share_what_the_first_one_fetches():
    assert ratio(lagged(1000, 5), places=50) >= 0.2


def test_pages_read_several_times_in_a_row_cost_one_miss():
    trace = shards(1000, 4, reads=3, readers=8)
    assert ratio(trace, places=200) >= ratio(trace, "lru", places=200) - 0.005


def test_a_client_that_says_nothing_keeps_its_hot_set_beside_a_job_that_announces_all():
    random = np.random.default_rng(5)
    job = 300 + np.concatenate([random.permutation(3000) for _ in range(4)])
    ids = np.stack([random.integers(0, 300, len(job)), job], axis=1).ravel()
    jobs = np.tile(np.array([0, 1], np.uint8), len(job))
    trace = replace(
        reads_of(ids), jobs=jobs, stock=(0,), epochs=np.repeat(np.arange(4), 6000).astype(np.uint16)
    )
    client = hits_of(trace, places=400, announce="all")[jobs == 0]
    assert client[6000:].mean() >= hits_of(trace, "lru", 400)[jobs == 0][6000:].mean() + 0.3


@pytest.mark.parametrize("policy", POLICIES)
def test_variable_sizes_never_exceed_the_capacity(policy):
    random = np.random.default_rng(3)
    trace = replace(reads_of(random.integers(0, 300, 3000)), sizes=random.integers(1, 100, 300))
    replay = Replay(trace, get_policy(policy), 2000, announce=parse_announce("none"))
    replay.run()
    held = trace.sizes[np.flatnonzero(replay.tier >= 0)].sum() if len(trace.sizes) == len(replay.tier) else 0
    assert 1800 < held <= 2000
