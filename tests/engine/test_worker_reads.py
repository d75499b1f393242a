"""Hits that a worker reads by itself. It returns the engine's bytes or None, and never bytes of a page that
has moved meanwhile.
"""

import os

import pytest

from shadeproxy.core.clock import boot_time_s
from shadeproxy.core.ranges import parse_range
from shadeproxy.core.types import JobContext, ObjectRef, Source, Span, Upstream
from shadeproxy.engine import worker_reads as module
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.freshness.verdicts import Verdicts
from shadeproxy.engine.index import columns
from shadeproxy.engine.index.columns import Share
from shadeproxy.engine.rules import Freshness, Rule, Rules
from shadeproxy.engine.worker_reads import TierFiles, WorkerReads
from tests.support.engine import PAGE
from tests.support.purging import purge_under

SMALL = ObjectRef("b", "small")
BIG = ObjectRef("b", "big")
BODIES = {SMALL: bytes(range(250)) * 10, BIG: bytes(range(251)) * 50}
PLAIN = ReadRequest(SMALL)


@pytest.fixture
def beside(make_bench):
    """Return a function that makes an engine with two objects, and the reads of a worker beside
    this engine.
    """

    async def make(*, rules=(), warm=True, by_verdicts=False, is_elsewhere=None, **kwargs):
        share = Share.create()
        bench = await make_bench(share=share, rules=rules, **kwargs)
        for ref, body in BODIES.items():
            bench.origin.put(ref.bucket, ref.key, body)
            if warm:
                await bench.get(ref.key)
        await bench.settle()
        tiers = [
            TierFiles(m.tier.path, m.tier.claim.store_id, m.source, m.load is not None)
            for m in bench.cache.media
        ]
        bench.flushed = []
        reader = WorkerReads(
            Share(os.dup(share.descriptor)),
            tiers,
            rules=Rules(rules),
            clock=bench.clock,
            page_size=PAGE,
            on_flush=lambda *what: bench.flushed.append(what),
            by_verdicts=by_verdicts,
            is_elsewhere=is_elsewhere,
        )
        return bench, reader

    return make


def hit(reader, ref=SMALL, span=None, **kwargs):
    request = ReadRequest(ref, **kwargs)
    meta = reader.usable_now(request)
    found = None if meta is None else reader.hit(request, meta, span or Span(0, meta.size))
    return None if found is None else b"".join(found.pieces)


async def test_it_has_what_the_engine_has(beside):
    bench, reader = await beside()
    assert reader.usable_now(PLAIN) == bench.engine.usable_now(PLAIN)
    assert hit(reader) == BODIES[SMALL]
    for span in (Span(0, 1), Span(PAGE - 5, PAGE + 5), Span(2 * PAGE, 3 * PAGE)):
        assert hit(reader, BIG, span) == BODIES[BIG][span.start : span.stop]
    assert hit(reader, BIG) is None  # The object has too many pages for a worker; the engine streams it.
    assert hit(reader, ObjectRef("b", "none")) is None
    handle = reader.find_handle(PLAIN.ref, 0, bench.clock.now_s())
    assert reader.take(handle, None, bench.clock.now_s()) == BODIES[SMALL]
    assert not reader.find_handle(BIG, 0, bench.clock.now_s()).whole


@pytest.mark.parametrize("kwargs", [{"force_check": True}, {"upstream": Upstream("other")}])
async def test_what_the_origin_decides_is_not_for_it(beside, kwargs):
    _, reader = await beside()
    assert hit(reader, **kwargs) is None


async def read_with_verdict(bench):
    """Read twice as a client that shares the proxy's upstream. The second read is a hit."""
    await bench.get("small")
    assert bench.engine.usable_now(PLAIN) is not None


