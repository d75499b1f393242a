"""Predictions from profiles of replayed epochs whose times are known."""

from dataclasses import replace

import msgspec
import pytest

from shadeproxy.core.errors import ConfigError
from shadeproxy.plan.loop import replay
from shadeproxy.plan.predict import Predictor, Setting
from shadeproxy.plan.profile import Loader, read_profile, require_epochs
from tests.support.profiles import BYTES, SAMPLES, epoch, profile, truth


@pytest.fixture(scope="module")
def predictor():
    return Predictor(profile(*(epoch(number, truth(), 0.2 if number else 0.0) for number in range(3))))


@pytest.mark.parametrize(
    ("workers", "hit_ratio"), [(8, 0.2), (8, 0.5), (8, 0.8), (4, 0.2), (16, 0.2), (16, 0.9)]
)
def test_other_caches_and_workers_are_predicted_from_one_run(predictor, workers, hit_ratio):
    found = predictor.predict(Setting(workers, announced=False), hit_ratio)
    expected = replay(truth(workers), SAMPLES, hit_ratio, seed=7)
    assert found.epoch_s == pytest.approx(expected.wall_s, rel=0.03)
    assert found.stall_share == pytest.approx(expected.stall_s / expected.wall_s, abs=0.03)
    assert found.origin_bytes == pytest.approx(SAMPLES * (1 - hit_ratio) * BYTES)
    assert found.requests == pytest.approx(SAMPLES * (1 - hit_ratio))


def test_a_link_and_a_faster_machine_are_predicted_too(predictor):
    link = BYTES / 0.02
    found = predictor.predict(Setting(8, announced=False, link=link, speed=2.0), 0.5)
    expected = replay(truth(compute_s=0.0005, link_s=0.02), SAMPLES, 0.5, seed=7)
    assert found.epoch_s == pytest.approx(expected.wall_s, rel=0.03)
    assert found.bound_by == "link"


def test_an_announced_order_hides_the_origin_but_not_the_link(predictor):
    hidden = predictor.predict(Setting(8, announced=True), 0.2)
    assert hidden.epoch_s == pytest.approx(SAMPLES * 0.001, rel=0.02)
    assert hidden.bound_by == "compute"
    full = predictor.predict(Setting(8, announced=True, link=BYTES / 0.02), 0.2)
    assert full.epoch_s == pytest.approx(SAMPLES * 0.8 * 0.02, rel=0.02)


def test_what_lies_ready_at_the_end_of_an_epoch_is_no_hit(predictor):
    # The next order comes when half of the epoch is computed. Then three eighths of the epoch are left to
    # read.
    half = Setting(8, announced=True, cache_bytes=0.5 * SAMPLES * BYTES, announced_at=0.5)
    found = predictor.predict(half, 0.5).hit_ratio
    assert 0.5 - 0.25 * 0.5 < found < 0.5 - 150 * 0.125 / SAMPLES
    # At most a quarter of the cache lies ready.
    small = Setting(8, announced=True, cache_bytes=280 * BYTES, announced_at=0.5)
    assert predictor.predict(small, 0.034).hit_ratio == pytest.approx(0.034 - 70 / SAMPLES)
    # An order that is known from the beginning of the previous epoch costs no hits. A full link costs none
    # either.
    early = replace(half, announced_at=0.0)
    assert predictor.predict(early, 0.5).hit_ratio == 0.5
    full = replace(half, link=BYTES / 0.02)
    assert predictor.predict(full, 0.5).hit_ratio == 0.5
    assert predictor.predict(Setting(8, announced=False, cache_bytes=400 * BYTES), 0.5).hit_ratio == 0.5


def test_a_cache_that_is_small_beside_the_fetches_limits_them(predictor):
    few = Setting(8, announced=True, cache_bytes=64 * BYTES)
    missed = SAMPLES * (1 - 48 / SAMPLES)
    assert predictor.predict(few, 64 / SAMPLES).epoch_s >= missed * 0.05 / (8 + 16)
    assert predictor.predict(few, 64 / SAMPLES).epoch_s > 2 * SAMPLES * 0.001


def test_another_latency_moves_the_wait_and_not_the_body():
    # A read takes 50 ms until its last byte, and the body takes 20 ms of them.
    far = Predictor(
        profile(*(epoch(number, truth(), 0.2) for number in range(2)), first_byte_s=0.03)
    ).predict(Setting(8, announced=False, latency_s=0.08), 0.2)
    assert far.epoch_s == pytest.approx(replay(truth(miss_s=0.1), SAMPLES, 0.2).wall_s, rel=0.03)


