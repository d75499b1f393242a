"""The pace of one job: how many lost pages end the prefetching, and when it begins again."""

import random

from shadeproxy.prefetch.pace import FetchPace

READS_PER_S = 50


def feed(pace, pages, is_lost, now_s):
    """Report the fates of prefetched pages at READS_PER_S. Return the time, and the number of pages for which
    prefetching did not pay.
    """
    stopped = 0
    for _ in range(pages):
        (pace.note_lost if is_lost() else pace.note_used)()
        now_s += 1 / READS_PER_S
        pace.note_reads(1, READS_PER_S, now_s)
        stopped += not pace.pays
    return now_s, stopped


def test_a_job_that_loses_three_pages_in_a_hundred_is_prefetched_without_a_stop():
    """Prefetching for a job that loses three pages in a hundred never stops. Losses come together: here 30 %
    of the losses are followed by another one.
    """
    drawn, last = random.Random(1), [False]

    def is_lost():
        last[0] = drawn.random() < (0.3 if last[0] else 0.022)
        return last[0]

    _, stopped = feed(FetchPace(0.0), 20_000, is_lost, 0.0)
    assert stopped == 0


def test_a_job_that_loses_a_third_is_prefetched_no_more():
    pace, drawn = FetchPace(0.0), random.Random(1)
    feed(pace, 100, lambda: drawn.random() < 1 / 3, 0.0)
    assert not pace.pays


def test_prefetching_is_tried_again_within_a_minute_or_so():
    pace = FetchPace(0.0)
    now_s, _ = feed(pace, 40, lambda: True, 0.0)
    assert not pace.pays
    while not pace.pays:
        now_s += 1.0
        pace.note_reads(READS_PER_S, READS_PER_S, now_s)
    assert 20.0 < now_s < 90.0


def test_it_begins_again_within_a_minute_however_many_pages_are_lost_after_it_stopped():
    """Pages that were fetched before prefetching stopped may be lost long afterwards. A job that was
    restarted with another order, for example, has many of them. They do not make the pause longer.
    """
    pace = FetchPace(0.0)
    for _ in range(1000):
        pace.note_lost()
    assert not pace.pays
    for second in range(1, 61):
        pace.note_lost()
        pace.note_reads(10, 10.0, float(second))
        if pace.pays:
            break
    assert pace.pays