async def test_where_the_origin_decides_it_answers_while_a_shown_verdict_counts(beside):
    bench, reader = await beside(verdicts=True, by_verdicts=True)
    assert hit(reader) is None  # Workers see no verdict before the engine has answered a hit.
    await read_with_verdict(bench)
    assert hit(reader) == BODIES[SMALL]
    assert hit(reader, upstream=Upstream("other")) is None
    assert hit(reader, BIG, Span(0, 1)) is None
    handle = reader.find_handle(SMALL, 0, bench.clock.now_s())
    assert reader.take(handle, None, bench.clock.now_s()) == BODIES[SMALL]
    bench.clock.advance(61)
    assert hit(reader) is None
    assert reader.take(handle, None, bench.clock.now_s()) is None
    await read_with_verdict(bench)
    assert hit(reader) == BODIES[SMALL]


async def test_what_another_upstream_read_shows_no_verdict(beside):
    bench, reader = await beside(verdicts=True, by_verdicts=True, warm=False)
    other = Upstream("other")
    for _ in range(2):
        assert (await bench.get("small", upstream=other))[0] == BODIES[SMALL]
        await bench.settle()
    assert bench.engine.usable_now(ReadRequest(SMALL, upstream=other)) is not None
    assert hit(reader) is None


async def test_a_write_or_new_rights_void_what_was_shown(beside):
    bench, reader = await beside(verdicts=True, by_verdicts=True)
    await read_with_verdict(bench)
    handle = reader.find_handle(SMALL, 0, bench.clock.now_s())
    assert hit(reader) is not None
    async with bench.engine.writing([ObjectRef("b", "")]):
        pass
    assert hit(reader) is None
    assert reader.take(handle, None, bench.clock.now_s()) is None
    # The other client's check makes the page fresh again. It is no verdict for this client.
    await bench.engine._versions.check(SMALL, Upstream("other"))
    assert hit(reader) is None
    await read_with_verdict(bench)
    assert hit(reader) is not None
    bench.engine.forget_rights(Verdicts(1000.0))
    reader.forget(by_verdicts=True)
    assert hit(reader) is None


@pytest.mark.parametrize("freshness", [Freshness.TTL, Freshness.REVALIDATE])
async def test_what_is_not_fresh_is_for_the_engine(beside, freshness):
    bench, reader = await beside(rules=(Rule(freshness=freshness, ttl_s=10.0),))
    handle = reader.find_handle(PLAIN.ref, 0, bench.clock.now_s())
    assert (handle is not None) == (freshness is Freshness.TTL)
    bench.clock.advance(11)
    assert hit(reader) is None
    assert handle is None or reader.take(handle, None, bench.clock.now_s()) is None
    await bench.engine._versions.check(SMALL, PLAIN.upstream)
    assert (hit(reader) is not None) == (freshness is Freshness.TTL)


async def overwrite(bench):
    async with bench.engine.writing([SMALL]):
        bench.origin.put("b", "small", b"new" * 800)
    await bench.get("small")
    await bench.settle()


async def purge(bench):
    await purge_under(bench.engine, "b", "")


async def touch_bucket(bench):
    async with bench.engine.writing([ObjectRef("b", "")]):
        pass


@pytest.mark.parametrize("change", [overwrite, purge, touch_bucket])
async def test_a_change_counts_from_the_moment_it_is_decided(beside, change):
    bench, reader = await beside()
    handle = reader.find_handle(PLAIN.ref, 0, bench.clock.now_s())
    assert hit(reader) == BODIES[SMALL]
    await change(bench)
    assert reader.take(handle, None, bench.clock.now_s()) is None
    assert hit(reader) == (b"new" * 800 if change is overwrite else None)


ANSWERS = {
    "find_handle": lambda reader, handle, now_s: reader.find_handle(SMALL, 0, now_s) is handle,
    "take": lambda reader, handle, now_s: reader.take(handle, None, now_s) is not None,
}


