"""Requests of clients by operation, status and source: how they are counted, sent to the coordinator, and
shown.
"""

import pytest

from shadeproxy.core.types import Source
from shadeproxy.telemetry.metrics import Metrics
from shadeproxy.telemetry.requests import MAX_GROUPS, REQUEST_BOUNDS_S, RequestCounts, RequestGroup
from shadeproxy.telemetry.stats import Stats


@pytest.fixture
def counts():
    return RequestCounts()


def observed(*durations_s):
    group = RequestGroup()
    for duration_s in durations_s:
        group.observe(duration_s)
    return group


def test_a_request_is_shown_by_status_and_by_source(counts):
    counts.group("GetObject", 200, Source.RAM).observe(0.0002)
    counts.group("GetObject", 200, Source.ORIGIN).observe(0.2)
    counts.group("GetObject", 503, Source.BYPASS).observe(25.0)
    counts.group("PutObject", 200, Source.BYPASS).observe(0.1, 4096)
    shown = counts.as_json()
    assert shown["by_operation"] == {
        "GetObject": {"statuses": {"200": 2, "503": 1}, "received_bytes": 0},
        "PutObject": {"statuses": {"200": 1}, "received_bytes": 4096},
    }
    assert {source: times["count"] for source, times in shown["latency_s"].items()} == {
        "ram": 1, "origin": 1, "bypass": 2,
    }  # fmt: skip
    assert shown["latency_s"]["origin"]["sum"] == pytest.approx(0.2)


def test_groups_that_only_exist_are_not_shown_in_the_json(counts):
    counts.group("GetObject", 200, Source.DISK)
    assert counts.as_json() == {"by_operation": {}, "latency_s": {}}


def test_a_quantile_lies_in_the_bucket_of_its_requests():
    group = observed(*[0.0002] * 98, 0.3, 500.0)
    assert 0.0001 < group.quantile_s(0.5) <= 0.00025
    assert 0.25 < group.quantile_s(0.99) <= 0.5
    assert group.quantile_s(1.0) == REQUEST_BOUNDS_S[-1]
    assert RequestGroup().quantile_s(0.5) == 0.0


def test_a_duration_on_a_bound_is_in_its_bucket():
    assert observed(*REQUEST_BOUNDS_S).buckets == [1] * len(REQUEST_BOUNDS_S) + [0]


def test_what_a_worker_takes_the_coordinator_adds_once(counts):
    group = counts.group("GetObject", 206, Source.DISK)
    group.observe(0.001, 7)
    total = RequestCounts()
    for _ in range(2):
        total.add(counts.take())
    assert counts.take() == []
    # The lanes keep this group. So the next ``take`` must still look at it.
    group.observe(0.001)
    assert counts.group("GetObject", 206, Source.DISK) is group
    total.add(counts.take())
    (row,) = total.take()
    assert (row.requests, row.received_bytes, sum(row.buckets)) == (2, 7, 2)


def test_statuses_of_a_wild_origin_take_no_memory_without_end(counts):
    for number in range(3 * MAX_GROUPS):
        counts.group("GetObject", 100 + number, Source.BYPASS).observe(0.1)
    assert len(counts.groups) == MAX_GROUPS + 1
    assert sum(group.requests for group in counts.groups.values()) == 3 * MAX_GROUPS
    stats = Stats()
    stats.requests = counts
    text = Metrics(stats).render().decode()
    assert f'shadeproxy_requests_total{{operation="Other",status="other"}} {2.0 * MAX_GROUPS}' in text


def test_errors_are_counted_by_range_of_status(counts):
    for status in (200, 404, 499, 503, 500):
        counts.group("GetObject", status, Source.BYPASS).observe(0.1)
    assert counts.count_statuses(500, 600) == 2
    assert counts.count_statuses(400, 500) == 2
