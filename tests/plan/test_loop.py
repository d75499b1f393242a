"""The replay of a loader's loop, compared with times that were computed from its rules by hand."""

import pytest

from shadeproxy.plan.loop import Loop, replay

FAST = Loop(
    workers=8,
    batch_size=64,
    prefetch_factor=2,
    reads_at_once=1,
    compute_s=0.001,
    client_s=0.0002,
    miss_s=0.05,
)


def changed(**fields):
    return Loop(**{name: getattr(FAST, name) for name in Loop.__slots__} | fields)


def test_training_that_never_waits_takes_as_long_as_it_computes():
    found = replay(FAST, 16_384, 1.0)
    assert found.wall_s == pytest.approx(16.384, rel=0.01)
    assert found.stall_s < 0.05


def test_without_hits_eight_workers_take_an_eighth_of_all_waits():
    found = replay(FAST, 16_384, 0.0)
    assert found.wall_s == pytest.approx(16_384 * 0.0502 / 8, rel=0.02)
    assert found.stall_s == pytest.approx(found.wall_s - 16_384 * 0.001)


@pytest.mark.parametrize("workers", [1, 4, 16])
def test_waits_shrink_with_the_workers_and_with_reads_at_once(workers):
    loop = {"compute_s": 0.0001, "workers": workers}
    half_s = pytest.approx(replay(changed(**loop), 16_384, 0.2).wall_s / 2, rel=0.06)
    assert replay(changed(**(loop | {"workers": 2 * workers})), 16_384, 0.2).wall_s == half_s
    assert replay(changed(**loop, reads_at_once=2), 16_384, 0.2).wall_s == half_s


def test_without_workers_reading_and_computing_take_turns():
    found = replay(changed(workers=0), 1024, 0.0)
    assert found.wall_s == pytest.approx(1024 * (0.0502 + 0.001))


def test_a_full_link_is_the_bound_however_many_workers_read():
    found = replay(changed(workers=64, reads_at_once=8, link_s=0.01, compute_s=0.0001), 4096, 0.5)
    assert found.wall_s == pytest.approx(4096 * 0.5 * 0.01, rel=0.03)


def test_one_worker_reads_no_further_ahead_than_its_prefetch_factor():
    # Computing is slow. The only worker has at most two batches ready when training begins the second batch.
    # So training waits only for the first batch.
    slow = changed(workers=1, batch_size=10, compute_s=1.0, miss_s=0.1, client_s=0.0)
    assert replay(slow, 50, 0.0).stall_s == pytest.approx(1.0)
    # With a factor of 1, the worker begins a batch only when training has taken the previous one.
    assert replay(slow, 50, 0.0).wall_s == pytest.approx(51.0)


def test_the_last_batch_may_be_short_and_a_long_epoch_is_scaled():
    assert replay(changed(miss_s=0.0, client_s=0.0), 100, 1.0).wall_s == pytest.approx(0.1)
    assert replay(FAST, 1_000_000, 1.0).wall_s == pytest.approx(1000.0, rel=0.01)
    assert replay(FAST, 0, 1.0).wall_s == 0.0


AHEAD = changed(compute_s=0.0001, client_s=0.0, miss_s=0.1, unread=24)


def test_fetches_ahead_add_to_the_reads_of_the_workers():
    # 8 reads and 24 fetches are under way, except in the time until a read sample lets the next fetch begin.
    wall_s = replay(AHEAD, 16_384, 0.0).wall_s
    assert 16_384 * 0.1 / 32 <= wall_s <= 16_384 * 0.11 / 32 * 1.2
    assert wall_s < replay(changed(compute_s=0.0001, client_s=0.0, miss_s=0.1), 16_384, 0.0).wall_s / 3


@pytest.mark.parametrize(("workers", "measured_s"), [(4, 6.00), (8, 4.62)])
def test_a_cache_too_small_for_the_latency_delays_training_as_on_the_running_proxy(workers, measured_s):
    """A cache too small for the latency delays training by as much as on the running proxy. The two settings
    are from docs/studies/plan: a cache of 5 %, an announced order, 768 samples.
    """
    loop = Loop(
        workers, 4, 2, reads_at_once=1, compute_s=0.00537, client_s=0.0, miss_s=0.1017, unread=9, spread=0.027
    )
    assert replay(loop, 768, 0.0456).wall_s == pytest.approx(measured_s, rel=0.025)


def test_with_enough_fetches_ahead_training_waits_for_nothing():
    found = replay(changed(unread=256), 16_384, 0.2)
    assert found.wall_s == pytest.approx(16.384, rel=0.01)


def test_what_was_fetched_ahead_of_an_epoch_is_missing_in_a_cold_one():
    slow = changed(miss_s=1.0, unread=2048)
    assert replay(slow, 2048, 0.0).stall_s < 0.05
    assert replay(slow, 2048, 0.0, cold=True).stall_s == pytest.approx(1.0, rel=0.05)


def test_fetches_ahead_share_the_link_with_reads_and_with_the_next_epoch():
    full = changed(link_s=0.01, compute_s=0.0001, unread=256)
    assert replay(full, 4096, 0.5).wall_s == pytest.approx(4096 * 0.5 * 0.01, rel=0.02)


def test_a_short_epoch_is_the_mean_of_many():
    short = changed(compute_s=0.005)
    walls = [replay(short, 512, 0.5, seed=seed).wall_s for seed in range(5)]
    assert max(walls) / min(walls) < 1.04


def test_a_batch_that_is_read_at_once_ends_with_its_slowest_read():
    batch = {"workers": 1, "batch_size": 32, "reads_at_once": 32, "compute_s": 0.0001, "client_s": 0.0}
    even = replay(changed(**batch), 16_384, 0.0).wall_s
    assert even == pytest.approx(16_384 / 32 * 0.05, rel=0.01)
    # The times are lognormal with mean 1 and spread 0.5. The mean of the largest of 32 such times is 2.57.
    assert replay(changed(**batch, spread=0.5), 16_384, 0.0).wall_s == pytest.approx(2.57 * even, rel=0.03)
    # When reads come one after another, each takes the mean time.
    alone = changed(workers=1, batch_size=32, compute_s=0.0001, client_s=0.0, spread=0.5)
    assert replay(alone, 16_384, 0.0).wall_s == pytest.approx(16_384 * 0.05, rel=0.02)
