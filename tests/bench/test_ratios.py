"""The suite "ratios": its reads, the time at which it sends each hint, and the reads that it counts."""

import numpy as np
import pytest

from shadeproxy.simulate.hints import parse_announce
from shadeproxy.simulate.workloads import importance, uniform
from shadeproxy_bench.suites import ratios


def reads_of(trace, announce="none"):
    return ratios.Reads(trace, parse_announce(announce))


def test_every_job_reads_its_part_of_the_trace_in_order():
    trace = uniform(50, 2, jobs=3)
    reads = reads_of(trace)
    read = [one for one, _ in reads]
    assert [one.object for one in read] == trace.ids.tolist()
    assert {one.job for one in read[:3]} == {0, 1, 2}, "one pace"
    for one in read:
        assert reads.orders[one.job][one.epoch][one.place] == one.object
    assert all(sorted(order.tolist()) == list(range(50)) for orders in reads.orders for order in orders)


@pytest.mark.parametrize(
    ("announce", "expected"),
    [
        ("none", []),
        ("epoch", [(0, 0, 0), (1, 0, 1), (2, 0, 2)]),
        ("next-half", [(0, 0, 0), (0, 5, 1), (1, 5, 2)]),
        ("2", [(0, 0, 0), (0, 0, 1), (1, 0, 2)]),
        ("all", [(0, 0, 0), (0, 0, 1), (0, 0, 2)]),
    ],
)
@pytest.mark.parametrize("jobs", [1, 2])
def test_orders_are_told_when_the_row_says(announce, expected, jobs):
    reads = reads_of(uniform(10, 3, jobs=jobs), announce)
    for job in range(jobs):
        told = [
            (one.epoch, one.place, epoch) for one, known in reads for epoch in known.orders if one.job == job
        ]
        assert told == expected


def test_weights_are_told_once_an_epoch():
    told = [(one.epoch, one.place) for one, known in reads_of(importance(20, 3)) if known.weights]
    assert told == [(0, 0), (1, 0), (2, 0)]
    assert not any(known.weights for _, known in reads_of(uniform(20, 3)))


def test_where_all_fits_every_later_read_of_an_object_is_a_hit_and_first_epochs_do_not_count():
    trace = importance(60, 3)
    seen_before = np.array([number in trace.ids[:place] for place, number in enumerate(trace.ids)])
    expected = 100 * seen_before[trace.counted()].mean()
    assert 50 < expected < 100
    found = ratios.hit_ratio(reads_of(trace, "next-half"), cached=2.0, policy="default")
    assert found == pytest.approx(expected)
