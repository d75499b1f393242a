"""What an engine records: every demand read once, in the order of the answers, whoever answered."""

import asyncio

from shadeproxy.core.types import JobContext, ObjectRef, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.rules import Rule
from shadeproxy.hints.hashing import object_hash
from shadeproxy.telemetry.recording import Recording

K, PASSED = ObjectRef("b", "k"), ObjectRef("b", "passed/x")
JOB = JobContext("train", epoch=3)


def columns(reads):
    return list(zip(*(column.tolist() for chunk in reads.chunks() for column in chunk), strict=True))


async def test_hits_that_are_counted_late_stand_before_later_reads(make_bench):
    reads = Recording(100)
    bench = await make_bench(rules=(Rule(bucket="b", prefix="passed/", cache=False),), recording=reads)
    bench.origin.put("b", "k", bytes(1000))
    bench.origin.put("b", "passed/x", bytes(70))
    await bench.get("k", job=JOB)
    await bench.settle()
    now_s = bench.clock.now_s()
    for _ in range(3):
        await asyncio.sleep(0)  # the first use of a page is noted at once, later ones together
        handle = bench.engine.find_handle(K, 0, now_s)
        assert bench.engine.take(handle, JOB, now_s) is not None
    assert bench.engine.hit(ReadRequest(K), bench.engine.usable_now(ReadRequest(K)), Span(0, 10)) is not None
    await bench.get("passed/x")
    k, passed = object_hash(K), object_hash(PASSED)
    assert columns(reads) == [(k, 1000, 0, 3)] * 4 + [(k, 10, 1, 0), (passed, 70, 1, 0)]
