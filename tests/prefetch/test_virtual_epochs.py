"""Whole epochs over the real engine in virtual time. Bytes and times with prefetching are compared with those
without it.
"""

from shadeproxy_bench.studies.prefetch.model import EVICTION, NOTHING, PREFETCHING, Setting, train


def test_prefetching_costs_hardly_any_bytes_and_hides_the_latency():
    setting = Setting("fast", 512, 8000, 128.0, 0.05, batch=8, epochs=3)
    ours, alone = train(setting, PREFETCHING), train(setting, EVICTION)
    assert ours.origin_bytes <= 1.03 * alone.origin_bytes
    assert ours.stall_s <= 0.02 * ours.wall_s


def test_a_loop_whose_workers_are_far_apart_hardly_loses_by_prefetching():
    """A loop whose workers are far apart loses almost nothing by prefetching. Eight workers have half of the
    epoch under way. So the job passes announced samples before it reads them, and their pages are evicted
    unread. The cache is small, and the link is slow.
    """
    setting = Setting("far apart", 512, 8000, 512.0, 0.02, 1e6, 0.05, batch=16, epochs=2)
    ours, plain = train(setting, PREFETCHING), train(setting, NOTHING)
    assert ours.first_s + ours.wall_s <= 1.04 * (plain.first_s + plain.wall_s)