def test_a_slower_link_moves_the_body_and_not_the_wait():
    # A read takes 50 ms until its last byte, and the body takes 5 ms of them. The slower link needs 20 ms for
    # the body.
    told = [epoch(number, truth(), 0.2) for number in range(2)]
    slow = Predictor(profile(*told, first_byte_s=0.045)).predict(
        Setting(8, announced=False, link=BYTES / 0.02), 0.9
    )
    expected = replay(truth(miss_s=0.065, link_s=0.02), SAMPLES, 0.9)
    assert slow.epoch_s == pytest.approx(expected.wall_s, rel=0.03)


def test_the_spread_of_latencies_is_replayed():
    reads = {"batch_size": 32, "reads_at_once": 32}
    wide = replace(truth(workers=2), **reads, spread=0.5)
    told = [epoch(number, wide, 0.2) for number in range(2)]
    loader = Loader(workers=2, **reads)
    known = Predictor(profile(*told, loader=loader, origin_spread=0.5))
    expected = replay(wide, SAMPLES, 0.9).wall_s
    assert known.predict(Setting(2, announced=False), 0.9).epoch_s == pytest.approx(expected, rel=0.03)
    unknown = Predictor(profile(*told, loader=loader))
    assert unknown.predict(Setting(2, announced=False), 0.9).epoch_s > 1.2 * expected


def test_reads_that_were_faster_than_the_mean_are_fitted():
    # The measured mean also includes slower reads.
    found = Predictor(profile(*(epoch(number, truth(), 0.2) for number in range(2)), origin_s=0.07))
    expected = replay(truth(16), SAMPLES, 0.5).wall_s
    assert found.predict(Setting(16, announced=False), 0.5).epoch_s == pytest.approx(expected, rel=0.03)


def test_an_epoch_takes_as_long_as_training_says():
    # An epoch takes as long as training reports. The proxy measures another time, because it sees the first
    # read only when the read has ended, and the last report only when it arrives.
    one = epoch(0, truth(), 0.2)
    for factor in (0.9, 1.2):
        seen = msgspec.structs.replace(one, wall_s=one.wall_s * factor)
        assert profile().epoch_s(seen) == pytest.approx(one.wall_s)
    # Three of four ranks report their times.
    three = msgspec.structs.replace(one, stall_s=one.stall_s * 3, compute_s=one.compute_s * 3)
    assert profile(world_size=4).epoch_s(three) == one.wall_s
    four = msgspec.structs.replace(
        one, stall_s=one.stall_s * 4, compute_s=one.compute_s * 4, wall_s=1.05 * one.wall_s
    )
    assert profile(world_size=4).epoch_s(four) == pytest.approx(one.wall_s)
    silent = msgspec.structs.replace(one, stall_s=0.0, compute_s=0.0)
    assert profile().epoch_s(silent) == one.wall_s


def test_pages_take_more_than_their_bytes():
    assert profile(epoch(0, truth(), 0.2)).stored_bytes_per_sample == BYTES
    told = profile(epoch(0, truth(), 0.2), page_bytes=BYTES + 212)
    assert told.stored_bytes_per_sample == BYTES + 212
    shards = profile(epoch(0, truth(), 0.2), page_bytes=4_000_212)
    assert shards.stored_bytes_per_sample == pytest.approx(BYTES + 212 / 40)


def test_the_bound_of_an_epoch_that_mostly_waits_is_not_computing():
    # All samples of a batch are read at once. The batch ends with its slowest read, which the mean latency
    # does not show.
    loader = Loader(workers=1, batch_size=64, reads_at_once=64)
    told = truth(1, compute_s=0.002, miss_s=0.1)
    told = replace(told, reads_at_once=64, spread=0.8)
    found = Predictor(
        profile(*(epoch(number, told, 0.0) for number in range(2)), loader=loader, origin_spread=0.8,
                origin_s=0.1)
    ).predict(Setting(1, announced=False), 0.0)  # fmt: skip
    assert found.bounds["compute"] > found.bounds["latency"]
    assert found.stall_share > 0.5
    assert found.bound_by == "latency"


def test_reads_at_once_are_no_more_than_a_batch_has(predictor):
    wide = Loader(workers=8, batch_size=16, reads_at_once=4096)
    narrow = Loader(workers=8, batch_size=16, reads_at_once=16)
    found = [
        Predictor(predictor.profile, loader=loader).predict(Setting(8, announced=False), 0.2)
        for loader in (wide, narrow)
    ]
    assert found[0] == found[1]


