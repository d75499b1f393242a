"""Hits of a worker that are stored parts of pages, or pages of an object without its first page: it judges
each record by the record's own time of validation, if the first page tells no other.
"""

import asyncio
import os
from dataclasses import replace

import numpy as np
import pytest

from shadeproxy.core.clock import boot_time_s
from shadeproxy.core.conditions import Conditions
from shadeproxy.core.errors import OriginAnswer
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import JobContext, ObjectRef, Span, Upstream
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.freshness.verdicts import Verdicts
from shadeproxy.engine.index.columns import Share
from shadeproxy.engine.rules import Freshness, Rule, Rules
from shadeproxy.engine.worker_reads import TierFiles, WorkerReads
from tests.support.purging import purge_under

PAGE = 1 << 20
REF = ObjectRef("b", "k")
SPAN = Span(PAGE + 5000, PAGE + 25_000)
TTL_S = 60.0
RULES = (Rule(ttl_s=TTL_S),)


def content(seed):
    return np.random.default_rng(seed).bytes(4 * PAGE)


class Beside:
    """A worker beside a bench with the object "k", of which only parts are resident."""

    def __init__(self, bench, reader):
        self.bench, self.reader = bench, reader
        self.put(content(1))

    def put(self, body, **options):
        self.body = body
        self.bench.origin.put("b", "k", body, **options)

    async def store(self, *spans):
        """Let the object's metadata be known, and read spans, which are then stored alone."""
        await self.bench.engine.stat(ReadRequest(REF))
        for span in spans or [SPAN]:
            await self.read(span)

    async def read(self, span):
        """Read a span by the coordinator."""
        body, source = await self.bench.get("k", range=RangeSpec(span.start, span.stop - 1))
        assert body == self.body[span.start : span.stop]
        await self.bench.settle()
        return source

    def hit(self, span=SPAN):
        """Return the bytes of a hit of the worker, found by both ways. None: it has no hit."""
        request = ReadRequest(REF, RangeSpec(span.start, span.stop - 1))
        meta, now_s = self.reader.usable_now(request), self.bench.clock.now_s()
        found = None if meta is None else self.reader.hit(request, meta, span)
        body = None if found is None else b"".join(found.pieces)
        handle = self.reader.find_handle(REF, span.start, now_s)
        if handle is not None and handle.holds(span):
            assert self.reader.take(handle, None, now_s, span) == body
        elif span.stop // PAGE == span.start // PAGE:
            assert body is None
        assert body is None or body == self.body[span.start : span.stop]
        return body


@pytest.fixture
def make(make_bench):
    async def make(*, rules=RULES, by_verdicts=False, is_elsewhere=None, **options):
        share = Share.create()
        bench = await make_bench(
            share=share,
            rules=rules,
            ram_bytes=32 << 20,
            budget_bytes=64 << 20,
            page_size=PAGE,
            segment_bytes=4 << 20,
            **options,
        )
        tiers = [
            TierFiles(m.tier.path, m.tier.claim.store_id, m.source, m.load is not None)
            for m in bench.cache.media
        ]
        reader = WorkerReads(
            Share(os.dup(share.descriptor)),
            tiers,
            rules=Rules(rules),
            clock=bench.clock,
            page_size=PAGE,
            on_flush=bench.engine.note_reads,
            by_verdicts=by_verdicts,
            is_elsewhere=is_elsewhere,
        )
        return Beside(bench, reader)

    return make


async def test_a_part_is_answered_as_far_as_it_goes(make):
    beside = await make()
    assert beside.hit() is None
    await beside.store()
    assert beside.bench.cached(["k"]) == 0
    for stop in (SPAN.start + 1, SPAN.stop - 1, SPAN.stop):
        assert beside.hit(Span(SPAN.start, stop)) is not None
    assert beside.hit(Span(SPAN.start, SPAN.stop + 1)) is None
    assert beside.hit(Span(SPAN.start + 1, SPAN.stop)) is None
    assert beside.hit(Span(PAGE, PAGE + 1)) is None
    request = ReadRequest(REF, RangeSpec(SPAN.start, SPAN.stop - 1))
    assert beside.reader.usable_now(request) is not None
    assert beside.reader.usable_now(request._replace(force_check=True)) is None
    assert beside.reader.usable_now(request._replace(upstream=Upstream("other"))) is None
    assert beside.reader.usable_now(request._replace(range=None)) is None
    assert beside.reader.usable_now(request._replace(conditions=Conditions(if_range='"x"'))) is None


async def test_a_range_over_two_pages_is_answered_from_the_parts_of_both(make):
    beside = await make()
    span = Span(PAGE - 3000, PAGE + 2000)
    await beside.store(span)
    assert beside.hit(span) is not None
    assert beside.hit(Span(span.start, span.stop - 1)) is not None
    assert beside.hit(Span(span.start, span.stop + 1)) is None
    assert beside.hit(Span(span.start, 3 * PAGE)) is None


