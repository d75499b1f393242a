"""Hits without a wait: either the read is answered and counted, or the result is None and nothing has
changed.
"""

import os
from types import SimpleNamespace

import numpy as np
import pytest

from shadeproxy.core.ranges import parse_range, span_within
from shadeproxy.core.types import ObjectRef, Source, Span
from shadeproxy.engine.base import UNKNOWN, ReadRequest
from shadeproxy.engine.rules import Freshness, Rule
from shadeproxy.engine.storage.hot_pages import COPY_BYTES
from shadeproxy.hints.hashing import object_hash
from shadeproxy.tiers.base import SendableBlocks
from tests.support.engine import PAGE
from tests.support.purging import purge_under

REF = ObjectRef("b", "k")
PLAIN = ReadRequest(REF)
BODY = bytes(range(251)) * 50  # a little more than three pages


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
    assert bench.counted_stats().totals().requests == 0


@pytest.mark.parametrize("span", [Span(0, 1), Span(10, PAGE), Span(PAGE - 5, PAGE + 5), Span(PAGE, 3 * PAGE)])
async def test_resident_bytes_are_answered_and_counted(make_bench, span):
    bench = await warmed(make_bench)
    before = bench.counted_stats().totals().hits_ram
    assert hit(bench, span) == (BODY[span.start : span.stop], Source.RAM)
    assert bench.counted_stats().totals().hits_ram == before + 1


async def test_a_span_of_many_pages_is_for_the_streaming_path(make_bench):
    bench = await warmed(make_bench)
    before = bench.counted_stats().totals().requests
    assert hit(bench, Span(0, len(BODY))) is None
    assert bench.counted_stats().totals().requests == before


async def test_a_page_that_is_gone_is_no_hit(make_bench):
    bench = await warmed(make_bench)
    (second,) = (
        s for s in bench.cache.residents.pages_of(object_hash(REF)) if bench.cache.residents.number[s] == 1
    )
    bench.cache.drop(second, "test")
    before = bench.counted_stats().totals().requests
    assert hit(bench, Span(PAGE - 1, PAGE + 1)) is None
    assert bench.counted_stats().totals().requests == before
    assert hit(bench, Span(0, PAGE)) == (BODY[:PAGE], Source.RAM)


async def test_who_was_not_let_through_by_the_origin_gets_no_hit(make_bench):
    bench = await warmed(make_bench, verdicts=True)
    assert bench.engine.usable_now(ReadRequest(REF)) is not None
    assert bench.engine.usable_now(ReadRequest(REF, upstream="stranger")) is None


async def test_a_rule_that_wants_a_check_first_gives_no_hit(make_bench):
    bench = await warmed(make_bench, rules=(Rule(freshness=Freshness.REVALIDATE),))
    assert bench.engine.usable_now(ReadRequest(REF)) is None


async def test_only_what_may_be_learnt_by_a_get_is_unknown(make_bench):
    bench = await make_bench(verdicts=True)
    bench.origin.put("b", "k", BODY)
    assert bench.engine.find_now(PLAIN) is None, "first the origin is asked for the client's right"
    await bench.get("k")
    await bench.settle()
    meta = bench.engine.find_now(PLAIN)
    assert meta == bench.engine.usable_now(PLAIN)
    assert bench.engine.find_now(PLAIN._replace(force_check=True)) is None
    await purge_under(bench.engine, "b", "k")
    assert bench.engine.find_now(PLAIN) is UNKNOWN
    assert bench.engine.usable_now(PLAIN) is None
    await bench.engine.aclose()
    assert bench.engine.find_now(PLAIN) is None


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


async def test_handles_are_made_by_the_rules_that_stand(make_bench):
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
    # Make reads wait in the access log, as they do in a big cache.
    bench.engine._filling._before_deciding = lambda: None
    assert hit(bench, Span(0, 3)) == (b"one", Source.RAM)
    (slot,) = bench.cache.residents.pages_of(object_hash(REF))
    bench.cache.drop_object(REF, "test")
    bench.origin.put("b", "other", b"another")
    await bench.get("other")
    await bench.settle()
    assert bench.cache.residents.pages_of(object_hash(ObjectRef("b", "other"))) == [slot]
    bench.engine.access_log.flush()
    assert bench.cache.residents.uses[slot] == 1


LONG = 2 * COPY_BYTES
ONE = SimpleNamespace(digest="d", count=1, offset=None, length=None)


def found(engine, handles, now_s):
    """Return whether a sample is found by the page handle that was remembered for it, as in a batch."""
    return bool(engine.hits._samples.find(ONE, np.array([0]), now_s).here[0])