@pytest.mark.parametrize("way", ANSWERS)
@pytest.mark.parametrize("spoil", ["", "moved", "over"])
async def test_only_a_good_handle_answers(beside, way, spoil):
    bench, reader = await beside()
    now_s = bench.clock.now_s()
    handle = reader.find_handle(SMALL, 0, now_s)
    if spoil == "moved":
        handle.stamp += 1
    elif spoil == "over":
        handle.fresh_until_s = now_s
    assert bool(ANSWERS[way](reader, handle, now_s)) is (spoil == "")


async def test_pieces_of_a_hit_are_of_one_moment(beside, monkeypatch):
    """The pieces of a hit are all of one moment. Here the first page moves while the worker copies the second
    page.
    """
    bench, reader = await beside()
    span = Span(PAGE - 5, PAGE + 5)
    first = reader.find_handle(BIG, 0, bench.clock.now_s())
    copy = WorkerReads._copy

    def disturbed(self, handle, start, stop):
        body = copy(self, handle, start, stop)
        if handle is not first:
            first.stamp += 1
        return body

    monkeypatch.setattr(WorkerReads, "_copy", disturbed)
    assert hit(reader, BIG, span) is None
    assert hit(reader, BIG, span) is not None


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("when", ["proving", "copying"])
async def test_what_changes_during_a_read_is_not_answered(beside, monkeypatch, before, when):
    """A page that changes during a read does not answer the read. The page leaves, and another page takes its
    place just before or after the worker reads the bytes.
    """
    bench, reader = await beside()
    handle = reader.find_handle(PLAIN.ref, 0, bench.clock.now_s()) if when == "copying" else None
    read = module._pread

    def disturbed(*args, **kwargs):
        monkeypatch.setattr(module, "_pread", read)
        found = b"" if before else read(*args, **kwargs)
        residents = bench.cache.residents
        (slot,) = residents.pages_of(module.object_hash(SMALL))
        # Only the stamp shows the change, because even the header of the new record is equal.
        _, location = residents.displace(slot)
        residents.place(slot, 0, location, int(residents.record_bytes[slot]))
        return read(*args, **kwargs) if before else found

    monkeypatch.setattr(module, "_pread", disturbed)
    if handle is None:
        assert reader.usable_now(PLAIN) is None
    else:
        assert reader.take(handle, None, bench.clock.now_s()) is None
    assert hit(reader) == BODIES[SMALL]


async def test_a_header_that_is_another_s_is_not_believed(beside):
    bench, reader = await beside()
    handle = reader.find_handle(PLAIN.ref, 0, bench.clock.now_s())
    (slot,) = bench.cache.residents.pages_of(module.object_hash(SMALL))
    bench.cache.media[0].tier.erase(int(bench.cache.residents.location[slot]))
    assert reader.take(handle, None, bench.clock.now_s()) is None


async def test_an_unverified_page_is_shown_when_its_body_was_checked(beside):
    bench, reader = await beside()
    residents = bench.cache.residents
    (slot,) = residents.pages_of(module.object_hash(SMALL))
    # Recovery leaves pages in this state.
    residents.displace(slot)
    residents.unverified[slot] = True
    residents.place(slot, 0, residents.location[slot], int(residents.record_bytes[slot]))
    assert hit(reader) is None
    assert (await bench.get("small"))[1] is Source.RAM
    assert hit(reader) == BODIES[SMALL]


async def test_a_table_that_outgrew_its_place_is_no_longer_read(beside, monkeypatch):
    monkeypatch.setattr(columns, "SHARED_CAPACITY", 8)
    bench, reader = await beside()
    handle = reader.find_handle(PLAIN.ref, 0, bench.clock.now_s())
    assert hit(reader) == BODIES[SMALL]
    bench.origin.put("b", "more", b"more" * 6000)
    await bench.get("more")
    await bench.settle()
    assert reader.take(handle, None, bench.clock.now_s()) is None
    assert hit(reader) is None
    assert await bench.get("small") == (BODIES[SMALL], Source.RAM)


