import math
import statistics

import pytest

from shadeproxy.core.types import JobContext, Source
from shadeproxy.hints import jobs as jobs_module
from shadeproxy.telemetry.counters import TierGauges
from shadeproxy.telemetry.metrics import Metrics
from shadeproxy.telemetry.stats import MAX_BUCKETS, MAX_EPOCHS, MAX_JOBS, MAX_KINDS, Stats
from tests.support.clock import ManualClock


@pytest.fixture
def stats():
    return Stats()


def test_hit_ratio_counts_ram_and_disk_over_all_demand_reads(stats):
    for source, size_bytes in [
        (Source.RAM, 10),
        (Source.DISK, 30),
        (Source.ORIGIN, 100),
        (Source.COALESCED, 50),
        (Source.BYPASS, 10),
    ]:
        stats.record_read("train", source, size_bytes)
    totals = stats.snapshot()["totals"]
    assert totals["requests"] == 5
    assert totals["hit_ratio"] == pytest.approx(2 / 5)
    assert totals["byte_hit_ratio"] == pytest.approx(40 / 200)
    assert (totals["origin"], totals["coalesced"], totals["bypass"]) == (1, 1, 1)


def test_nothing_but_demand_reads_moves_the_ratio(stats):
    stats.record_read("train", Source.RAM, 10)
    stats.record_origin("get", 1000, 0.02)
    stats.record_prefetch("issued")
    stats.record_bypass()
    stats.record_coalesced()
    totals = stats.snapshot()["totals"]
    assert totals["requests"] == 1
    assert totals["hit_ratio"] == 1.0
    assert totals["origin_requests"] == 1
    assert totals["origin_bytes"] == 1000


def test_an_empty_snapshot_has_ratios_of_zero(stats):
    assert stats.snapshot()["totals"]["hit_ratio"] == 0.0
    assert stats.snapshot()["origin"]["latency_s"] == {"sum": 0.0, "p50": 0.0, "p90": 0.0, "p99": 0.0}


def test_reads_of_a_job_are_counted_by_epoch(stats):
    stats.record_read("train", Source.ORIGIN, 10, JobContext("resnet", 0, 0))
    stats.record_read("train", Source.RAM, 10, JobContext("resnet", 1, 0))
    stats.record_read("train", Source.RAM, 10, JobContext("resnet"))
    stats.record_training("resnet", 1, stall_s=0.5, compute_s=1.0)
    stats.record_training("resnet", 1, stall_s=0.25, compute_s=0.0)
    job = stats.snapshot()["jobs"]["resnet"]
    assert job["requests"] == 3
    assert job["stall_s"] == 0.75
    assert set(job["epochs"]) == {"0", "1", "unknown"}
    assert job["epochs"]["1"]["hit_ratio"] == 1.0
    assert job["epochs"]["1"]["stall_s"] == 0.75
    assert stats.snapshot()["totals"]["stall_s"] == 0.75


def test_reads_that_name_no_epoch_are_of_the_epoch_in_training():
    clock = ManualClock()
    stats = Stats(now_s=clock.now_s)
    stats.record_read("train", Source.ORIGIN, 10, JobContext("resnet"))
    for epoch in (0, 1):
        stats.record_training("resnet", epoch, stall_s=0.5, compute_s=1.0)
        clock.advance(9.0)
        stats.record_read("train", Source.RAM, 10, JobContext("resnet"))
        stats.record_prefetched("resnet", 10)
    clock.advance(2.0)  # Training has ended, so this read is another reader's.
    stats.record_read("train", Source.RAM, 10, JobContext("resnet"))
    epochs = stats.snapshot()["jobs"]["resnet"]["epochs"]
    assert {name: reads["requests"] for name, reads in epochs.items()} == {"unknown": 2, "0": 1, "1": 1}
    assert epochs["1"]["prefetched_bytes"] == 10


def test_epochs_of_a_new_run_are_not_added_to_those_of_an_earlier_one(stats):
    stats.begin_run("resnet")
    for _ in range(2):
        for epoch in (0, 1, None):
            stats.record_read("train", Source.RAM, 10, JobContext("resnet", epoch))
        stats.record_training("resnet", 1, stall_s=0.5, compute_s=1.0)
        stats.begin_run("resnet")
    stats.record_read("train", Source.RAM, 10, JobContext("resnet"))
    stats.record_read("train", Source.RAM, 10, JobContext("resnet", 0))
    job = stats.snapshot()["jobs"]["resnet"]
    assert {name: one["requests"] for name, one in job["epochs"].items()} == {
        "other": 6,
        "unknown": 1,
        "0": 1,
    }
    assert (job["requests"], job["stall_s"]) == (8, 1.0)


