"""Answers that need no waiting: complete and counted, or None and nothing happened."""

import os

import pytest

from shadeproxy.core.ranges import parse_range
from shadeproxy.core.types import ObjectRef, Source, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.rules import Freshness, Rule
from shadeproxy.hints.hashing import object_hash
from tests.support.engine import PAGE

REF = ObjectRef("b", "k")
PLAIN = ReadRequest(REF)
BODY = bytes(range(251)) * 50  # a little over three pages


async def warmed(make_bench, body=BODY, **kwargs):
    bench = await make_bench(**kwargs)
    bench.origin.put("b", "k", body)
    await bench.get("k")
    await bench.settle()
    return bench


def hit(bench, span, request=PLAIN):
    meta = bench.engine.usable_now(request)
    found = None if meta is None else bench.engine.hit(request, meta, span)
    return None if found is None else (b"".join(found.pieces), found.source)


async def test_what_was_never_read_is_no_hit_and_is_not_counted(make_bench):
    bench = await make_bench()
    bench.origin.put("b", "k", BODY)
    assert bench.engine.usable_now(ReadRequest(REF)) is None
    assert bench.stats.totals().requests == 0


@pytest.mark.parametrize("span", [Span(0, 1), Span(10, PAGE), Span(PAGE - 5, PAGE + 5), Span(PAGE, 3 * PAGE)])
async def test_resident_bytes_are_answered_and_counted(make_bench, span):
    bench = await warmed(make_bench)
    before = bench.stats.totals().hits_ram
    assert hit(bench, span) == (BODY[span.start : span.stop], Source.RAM)
    assert bench.stats.totals().hits_ram == before + 1


async def test_a_span_of_many_pages_is_for_the_streaming_path(make_bench):
    bench = await warmed(make_bench)
    before = bench.stats.totals().requests
    assert hit(bench, Span(0, len(BODY))) is None
    assert bench.stats.totals().requests == before


async def test_a_page_that_is_gone_is_no_hit(make_bench):
    bench = await warmed(make_bench)
    (second,) = (
        s for s in bench.cache.residents.pages_of(object_hash(REF)) if bench.cache.residents.number[s] == 1
    )
    bench.cache.drop(second, "test")
    before = bench.stats.totals().requests
    assert hit(bench, Span(PAGE - 1, PAGE + 1)) is None
    assert bench.stats.totals().requests == before
    assert hit(bench, Span(0, PAGE)) == (BODY[:PAGE], Source.RAM)


async def test_who_was_not_let_through_by_the_origin_gets_no_hit(make_bench):
    bench = await warmed(make_bench, verdicts=True)
    assert bench.engine.usable_now(ReadRequest(REF)) is not None
    assert bench.engine.usable_now(ReadRequest(REF, upstream="stranger")) is None


async def test_a_rule_that_wants_a_check_first_gives_no_hit(make_bench):
    bench = await warmed(make_bench, rules=(Rule(freshness=Freshness.REVALIDATE),))
    assert bench.engine.usable_now(ReadRequest(REF)) is None


async def test_no_cache_gives_no_hit(make_bench):
    bench = await warmed(make_bench)
    assert bench.engine.usable_now(ReadRequest(REF, force_check=True)) is None


async def test_stale_metadata_answers_and_is_checked_behind_the_answer(make_bench):
    bench = await warmed(make_bench, rules=(Rule(ttl_s=5.0),))
    bench.clock.advance(6.0)
    assert hit(bench, Span(0, 4)) == (BODY[:4], Source.RAM)
    assert not bench.engine._versions.idle


async def test_metadata_that_was_forgotten_is_read_from_the_record(make_bench):
    bench = await warmed(make_bench)
    bench.engine._versions.forget(REF)
    assert hit(bench, Span(3, 9)) == (BODY[3:9], Source.RAM)


@pytest.mark.parametrize("span", [Span(1, 9), Span(PAGE - 3, 2 * PAGE + 7), Span(0, len(BODY))])
async def test_a_process_beside_us_finds_the_bytes_and_their_header(make_bench, span):
    bench = await warmed(make_bench)
    request = ReadRequest(REF)
    located = bench.engine.locate(request, bench.engine.usable_now(request), span)
    assert b"".join(_copy(one) for one in located) == BODY[span.start : span.stop]
    assert all(_intact(one) for one in located)
    bench.cache.drop_object(REF, "test")
    assert not any(_intact(one) for one in located), "a copy made now would be taken for the page"


async def test_ranges_of_a_request_do_not_matter_to_a_hit(make_bench):
    bench = await warmed(make_bench)
    request = ReadRequest(REF, range=parse_range("bytes=5-6"))
    assert hit(bench, Span(5, 7), request) == (BODY[5:7], Source.RAM)


def _copy(one):
    return _pread(one.path, one.length, one.offset)


def _intact(one):
    return _pread(one.path, len(one.header), one.header_offset) == one.header


def _pread(path, length, offset):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.pread(descriptor, length, offset)
    finally:
        os.close(descriptor)


async def test_tickets_are_made_by_the_rules_that_stand(make_bench):
    bench = await warmed(make_bench)
    now_s = bench.clock.now_s()
    assert bench.engine.find_handle(REF, 0, now_s) is not None
    bench.engine._rules.adopt([Rule(freshness=Freshness.REVALIDATE)])
    bench.engine.forget_rights(None)
    assert bench.engine.find_handle(REF, 0, now_s) is None
    bench.engine._rules.adopt([])
    assert bench.engine.find_handle(REF, 0, now_s) is not None


async def test_a_read_is_not_noted_on_the_page_that_has_its_slot_by_then(make_bench):
    bench = await warmed(make_bench, body=b"one")
    # As in a big cache, where a few reads wait for others before they are noted.
    bench.cache.before_deciding = lambda: None
    assert hit(bench, Span(0, 3)) == (b"one", Source.RAM)
    (slot,) = bench.cache.residents.pages_of(object_hash(REF))
    bench.cache.drop_object(REF, "test")
    bench.origin.put("b", "other", b"another")
    await bench.get("other")
    await bench.settle()
    assert bench.cache.residents.pages_of(object_hash(ObjectRef("b", "other"))) == [slot]
    bench.engine.access_log.flush()
    assert bench.cache.residents.uses[slot] == 1
