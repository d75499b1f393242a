"""Traffic of clients without hints: each trace matches its name, and the same seed gives the same trace."""

import numpy as np
import pytest

from shadeproxy.simulate.bound import clairvoyant_hits
from shadeproxy.simulate.trace import NO_JOB
from shadeproxy_bench import traffic

TRACES = {
    "zipf": lambda seed: traffic.zipf(500, 4000, 0.8, seed=seed),
    "redrawn": lambda seed: traffic.zipf(500, 4000, 1.0, every=1000, seed=seed),
    "scan": lambda seed: traffic.scan_then_zipf(500, 4000, 1.0, scan=300, seed=seed),
    "scans": lambda seed: traffic.zipf_with_scans(500, 4000, 1.0, scan=60, every=200, seed=seed),
    "newest": lambda seed: traffic.newest_first(4000, seed=seed),
    "hot": lambda seed: traffic.moving_hot_set(50, 4, 20, seed=seed),
    "phases": lambda seed: traffic.one_after_another(200, 5, seed=seed),
    "beside": lambda seed: traffic.training_beside_zipf(300, 6, share=0.8, seed=seed),
    "jobs": lambda seed: traffic.trained(300, 4, jobs=2, seed=seed),
    "kinds": lambda seed: traffic.mixed_kinds(4000, by_prefix=True, seed=seed),
    "sizes": lambda seed: traffic.sized(traffic.zipf(500, 4000, 0.8, seed=seed), seed=seed),
}


@pytest.mark.parametrize("name", TRACES)
def test_a_seed_gives_one_trace_of_stock_clients_alone(name):
    first, again, other = (TRACES[name](seed) for seed in (1, 1, 2))
    assert np.array_equal(first.ids, again.ids)
    assert not np.array_equal(first.ids, other.ids)
    assert set(first.job_of_reads().tolist()) == {NO_JOB}
    assert first.ids.max() < first.objects
    if first.sizes is not None:
        assert np.array_equal(first.sizes, again.sizes)


def test_popularity_is_zipf_and_may_be_dealt_out_again():
    trace = traffic.zipf(1000, 200_000, 1.0)
    counts = np.sort(np.bincount(trace.ids, minlength=1000))[::-1]
    assert counts[0] / counts[9] == pytest.approx(10, rel=0.1)
    favourites = [
        np.bincount(part).argmax() for part in np.split(traffic.zipf(1000, 4000, 1.2, every=1000).ids, 4)
    ]
    assert len(set(favourites)) == 4


def test_scans_are_read_once():
    trace = traffic.zipf_with_scans(500, 5200, 1.0, scan=60, every=200)
    assert (len(trace.ids), set(np.bincount(trace.ids)[500:].tolist())) == (5200, {1})
    assert (trace.ids >= 500).mean() == pytest.approx(60 / 260, abs=0.01)
    scan = traffic.scan_then_zipf(500, 4000, 1.0, scan=300)
    assert np.array_equal(scan.ids[:300], np.arange(500, 800))
    assert scan.ids[300:].max() < 500


def test_a_tenth_of_newest_first_is_new_and_the_rest_is_recent():
    ids = traffic.newest_first(20_000).ids.astype(int)
    newest = np.maximum.accumulate(ids)
    new = np.diff(newest, prepend=-1) > 0
    assert new.mean() == pytest.approx(0.1, abs=0.01)
    assert np.median((newest - ids)[~new]) < 100


def test_a_hot_set_moves_on_and_each_of_its_objects_is_read_so_often():
    trace = traffic.moving_hot_set(50, 4, 20)
    assert set(np.bincount(trace.ids).tolist()) == {20}
    assert clairvoyant_hits(trace, 50).mean() == 0.95


def test_epochs_of_one_data_set_follow_those_of_another():
    trace = traffic.one_after_another(200, 5)
    assert trace.ids[:1000].max() < 200 <= trace.ids[1000:].min()
    assert clairvoyant_hits(trace, 200).mean() == pytest.approx(0.8)


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_a_share_of_the_reads_is_training(share):
    trace = traffic.training_beside_zipf(300, 6, share=share)
    mine = trace.ids[trace.ids < 300]
    assert len(mine) == 1800 == pytest.approx(share * len(trace.ids), abs=1)
    assert all(len(set(epoch.tolist())) == 300 for epoch in np.split(mine, 6))


def test_kinds_differ_in_size_reuse_and_prefix():
    trace = traffic.mixed_kinds(40_000, by_prefix=True)
    counts = np.bincount(trace.ids, minlength=trace.objects)
    training, popular, once = (counts[trace.prefixes == kind] for kind in range(3))
    assert np.ptp(training) <= 1
    assert popular.max() > 100
    assert set(once.tolist()) == {1}
    assert trace.sizes[trace.prefixes == 0].mean() == pytest.approx(100_000, rel=0.1)
    assert traffic.mixed_kinds(400, by_prefix=False).prefixes is None


def test_jobs_without_an_sdk_have_epochs_and_say_nothing():
    trace = traffic.trained(100, 3, jobs=2)
    assert (trace.stock, trace.hints) == ((0, 1), ())
    assert trace.counted().sum() == 400