async def test_reads_arrive_in_the_statistics_and_in_the_order_of_use(beside):
    bench, reader = await beside()
    before, job = bench.counted_stats().totals(), JobContext("j", 1, 0)
    reader.take(reader.find_handle(PLAIN.ref, 0, bench.clock.now_s()), job, bench.clock.now_s())
    hit(reader, BIG, Span(PAGE - 5, PAGE + 5), range=parse_range("bytes=1-2"))
    reader.flush()
    reader.flush()
    (flushed,) = bench.flushed
    (slot,) = bench.cache.residents.pages_of(module.object_hash(SMALL))
    used = float(bench.cache.residents.uses[slot])
    bench.engine.note_reads(*flushed)
    after = bench.counted_stats().totals()
    assert after.hits_ram == before.hits_ram + 2
    assert after.bytes == before.bytes + len(BODIES[SMALL]) + 10
    assert bench.stats.jobs["j"].epochs[1].requests == 1
    assert bench.cache.residents.uses[slot] == used + 1


async def test_only_a_lease_answers_where_proxies_share_a_cache(beside):
    bench, reader = await beside(is_elsewhere=lambda _ref: False)
    share = bench.cache.residents.share
    assert hit(reader) is None
    share.show_lease(boot_time_s() + 60)
    now_s = bench.clock.now_s()
    handle = reader.find_handle(SMALL, 0, now_s)
    assert (hit(reader), bytes(reader.take(handle, None, now_s))) == (BODIES[SMALL], BODIES[SMALL])
    share.show_lease(boot_time_s())
    assert reader.find_handle(SMALL, 0, now_s) is None
    assert (hit(reader), reader.take(handle, None, now_s), reader.usable_now(PLAIN)) == (None, None, None)
    share.show_lease(boot_time_s() + 60)
    assert hit(reader) == BODIES[SMALL]


async def test_objects_of_other_proxies_are_not_cacheable_here(beside):
    _, reader = await beside(is_elsewhere=BIG.__eq__)
    assert (reader.cacheable(SMALL), reader.cacheable(BIG)) == (True, False)


async def test_a_job_whose_reads_others_answer_is_told_without_a_read(beside):
    bench, reader = await beside()
    assert hit(reader, job=JobContext("other", 1, 0)) == BODIES[SMALL]
    reader.flush()
    bench.flushed.clear()
    for _ in range(2):
        reader.note_job("b", JobContext("train", 1, 0))
        reader.note_job("b", JobContext("train", 1, 0))
        reader.flush()
        reader.flush()
    (uses, kinds), again = bench.flushed
    assert len(uses) == len(again[0]) == 0
    assert again[1] == kinds
    assert [(kind.bucket, kind.source, kind.job.job) for kind in kinds] == [("b", Source.BYPASS, "train")]
    before = bench.stats.totals()
    bench.engine.note_reads(uses, kinds)
    bench.engine.access_log.flush()
    assert bench.stats.totals() == before


async def test_many_kinds_of_reads_are_counted_and_then_forgotten(beside):
    bench, reader = await beside()
    log, handle = reader.access_log, reader.find_handle(SMALL, 0, 0.0)
    for _ in range(2):
        before = log.kinds
        for number in range(1100):
            log.record(handle, JobContext(f"job-{number}", 1, 0))
        reader.flush()
        uses, kinds = bench.flushed.pop()
        assert [kinds[number].job.job for number in uses["kind"]] == [f"job-{n}" for n in range(1100)]
        assert not before, "the handle still has it"


def test_a_reader_sees_the_lease_that_the_writer_shows():
    share = Share.create()
    reader = Share(os.dup(share.descriptor))
    assert reader.lease[0] == 0.0
    share.show_lease(123.5)
    assert reader.lease[0] == 123.5
    share.show_lease(float("-inf"))
    assert reader.lease[0] == float("-inf")