async def test_the_page_answers_once_it_is_resident(make):
    beside = await make()
    await beside.store()
    assert beside.hit() is not None
    await beside.read(Span(PAGE, 2 * PAGE))
    assert beside.hit() is not None
    assert beside.reader.find_handle(REF, SPAN.start, beside.bench.clock.now_s()).first == PAGE
    assert beside.hit(Span(SPAN.start, 2 * PAGE)) is not None


async def test_a_hit_counts_as_a_read_of_its_part(make):
    beside = await make()
    await beside.store()
    (slot,) = beside.bench.cache.residents.pages_of(
        beside.reader.find_handle(REF, SPAN.start, 0.0).object_hash
    )
    used, before = float(beside.bench.cache.residents.uses[slot]), beside.bench.counted_stats().totals()
    handle, now_s = beside.reader.find_handle(REF, SPAN.start, 0.0), beside.bench.clock.now_s()
    beside.reader.take(handle, JobContext("j", 1, 0), now_s, SPAN)
    beside.reader.flush()
    after = beside.bench.counted_stats().totals()
    assert (after.hits_ram, after.bytes) == (before.hits_ram + 1, before.bytes + SPAN.length)
    assert beside.bench.cache.residents.uses[slot] == used + 1


async def overwrite(beside):
    async with beside.bench.engine.writing([REF]):
        beside.put(content(2))


async def find_another_version(beside):
    beside.put(content(2))
    await beside.bench.engine._versions.check(REF, ReadRequest(REF).upstream)


async def purge(beside):
    await purge_under(beside.bench.engine, "b", "")


async def touch_bucket(beside):
    async with beside.bench.engine.writing([ObjectRef("b", "")]):
        pass


async def distrust(beside):
    beside.bench.engine.distrust()


async def evict(beside):
    table = beside.bench.cache.residents
    for slot in table.ready().tolist():
        beside.bench.cache.drop(slot, "evicted")


@pytest.mark.parametrize("change", [overwrite, find_another_version, purge, touch_bucket, distrust, evict])
async def test_a_change_counts_from_the_moment_it_is_decided(make, change):
    beside = await make()
    await beside.store()
    handle = beside.reader.find_handle(REF, SPAN.start, beside.bench.clock.now_s())
    assert beside.hit() is not None
    await change(beside)
    assert beside.reader.take(handle, None, beside.bench.clock.now_s(), SPAN) is None
    assert beside.hit() is None


async def test_a_part_is_fresh_by_its_own_time(make):
    beside = await make()
    await beside.store()
    beside.bench.clock.advance(TTL_S - 1)
    await beside.read(Span(3 * PAGE, 3 * PAGE + 1000))
    assert beside.hit() is not None
    beside.bench.clock.advance(2)
    assert beside.hit() is None
    assert beside.hit(Span(3 * PAGE, 3 * PAGE + 1000)) is not None


@pytest.mark.parametrize("freshness", [Freshness.REVALIDATE, Freshness.IMMUTABLE])
async def test_other_rules_hold_for_parts_too(make, freshness):
    beside = await make(rules=(Rule(freshness=freshness),))
    await beside.store()
    beside.bench.clock.advance(1e6)
    assert (beside.hit() is not None) == (freshness is Freshness.IMMUTABLE)


async def test_a_part_that_the_coordinator_serves_again_is_fresh_again(make):
    """The object was checked, and its first page, which would tell so, is not resident."""
    beside, spans = await make(), [SPAN, Span(3 * PAGE, 3 * PAGE + 1000)]
    await beside.store(*spans)
    engine, clock = beside.bench.engine, beside.bench.clock
    for _ in range(3):
        clock.advance(TTL_S + 1)
        assert [beside.hit(span) for span in spans] == [None, None]
        await engine._versions.check(REF, ReadRequest(REF).upstream)
        # The check is noted with one record, which tells the next process of it.
        assert [beside.hit(span) for span in spans].count(None) == 1
        for span in spans:
            assert engine.find_handle(REF, span.start, clock.now_s()) is not None
            assert beside.hit(span) is not None
        clock.advance(TTL_S - 1)
        assert None not in [beside.hit(span) for span in spans]


async def test_a_part_is_fresh_as_long_as_the_first_page_of_its_version_is(make):
    beside = await make()
    await beside.store()
    await beside.read(Span(0, PAGE))
    beside.bench.clock.advance(TTL_S + 1)
    assert beside.hit() is None
    await beside.bench.engine._versions.check(REF, ReadRequest(REF).upstream)
    assert beside.hit() is not None
    beside.bench.clock.advance(TTL_S + 1)
    assert beside.hit() is None


