"""The access log records a read by page handle as one row. The read counts once, for its job, even if the
page has left the cache meanwhile.
"""

import asyncio
import time

import pytest

from shadeproxy.core.types import JobContext, ObjectRef, Span
from shadeproxy.engine.read import access_log as access_log_module

REF = ObjectRef("b", "k")
BODY = bytes(range(200))


@pytest.fixture
async def bench(make_bench):
    bench = await make_bench()
    bench.origin.put("b", "k", BODY)
    await bench.get("k")
    await bench.settle()
    return bench


def handle(bench):
    return bench.engine.find_handle(REF, 0, bench.clock.now_s())


def take(bench, held, job=None, span=None):
    assert bench.engine.take(held, job, bench.clock.now_s(), span) is not None


def read_by(bench, job):
    """Return requests and bytes of ``job``, as the statistics count them."""
    bench.engine.access_log.flush()
    reads = bench.stats.jobs[job].totals()
    return reads.requests, reads.hit_bytes_ram


async def test_each_read_counts_for_whom_it_was(bench):
    held = handle(bench)
    one, other = JobContext("one", 1, 0), JobContext("other", 1, 0)
    for _ in range(3):
        take(bench, held, one)
        take(bench, held, other)
        take(bench, held, other, Span(10, 30))
    assert read_by(bench, "one") == (3, 600)
    assert read_by(bench, "other") == (6, 660)


async def test_kinds_that_have_become_many_begin_anew_and_nothing_is_miscounted(bench, monkeypatch):
    monkeypatch.setattr(access_log_module, "_MOST_KINDS", 3)
    held = handle(bench)
    for number in range(8):
        for job in (JobContext(f"j{number}"), JobContext("always")):
            take(bench, held, job)
            bench.engine.access_log.flush_to_statistics()
    assert len(bench.engine.access_log.kinds) <= 4
    take(bench, held, JobContext("j0"))
    assert [read_by(bench, f"j{number}") for number in range(8)] == [(2, 400), *[(1, 200)] * 7]
    assert read_by(bench, "always") == (8, 1600)


async def test_kinds_that_were_replaced_are_not_kept_by_tickets_of_old(bench, monkeypatch):
    monkeypatch.setattr(access_log_module, "_MOST_KINDS", 3)
    held = handle(bench)
    take(bench, held, JobContext("first"))
    replaced = held.access_record.kinds
    for number in range(4):
        bench.engine.access_log.kind("b", held.source, JobContext(f"j{number}"))
    bench.engine.access_log.flush_to_statistics()
    assert bench.engine.access_log.kinds is not replaced
    assert not replaced
    assert read_by(bench, "first") == (1, 200)


async def test_a_read_of_a_page_that_went_counts_and_is_no_use_of_the_page_in_its_place(bench):
    held = handle(bench)
    take(bench, held, JobContext("j"))
    bench.cache.drop_object(REF, "test")
    bench.origin.put("b", "other", b"another")
    await bench.get("other")
    await bench.settle()
    assert bench.cache.residents.uses[held.slot] == 1
    assert read_by(bench, "j") == (1, 200)
    assert bench.cache.residents.uses[held.slot] == 1


async def test_a_use_is_told_once(bench):
    held = handle(bench)
    before = bench.cache.residents.uses[held.slot]
    take(bench, held)
    bench.engine.access_log.flush_to_statistics()
    bench.engine.access_log.flush()
    bench.engine.access_log.flush()
    assert bench.cache.residents.uses[held.slot] == before + 1


@pytest.mark.parametrize(("read_s", "expected"), [(10e-6, [1024, *[512] * 5]), (0, [1024, 2048, 512])])
async def test_the_timer_passes_on_only_as_many_reads_at_once_as_take_a_short_time(
    bench, monkeypatch, read_s, expected
):
    """Otherwise a burst of hits would hold the event loop up: each read costs the more, the more jobs have an
    order.
    """
    log, held, batches = bench.engine.access_log, handle(bench), []
    before = bench.cache.residents.uses[held.slot]

    def count(uses, _kinds, _tick):
        batches.append(len(uses))
        until_s = time.perf_counter() + len(uses) * read_s
        while time.perf_counter() < until_s:
            pass
        return uses["reads"] > 1

    monkeypatch.setattr(log, "_count", count)
    monkeypatch.setattr(access_log_module, "_LONG_FLUSH_S", 0.004 if read_s else 60)
    for _ in range(sum(expected)):
        take(bench, held)
    turns = 0
    while log.rows:
        await asyncio.sleep(0)
        turns += 1
    assert batches == expected
    assert turns >= len(expected)
    assert bench.cache.residents.uses[held.slot] == before + sum(expected)


async def test_reads_that_wait_for_the_next_turn_keep_their_kinds(bench, monkeypatch):
    monkeypatch.setattr(access_log_module, "_MOST_KINDS", 3)
    held = handle(bench)
    for number in range(2000):
        take(bench, held, JobContext(f"j{number // 400}"))
    while bench.engine.access_log.rows:
        await asyncio.sleep(0.001)
    assert [read_by(bench, f"j{number}") for number in range(5)] == [(400, 80_000)] * 5