def test_tiers_show_hits_gauges_and_evictions(stats):
    gauges = TierGauges(
        used_bytes=5,
        capacity_bytes=9,
        pages=2,
        limit_bytes=7,
        pinned_bytes=3,
        dropped_records=3,
        read_speed=6,
    )
    stats.watch_tier("ram", lambda: gauges)
    stats.record_read("train", Source.RAM, 10)
    stats.record_read("train", Source.ORIGIN, 30)
    stats.record_admission("ram")
    stats.record_eviction("ram", "capacity")
    stats.record_eviction("disk", "capacity")
    stats.record_tier_error("disk", "io")
    snapshot = stats.snapshot()
    assert snapshot["tiers"]["ram"] == {
        "admissions": 1,
        "left_to_origin": 0,
        "evictions": {"capacity": 1},
        "errors": {},
        "hits": 1,
        "hit_bytes": 10,
        "hit_ratio": 0.5,
        "byte_hit_ratio": 0.25,
        "used_bytes": 5,
        "capacity_bytes": 9,
        "pages": 2,
        "limit_bytes": 7,
        "pinned_bytes": 3,
        "disabled_reason": "",
        "hanging": 0,
        "dropped_records": 3,
        "dropped_catalogues": 0,
        "dropped_lists": 0,
        "owed_erasures": 0,
        "tombstones": 0,
        "in_doubt": 0,
        "read_speed": 6,
    }
    assert snapshot["tiers"]["disk"]["errors"] == {"io": 1}
    assert snapshot["evictions"] == {"capacity": 2}


def test_a_watched_tier_shows_before_anything_happened(stats):
    stats.watch_tier("disk", lambda: TierGauges(1, 2, 3))
    assert stats.snapshot()["tiers"]["disk"]["capacity_bytes"] == 2


def test_latency_quantiles_lie_in_the_bucket_of_their_requests(stats):
    for _ in range(99):
        stats.record_origin("get", 1, 0.015)
    stats.record_origin("head", 0, 3.0)
    latency_s = stats.snapshot()["origin"]["latency_s"]
    assert 0.01 < latency_s["p50"] <= 0.02
    assert 0.01 < latency_s["p99"] <= 0.02
    assert latency_s["sum"] == pytest.approx(99 * 0.015 + 3.0)
    assert 2.0 < stats.snapshot()["origin"]["by_kind"]["head"]["latency_s"]["p50"] <= 5.0


def test_first_bytes_have_a_mean_of_those_that_were_timed(stats):
    assert stats.snapshot()["origin"]["first_byte_s"] is None
    stats.record_first_byte("get", 0.1)
    stats.record_first_byte("get", 0.3)
    stats.record_origin("get", 1, 0.5)
    shown = stats.snapshot()["origin"]
    assert shown["first_byte_s"] == shown["by_kind"]["get"]["first_byte_s"] == pytest.approx(0.2)


def test_the_spread_of_latencies_is_that_of_their_logarithms(stats):
    assert stats.origin["get"].latency_spread == 0.0
    for latency_s in (0.05, 0.2, 0.05, 0.2, 0.0):
        stats.record_origin("get", 1, latency_s)
    # The last time is too short for an origin, and counts as a microsecond.
    logarithms = [math.log(one) for one in (0.05, 0.2, 0.05, 0.2, 1e-6)]
    assert stats.origin["get"].latency_spread == pytest.approx(statistics.pstdev(logarithms))


def test_a_latency_beyond_the_last_bound_is_not_lost(stats):
    stats.record_origin("get", 1, 1000.0)
    assert stats.snapshot()["origin"]["latency_s"]["p50"] == 30.0


def test_bucket_names_are_capped_and_sums_lose_nothing(stats):
    for number in range(10 * MAX_BUCKETS):
        stats.record_read(f"bucket-{number}", Source.RAM, 1)
    snapshot = stats.snapshot()
    assert len(snapshot["buckets"]) == MAX_BUCKETS + 1
    assert snapshot["buckets"]["other"]["requests"] == 9 * MAX_BUCKETS
    assert snapshot["totals"]["requests"] == 10 * MAX_BUCKETS


def test_a_busy_job_is_not_displaced_by_a_flood_of_names(stats):
    for number in range(10 * MAX_JOBS):
        stats.record_read("train", Source.RAM, 1, JobContext("resnet", 0))
        stats.record_read("train", Source.RAM, 1, JobContext(f"noise-{number}", number))
    jobs = stats.snapshot()["jobs"]
    assert len(jobs) == MAX_JOBS + 1
    assert jobs["resnet"]["requests"] == 10 * MAX_JOBS
    assert sum(job["requests"] for job in jobs.values()) == 20 * MAX_JOBS