def test_reads_that_waited_for_a_full_link_are_fitted():
    # 64 reads share a link, so most of a read's time is its wait for the other reads.
    link_s = 0.02
    told = replace(truth(compute_s=0.001, miss_s=0.05 + link_s, link_s=link_s), reads_at_once=8)
    loader = Loader(workers=8, batch_size=64, reads_at_once=8)
    measured = [epoch(number, told, 0.2) for number in range(2)]
    waited = profile(*measured, origin_s=64 * link_s, first_byte_s=0.05, loader=loader)
    found = Predictor(waited).predict(Setting(8, announced=False), 0.2)
    assert found.epoch_s == pytest.approx(measured[0].wall_s, rel=0.05)


def test_the_bound_is_named(predictor):
    assert predictor.predict(Setting(8, announced=False), 0.0).bound_by == "latency"
    assert predictor.predict(Setting(8, announced=False), 1.0).bound_by == "compute"


def test_the_error_is_how_far_epochs_are_from_the_others():
    same = Predictor(profile(*(epoch(number, truth(), 0.2) for number in range(3))))
    assert same.error < 0.02
    slow = Predictor(
        profile(*(epoch(number, truth(), 0.2, slower=1.2 if number else 1.0) for number in range(3)))
    )
    assert 0.1 < slow.error < 0.3
    assert Predictor(profile(epoch(0, truth(), 0.2))).error is None
    # Only the first epoch waits, so the later epochs cannot predict it.
    filled = Predictor(profile(*(epoch(number, truth(), 1.0 if number else 0.0) for number in range(3))))
    assert filled.error is None


def test_epochs_without_waiting_give_a_bound_that_is_not_too_fast():
    # Training never waited. So it is only known that a worker needs little time for a sample.
    easy = Predictor(profile(*(epoch(number, truth(), 1.0) for number in range(3)), origin_s=None))
    assert easy.predict(Setting(8, announced=False), 1.0).epoch_s == pytest.approx(SAMPLES * 0.001, rel=0.02)
    few = easy.predict(Setting(1, announced=False), 1.0).epoch_s
    assert few >= replay(truth(1), SAMPLES, 1.0).wall_s * 0.99


def test_the_speed_of_training_comes_from_waits_where_nothing_else_tells_it():
    told = [epoch(number, truth(), 0.2, compute_s=0.0) for number in range(2)]
    assert profile(*told).compute_s() == pytest.approx(0.001, rel=0.01)
    silent = [epoch(number, truth(), 0.2, compute_s=0.0, stall_s=0.0) for number in range(2)]
    with pytest.raises(ConfigError, match=r"reports no waiting time.*write --samples-per-s"):
        Predictor(profile(*silent))
    assert Predictor(profile(*silent), samples_per_s=1000).predict(
        Setting(8, announced=False), 0.2
    ).epoch_s == pytest.approx(replay(truth(), SAMPLES, 0.2).wall_s, rel=0.03)


def test_settings_far_from_the_profile_are_marked(predictor):
    assert not predictor.is_outside(Setting(8, announced=False))
    assert not predictor.is_outside(Setting(16, announced=False))
    assert predictor.is_outside(Setting(17, announced=False))
    assert predictor.is_outside(Setting(3, announced=False))
    assert predictor.is_outside(Setting(8, announced=True))
    assert predictor.is_outside(Setting(8, announced=False, speed=2.5))
    assert not predictor.is_outside(Setting(8, announced=False, latency_s=0.09))
    assert predictor.is_outside(Setting(8, announced=False, latency_s=0.2))


def test_an_epoch_that_was_left_early_does_not_count():
    whole = [epoch(number, truth(), 0.2) for number in range(2)]
    cut = epoch(2, truth(), 0.2, samples=SAMPLES // 2)
    assert require_epochs(profile(*whole, cut)) == whole
    with pytest.raises(ConfigError, match="has not read a whole epoch yet"):
        require_epochs(profile())


def test_a_job_that_does_not_tell_its_loader_needs_it_named():
    told = [epoch(number, truth(), 0.2) for number in range(2)]
    with pytest.raises(ConfigError, match=r"does not say how its loader reads: write --loader WORKERS,BATCH"):
        Predictor(profile(*told, loader=None))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "is no profile of a job"),
        (b'{"version": 1}', "is no profile of a job"),
        (msgspec.json.encode(profile(origin_s=1e308)), "Expected `float` <= 1000000000000000.0"),
        (msgspec.json.encode(profile(version=2)), "is a profile of version 2, and this is version 1"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(data, said):
    with pytest.raises(ConfigError, match=said):
        read_profile(data, "p.json")


def test_one_epoch_that_is_named_twice_tells_no_error():
    assert Predictor(profile(epoch(0, truth(), 0.2), epoch(0, truth(), 0.2))).error is None


def test_a_profile_survives_its_file():
    kept = profile(epoch(0, truth(), 0.2))
    assert read_profile(msgspec.json.encode(kept), "p.json") == kept