# Each function returns whether one call of the engine answers by the handles. handles[0] is the handle of the
# object's first page.
ANSWERS = {
    "find_handle": lambda engine, handles, now_s: engine.find_handle(REF, 0, now_s) is handles[0],
    "take": lambda engine, handles, now_s: engine.take(handles[0], None, now_s) is not None,
    "take_slices": lambda engine, handles, now_s: engine.take_slices(handles[0], None, now_s) is not None,
    "take_slices over two pages": lambda engine, handles, now_s: (
        engine.take_slices(handles[0], None, now_s, Span(1, handles[1].first + 1)) is not None
    ),
    "place": lambda engine, handles, now_s: engine.place(handles[0], None, now_s, Span(0, 1)) is not None,
    "find_samples": found,
}
MAY_BE_COLD = {"find_handle", "find_samples"}
"""The calls that do not touch the page's bytes. ``find_samples`` looks only at the page's tier, which is RAM
here. Pages on a disk are tested in tests/api/control/reads/test_located_again.py.
"""


@pytest.fixture(params=[(LONG, True), (PAGE, False)], ids=["pinned", "copied"])
async def handles(make_bench, request):
    """Return a bench, and handles of the two pages of one object. Sendfile may send all bytes of
    both pages.
    """
    page, disk = request.param
    bench = await warmed(make_bench, b"x" * 2 * page, page_size=page, disk_bytes=int(disk) << 20)
    made = [bench.engine.find_handle(REF, at, bench.clock.now_s()) for at in (0, page)]
    for one in made:
        file = SimpleNamespace(descriptor=-1, mark_sent=lambda _start, _stop: None)
        one.sendable, one.can_wait, one.fresh_until_s = SendableBlocks(file, one.start, one.stop), True, 1e10
    assert bench.engine.place(made[0], None, bench.clock.now_s(), Span(0, 1)) is not None
    bench.engine.remember_sample(ONE, 0, made[0])
    return bench, made


@pytest.mark.parametrize("way", ANSWERS)
async def test_a_good_handle_answers(handles, way):
    bench, made = handles
    assert ANSWERS[way](bench.engine, made, bench.clock.now_s())


@pytest.mark.parametrize("way", ANSWERS)
async def test_a_handle_of_a_page_that_moved_answers_nothing(handles, way):
    bench, made = handles
    bench.cache.residents.mark_stale(np.array([made[0].slot]))
    assert bench.cache.residents.stamps[made[0].slot] != made[0].stamp
    assert not ANSWERS[way](bench.engine, made, bench.clock.now_s())


@pytest.mark.parametrize("way", ANSWERS)
async def test_a_handle_whose_time_is_over_answers_nothing(handles, way):
    bench, made = handles
    made[0].fresh_until_s = 1e10
    assert ANSWERS[way](bench.engine, made, 1e10 - 1)
    assert not ANSWERS[way](bench.engine, made, 1e10)


@pytest.mark.parametrize("way", ANSWERS)
async def test_a_handle_of_a_cold_page_gives_no_bytes(handles, way, monkeypatch):
    bench, made = handles
    monkeypatch.setattr(type(made[0].tier), "is_hot", lambda _tier, _location: False)
    assert bool(ANSWERS[way](bench.engine, made, bench.clock.now_s())) is (way in MAY_BE_COLD)


@pytest.mark.parametrize("spoil", ["moved", "over", "cold"])
async def test_slices_over_two_pages_need_both(handles, spoil, monkeypatch):
    bench, (first, second) = handles
    engine, now_s = bench.engine, bench.clock.now_s()
    span = Span(1, first.stop - first.start + 1)
    assert engine.take_slices(first, None, now_s, span) is not None
    # Let find_handle return the second handle unchecked. So take_slices must check the handle itself.
    monkeypatch.setattr(engine.hits, "find_handle", lambda *_: second)
    if spoil == "moved":
        second.stamp += 1
    elif spoil == "over":
        second.fresh_until_s = now_s
    else:
        monkeypatch.setattr(type(first.tier), "is_hot", lambda _tier, location: location != second.location)
    assert engine.take_slices(first, None, now_s, span) is None


@pytest.mark.parametrize("span", [(0, 1), (5, 9), (PAGE - 1, PAGE + 1), (PAGE + 7, 2 * PAGE)])
async def test_the_bytes_of_a_span_are_where_the_handle_says(make_bench, span):
    """The bytes of a span lie where the handle says. The test reads them in three ways: as bytes, as slices
    for sendfile, and as a page by its number.
    """
    span = Span(*span)
    bench = await warmed(make_bench)
    made = [bench.engine.find_handle(REF, at, bench.clock.now_s()) for at in (0, PAGE)]
    parts = [Span(*one.bounds(span)) for one in made]
    joined = b"".join(
        bytes(one.window[part.start : part.stop]) for one, part in zip(made, parts, strict=True)
    )
    assert joined == BODY[span.start : span.stop]
    for number, (one, part) in enumerate(zip(made, parts, strict=True)):
        within = span_within(span, number, PAGE, len(BODY))
        if part.length > 0:
            assert within == (part.start - one.start, part.stop - one.start)
            whole = Span(max(span.start, one.first), min(span.stop, one.first + PAGE))
            assert bench.engine.take(one, None, bench.clock.now_s(), whole) == BODY[whole.start : whole.stop]