def test_epochs_of_a_job_are_capped(stats):
    for epoch in range(3 * MAX_EPOCHS):
        stats.record_read("train", Source.RAM, 1, JobContext("resnet", epoch))
    job = stats.snapshot()["jobs"]["resnet"]
    assert len(job["epochs"]) == MAX_EPOCHS + 1
    assert job["requests"] == 3 * MAX_EPOCHS
    assert str(3 * MAX_EPOCHS - 1) in job["epochs"]


def test_kinds_of_errors_are_capped(stats):
    for number in range(2 * MAX_KINDS):
        stats.record_origin_error(f"kind-{number}")
    origin = stats.snapshot()["origin"]
    assert origin["errors"] == 2 * MAX_KINDS
    assert len(origin["errors_by_kind"]) == MAX_KINDS + 1


def test_folded_origin_kinds_keep_their_latencies(stats):
    for number in range(2 * MAX_KINDS):
        stats.record_origin(f"kind-{number}", 1, 0.015)
    origin = stats.snapshot()["origin"]
    assert origin["requests"] == 2 * MAX_KINDS
    assert 0.01 < origin["latency_s"]["p50"] <= 0.02
    assert origin["latency_s"]["sum"] == pytest.approx(2 * MAX_KINDS * 0.015)


def numbers_of(value, path=()):
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from numbers_of(inner, (*path, name))
    else:
        yield path, value


def test_every_counter_of_the_snapshot_is_in_the_metrics(stats):
    stats.watch_tier("ram", lambda: TierGauges(5, 9, 2))
    stats.watch("budget_bytes", lambda: 77.0)
    stats.record_read("train", Source.RAM, 10, JobContext("resnet", 0))
    stats.record_origin("get", 10, 0.02)
    stats.record_origin_error("unavailable")
    stats.record_eviction("ram", "capacity")
    stats.record_tier_error("ram", "io")
    stats.record_training("resnet", 0, stall_s=2.5, compute_s=0.0)
    text = Metrics(stats).render().decode()
    snapshot = stats.snapshot()
    for path, _ in numbers_of({"bucket": snapshot["buckets"]["train"]}):
        if not path[-1].endswith("ratio"):
            assert f'shadeproxy_bucket_{path[-1]}_total{{bucket="train"}}' in text
    for name in ("issued", "used", "wasted"):
        assert f"shadeproxy_prefetch_{name}_total 0.0" in text
    for line in (
        'shadeproxy_job_stall_seconds_total{job="resnet"} 2.5',
        'shadeproxy_tier_evictions_total{reason="capacity",tier="ram"} 1.0',
        'shadeproxy_tier_errors_total{kind="io",tier="ram"} 1.0',
        'shadeproxy_tier_capacity_bytes{tier="ram"} 9.0',
        'shadeproxy_origin_errors_total{error="unavailable"} 1.0',
        'shadeproxy_origin_latency_seconds_bucket{kind="get",le="0.02"} 1.0',
        'shadeproxy_origin_latency_seconds_count{kind="get"} 1.0',
        "shadeproxy_budget_bytes 77.0",
    ):
        assert line in text


def test_two_proxies_in_one_process_do_not_share_metrics(stats):
    stats.record_read("train", Source.RAM, 10)
    assert b'bucket="train"' not in Metrics(Stats()).render()


def test_a_job_name_cannot_break_the_metrics_text(stats):
    stats.record_read("train", Source.RAM, 10, JobContext('a"\nevil 1', 0))
    text = Metrics(stats).render().decode()
    assert 'job="a\\"\\nevil 1"' in text


def test_a_clock_that_is_set_back_makes_no_negative_time():
    times = iter([1000.0, 1010.0, 400.0])
    stats = Stats(now_s=lambda: next(times))
    for _ in range(3):
        stats.record_read("train", Source.RAM, 1, JobContext("resnet", 0))
    assert stats.snapshot()["jobs"]["resnet"]["epochs"]["0"]["wall_s"] == 10.0


def test_an_epoch_begins_with_its_first_read_or_report():
    times = iter([1000.0, 1010.0])
    stats = Stats(now_s=lambda: next(times))
    stats.record_prefetched("resnet", 10)
    assert stats.snapshot()["jobs"]["resnet"]["began_s"] is None
    stats.record_training("resnet", 0, stall_s=0.0, compute_s=1.0)
    stats.record_read("train", Source.RAM, 1, JobContext("resnet", 0))
    shown = stats.snapshot()["jobs"]["resnet"]["epochs"]["0"]
    assert (shown["began_s"], shown["wall_s"]) == (1000.0, 10.0)


def test_every_job_that_can_be_registered_has_counters():
    assert MAX_JOBS >= jobs_module.MAX_JOBS