async def test_the_first_page_of_another_version_says_nothing_of_a_part(make):
    beside = await make()
    await beside.store()
    await beside.read(Span(0, PAGE))
    reader, clock = beside.reader, beside.bench.clock
    clock.advance(TTL_S + 1)
    await beside.bench.engine._versions.check(REF, ReadRequest(REF).upstream)
    request = ReadRequest(REF, RangeSpec(SPAN.start, SPAN.stop - 1))
    front = reader.find_handle(REF, 0, clock.now_s())
    kept, front.meta = front.meta, replace(front.meta, etag='"other"')
    assert reader.hit(request, reader.usable_now(request), SPAN) is None
    assert reader.find_handle(REF, SPAN.start, clock.now_s()) is None
    front.meta = kept
    assert beside.hit() is not None


async def test_a_part_with_other_header_fields_is_not_made_fresh(make):
    """The header fields were changed in place, which keeps the ETag. The coordinator has forgotten the old
    ones; the part's record has not.
    """
    beside = await make()
    await beside.store()
    engine, clock = beside.bench.engine, beside.bench.clock
    clock.advance(TTL_S + 1)
    engine._versions.forget(REF)
    beside.put(
        beside.body,
        headers=(("Content-Type", "text/plain"), ("Last-Modified", "Sat, 01 Jan 2028 00:00:00 GMT")),
    )
    meta, _ = await engine.stat(ReadRequest(REF))
    handle = engine.find_handle(REF, SPAN.start, clock.now_s())
    assert handle is None or handle.meta.header("Content-Type") == meta.header("Content-Type") == "text/plain"
    assert beside.hit() is None


async def test_pages_without_a_first_page_are_fresh_by_their_own_time(make):
    beside = await make()
    await beside.store(Span(2 * PAGE, 3 * PAGE))
    span = Span(2 * PAGE + 7, 3 * PAGE)
    assert beside.hit(span) is not None
    beside.bench.clock.advance(TTL_S + 1)
    assert beside.hit(span) is None


async def test_where_the_origin_decides_only_a_verdict_answers(make):
    beside = await make(verdicts=True, by_verdicts=True)
    await beside.store()
    assert beside.hit() is None
    await beside.read(SPAN)
    assert beside.hit() is None
    await beside.read(Span(0, PAGE))
    for _ in range(2):
        await beside.read(Span(0, PAGE))
    assert beside.bench.engine.usable_now(ReadRequest(REF)) is not None
    assert beside.hit() is not None
    beside.bench.engine.forget_rights(Verdicts(1000.0))
    beside.reader.forget(by_verdicts=True)
    assert beside.hit() is None


async def test_only_a_lease_answers_where_proxies_share_a_cache(make):
    beside = await make(is_elsewhere=lambda _ref: False)
    await beside.store()
    share = beside.bench.cache.residents.share
    assert beside.hit() is None
    share.show_lease(boot_time_s() + 60)
    assert beside.hit() is not None
    share.show_lease(boot_time_s())
    assert beside.hit() is None


async def test_after_a_restart_parts_are_answered_when_they_were_checked(make, make_bench):
    """The end was unclean, so every record must be checked once."""
    beside = await make()
    await beside.store()
    table = beside.bench.cache.residents
    (slot,) = table.ready().tolist()
    # Recovery leaves records in this state.
    _, location = table.displace(slot)
    table.validated_s[slot], table.unverified[slot] = 0.0, True
    table.place(slot, 0, location, int(table.record_bytes[slot]))
    assert beside.hit() is None
    assert (await beside.read(SPAN)).value == "ram"
    assert beside.hit() is None
    assert beside.bench.engine.find_handle(REF, SPAN.start, beside.bench.clock.now_s()) is not None
    assert beside.hit() is not None


async def forgotten(make):
    """Return a worker that has hits of a part, of whose object the coordinator has forgotten the metadata."""
    beside = await make()
    await beside.store()
    beside.bench.engine._versions.forget(REF)
    assert beside.hit() is not None
    return beside


async def test_a_part_is_dropped_when_the_origin_answers_that_its_object_is_gone(make):
    beside = await forgotten(make)
    beside.bench.origin.buckets["b"].pop("k")
    with pytest.raises(OriginAnswer, match="404"):
        await beside.bench.get("k", range=RangeSpec(3 * PAGE, 3 * PAGE + 99))
    await beside.bench.settle()
    assert beside.hit() is None


@pytest.mark.parametrize("is_new", [False, True])
async def test_a_listing_that_names_another_version_drops_a_part(make, is_new):
    beside = await forgotten(make)
    if is_new:
        beside.put(content(2))
    beside.bench.engine.check_listed("b", "", 100)
    await beside.bench.settle()
    while not beside.bench.engine._versions.idle:
        await asyncio.sleep(0.01)
    assert (beside.hit() is None) is is_new
