"""A recording contains every demand read once, in the order of the answers, whichever process answered."""

import asyncio

from shadeproxy.core.types import JobContext, ObjectRef, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.rules import Rule
from shadeproxy.hints.hashing import object_hash
from shadeproxy.telemetry.recording import GROUP_BITS, NO_GROUP, NO_RANK, SOURCES, Recording

K, PASSED = ObjectRef("b", "k"), ObjectRef("b", "passed/x")
JOB = JobContext("train", epoch=3, rank=1)


def columns(reads):
    """Return hash, bytes, job name, rank, epoch, seconds, source and group of each read."""
    chunks, tables = reads.snapshot()
    rows = list(zip(*(column.tolist() for chunk in chunks for column in chunk), strict=True))
    groups = {NO_GROUP: None, **dict(enumerate(tables["group_names"].tolist()))}
    return [
        (
            hashed, size_bytes,
            str(tables["job_names"][tables["reader_jobs"][reader]]), int(tables["reader_ranks"][reader]),
            epoch, time_ms / 1000, SOURCES[place >> GROUP_BITS], groups[place & NO_GROUP],
        )
        for hashed, size_bytes, reader, epoch, time_ms, place in rows
    ]  # fmt: skip


async def test_hits_that_are_counted_late_stand_before_later_reads(make_bench):
    reads = Recording(100)
    bench = await make_bench(rules=(Rule(bucket="b", prefix="passed/", cache=False),), recording=reads)
    bench.origin.put("b", "k", bytes(1000))
    bench.origin.put("b", "passed/x", bytes(70))
    await bench.get("k", job=JOB)
    await bench.settle()
    bench.clock.advance(1.5)
    now_s = bench.clock.now_s()
    for _ in range(3):
        await asyncio.sleep(0)  # The first use of a page is counted at once, and later uses together.
        handle = bench.engine.find_handle(K, 0, now_s)
        assert bench.engine.take(handle, JOB, now_s) is not None
    assert bench.engine.hit(ReadRequest(K), bench.engine.usable_now(ReadRequest(K)), Span(0, 10)) is not None
    await bench.get("passed/x")
    k, passed = object_hash(K), object_hash(PASSED)
    assert columns(reads) == [
        (k, 1000, "train", 1, 3, 0, "origin", "b/"),
        *[(k, 1000, "train", 1, 3, 1.5, "ram", "b/")] * 3,
        (k, 10, "", NO_RANK, 0, 1.5, "ram", "b/"),
        (passed, 70, "", NO_RANK, 0, 1.5, "origin", "b/passed/"),
    ]


async def test_the_group_of_a_slot_with_another_page_by_now_is_not_told(make_bench):
    reads = Recording(100)
    bench = await make_bench(recording=reads)
    bench.origin.put("b", "one/k", bytes(1000))
    ref = ObjectRef("b", "one/k")
    await bench.get("one/k")
    await bench.settle()
    now_s = bench.clock.now_s()
    assert bench.engine.take(bench.engine.find_handle(ref, 0, now_s), None, now_s) is not None
    bench.cache.drop(bench.cache.residents.first_page(object_hash(ref)), "purged")
    bench.engine.access_log.flush()
    assert [row[-2:] for row in columns(reads)] == [("origin", "b/one/"), ("ram", None)]
