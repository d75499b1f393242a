"""The metrics of requests, and what Prometheus needs of them: series from the start, counters that only grow,
and stable names.
"""

import shutil
import subprocess

import pytest

from shadeproxy.core.types import Source
from shadeproxy.telemetry.counters import TierGauges
from shadeproxy.telemetry.metrics import Metrics, render_process
from shadeproxy.telemetry.stats import Stats


@pytest.fixture
def health():
    return {}


@pytest.fixture
def stats(health):
    stats = Stats(origin_health=lambda: health)
    stats.watch_tier("ram", lambda: TierGauges(5, 9, 2, dropped_records=3))
    stats.watch("connections_refused", lambda: 4.0, grows=True)
    return stats


def lines(stats):
    return Metrics(stats, build={"version": "1.2.3", "lane": "compiled"}).render().decode().splitlines()


def test_requests_are_counted_by_status_and_timed_by_source(stats):
    stats.requests.group("GetObject", 503, Source.BYPASS).observe(25.0)
    stats.requests.group("GetObject", 200, Source.RAM).observe(0.0002)
    stats.requests.group("PutObject", 200, Source.BYPASS).observe(0.02, 4096)
    shown = lines(stats)
    for line in (
        'shadeproxy_requests_total{operation="GetObject",status="503"} 1.0',
        'shadeproxy_requests_total{operation="GetObject",status="200"} 1.0',
        'shadeproxy_request_received_bytes_total{operation="PutObject"} 4096.0',
        'shadeproxy_request_duration_seconds_bucket{le="0.0001",operation="GetObject",source="ram"} 0.0',
        'shadeproxy_request_duration_seconds_bucket{le="0.00025",operation="GetObject",source="ram"} 1.0',
        'shadeproxy_request_duration_seconds_bucket{le="+Inf",operation="GetObject",source="bypass"} 1.0',
        'shadeproxy_request_duration_seconds_sum{operation="GetObject",source="bypass"} 25.0',
    ):
        assert line in shown


@pytest.mark.parametrize(
    "series",
    [
        'shadeproxy_requests_total{operation="GetObject",status="503"}',
        'shadeproxy_requests_total{operation="Invalid",status="503"}',
        'shadeproxy_request_duration_seconds_count{operation="GetObject",source="disk"}',
        'shadeproxy_origin_requests_total{kind="get"}',
        'shadeproxy_origin_latency_seconds_count{kind="get"}',
        'shadeproxy_origin_errors_total{error="OriginUnavailable"}',
        "shadeproxy_origin_throttled_total",
        'shadeproxy_tier_evictions_total{reason="policy",tier="ram"}',
        'shadeproxy_tier_errors_total{kind="read",tier="ram"}',
    ],
)
def test_a_series_is_there_before_its_first_event(stats, series):
    """A series exists before its first event. Otherwise rate() would not show this event, and an alert on it
    would never fire.
    """
    assert f"{series} 0.0" in lines(stats)


def test_what_only_grows_is_a_counter_and_keeps_its_former_name_for_one_release(stats):
    shown = lines(stats)
    for name, labels, value in (
        ("connections_refused", "", "4.0"),
        ("tier_dropped_records", '{tier="ram"}', "3.0"),
    ):
        assert f"# TYPE shadeproxy_{name}_total counter" in shown
        assert f"shadeproxy_{name}_total{labels} {value}" in shown
        assert f"# TYPE shadeproxy_{name} gauge" in shown
        assert f"shadeproxy_{name}{labels} {value}" in shown
        former = f"Former name of shadeproxy_{name}_total; it goes with the next release."
        assert f"# HELP shadeproxy_{name} {former}" in shown


def test_the_origin_is_neither_up_nor_down_until_something_is_known(stats, health):
    """The metric shows the origin neither as up nor as down before its state is known. The series exists from
    the start, and its first value raises no alarm.
    """
    assert "shadeproxy_origin_up NaN" in lines(stats)
    health["answering"] = True
    assert "shadeproxy_origin_up 1.0" in lines(stats)
    health.update(answering=False, throttled=2, probes=7, attempts_failed=5, clock_skew_s=1.5)
    shown = lines(stats)
    for line in (
        "shadeproxy_origin_up 0.0",
        "shadeproxy_origin_throttled_total 2.0",
        "shadeproxy_origin_probes_total 7.0",
        "shadeproxy_origin_attempts_failed_total 5.0",
        "shadeproxy_origin_clock_skew_seconds 1.5",
    ):
        assert line in shown


def test_the_build_and_the_process_are_shown(stats):
    assert 'shadeproxy_build_info{lane="compiled",version="1.2.3"} 1.0' in lines(stats)
    text = render_process().decode()
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"):
        assert f"\n{name} " in text


def test_promtool_finds_nothing_to_say_about_the_names(stats):
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool: apt-get install prometheus")
    stats.record_read("train", Source.RAM, 10)
    stats.record_origin("get", 10, 0.02)
    stats.count_cluster(dict)
    text = Metrics(stats, build={"version": "1"}).render() + render_process()
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
