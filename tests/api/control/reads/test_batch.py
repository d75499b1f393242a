"""Batch answers: each item has the right status and bytes, be they from the cache, the origin or a bypass."""

from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from shadeproxy.core.errors import OriginUnavailable
from shadeproxy.core.types import ENDLESS, UNKNOWN_BYTES, ObjectRef, Span
from shadeproxy.engine.rules import Rule
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy_bench.reliability.kit.faulty_origin import Fault, FaultyOrigin
from tests.support.engine import PAGE
from tests.support.frames import Frame, parse_frames

SMALL = b"small object"
BIG = bytes(range(251)) * 60  # A little over three pages.
IDS = "application/vnd.shadeproxy.ids"


def item(key: str, offset: int | None = None, length: int | None = None) -> dict:
    fields = {"bucket": "b", "key": key, "offset": offset, "length": length}
    return {name: value for name, value in fields.items() if value is not None}


def binary(*ids: int) -> bytes:
    return np.array(ids, dtype="<u4").tobytes()


@pytest.fixture(params=["given", "ready"])
def order(request):
    return request.param


def by_index(frames: list[Frame]) -> list[Frame]:
    assert sorted(frame.index for frame in frames) == list(range(len(frames)))
    return sorted(frames)


async def test_hits_misses_pieces_and_empty_objects(listener, order):
    listener.put(small=SMALL, big=BIG, empty=b"", cold=b"cold one")
    await listener.warm("small", "big", "empty")
    items = [
        (item("small"), SMALL, "ram"),
        (item("cold"), b"cold one", "origin"),
        (item("big"), BIG, "ram"),
        (item("big", 5, 10), BIG[5:15], "ram"),
        (item("big", PAGE - 5, 10), BIG[PAGE - 5 : PAGE + 5], "ram"),
        (item("big", 10, 2 * PAGE), BIG[10 : 10 + 2 * PAGE], "ram"),
        (item("big", len(BIG) - 3), BIG[-3:], "ram"),
        (item("big", 7, 0), b"", "ram"),
        (item("empty"), b"", None),
        (item("small", len(SMALL)), b"", "ram"),
        (item("small"), SMALL, "ram"),
    ]
    frames = by_index(await listener.frames([asked for asked, _, _ in items], order=order))
    assert [frame.status for frame in frames] == [200] * len(items)
    assert [frame.body for frame in frames] == [body for _, body, _ in items]
    sources = [(frame.source, source) for frame, (_, _, source) in zip(frames, items, strict=True)]
    assert [got for got, source in sources if source] == [source for _, source in sources if source]


async def test_cold_pieces_of_every_kind(listener, order):
    listener.put(big=BIG, big2=BIG, big3=BIG, empty=b"", small=SMALL)
    items = [
        (item("big", PAGE - 5, 10), BIG[PAGE - 5 : PAGE + 5]),
        (item("big2"), BIG),
        (item("empty"), b""),
        (item("big3", len(BIG) - 3), BIG[-3:]),
        (item("big3", 1, 0), b""),
        (item("small", 2, 3), SMALL[2:5]),
    ]
    frames = by_index(await listener.frames([asked for asked, _ in items], order=order))
    assert [(frame.status, frame.body) for frame in frames] == [(200, body) for _, body in items]


async def test_what_is_asked_twice_is_read_once(listener, order):
    listener.put(small=SMALL)
    frames = await listener.frames([item("small")] * 5, order=order)
    assert [frame.body for frame in frames] == [SMALL] * 5
    assert {frame.source for frame in frames} <= {"origin", "coalesced", "ram"}
    assert listener.context.counted_stats().snapshot()["totals"]["requests"] == 5
    assert len(listener.origin.reads) == 1


async def test_what_is_read_is_counted_once_with_its_bytes(listener, order):
    listener.put(small=SMALL, big=BIG)
    await listener.warm("small", "big")
    asked = [item("small"), item("small", 2, 3), item("big", PAGE, 10), item("big"), item("small")]
    before = listener.context.counted_stats().totals()
    bodies = [frame.body for frame in await listener.frames(asked, order=order)]
    after = listener.context.counted_stats().totals()
    assert after.requests - before.requests == len(asked)
    assert after.bytes - before.bytes == sum(map(len, bodies))


async def test_errors_belong_to_their_item(listener, order):
    listener.put(small=SMALL)
    await listener.warm("small")
    items = [
        item("missing"),
        item("small"),
        {"bucket": "nobody", "key": "x"},
        item("small", 3, 10),
        item("small", 99),
    ]
    frames = by_index(await listener.frames(items, order=order))
    assert [frame.status for frame in frames] == [404, 200, 404, 416, 416]
    assert frames[0].error["code"] == "not_found"
    assert "NoSuchKey" in frames[0].error["message"]
    assert frames[3].error["code"] == "range_not_satisfiable"
    assert f"the object has {len(SMALL)} bytes" in frames[3].error["message"]
    assert set(frames[3].error) == {"code", "message", "hint"}


@pytest.mark.parametrize(("offset", "length"), [(0, 13), (3, 10), (12, 1), (99, 5), (99, None), (13, 0)])
async def test_a_piece_beyond_the_end_is_refused_when_it_is_cold_too(listener, offset, length, order):
    listener.put(small=SMALL)
    (frame,) = await listener.frames([item("small", offset, length)], order=order)
    assert (frame.status, frame.error["code"]) == (416, "range_not_satisfiable")


async def test_an_origin_that_is_down_is_503_for_what_is_cold(listen, order):
    memory = MemoryOrigin()
    origin = FaultyOrigin(memory)
    listener = await listen(origin=origin)
    memory.put("b", "warm", SMALL)
    memory.put("b", "cold", SMALL)
    await listener.warm("warm")
    origin.enqueue(Fault(error=OriginUnavailable("the origin does not answer")))
    frames = by_index(await listener.frames([item("cold"), item("warm")], order=order))
    assert [(frame.status, frame.source) for frame in frames] == [(503, "bypass"), (200, "ram")]
    assert frames[0].error["code"] == "origin_unavailable"


async def test_a_small_item_that_is_cut_short_is_a_status_and_the_answer_goes_on(listen, order):
    memory = MemoryOrigin()
    origin = FaultyOrigin(memory, script=[Fault(cut_after_bytes=4)])
    listener = await listen(origin=origin)
    memory.put("b", "one", SMALL)
    memory.put("b", "two", SMALL)
    frames = by_index(await listener.frames([item("one"), item("two")], order=order))
    assert [frame.status for frame in frames] == [503, 200]


async def test_a_big_item_that_is_cut_short_breaks_the_connection_off(listen, order):
    memory = MemoryOrigin()
    # The origin sends its first body whole and cuts the later ones. So the item is cut, whichever of its
    # pages is read first.
    origin = FaultyOrigin(memory, script=[None] + [Fault(cut_after_bytes=100)] * 8)
    listener = await listen(origin=origin)
    memory.put("b", "big", BIG)
    connection = await listener.connect()
    await connection.ask("/v1/batch", b'{"items":[{"bucket":"b","key":"big"}],"order":"%s"}' % order.encode())
    status, fields = await connection.head()
    data, whole = await connection.body(fields)
    assert (status, whole) == (200, False)
    assert parse_frames(data) == ([], False)


async def test_what_is_not_to_be_cached_is_read_past_the_cache(listen, order):
    listener = await listen(rules=(Rule(bucket="b", prefix="live", cache=False),))
    listener.put(live=BIG, live_empty=b"", small=SMALL)
    items = [item("live"), item("live", 5, 10), item("live", 5, len(BIG)), item("live", 9, 0), item("small")]
    items += [item("live_gone"), item("live_empty")]
    for _ in range(2):
        frames = by_index(await listener.frames(items, order=order))
        assert [frame.status for frame in frames] == [200, 200, 416, 200, 200, 404, 200]
        assert [len(frame.body) for frame in frames if frame.status == 200] == [len(BIG), 10, 0, 12, 0]
        assert frames[1].body == BIG[5:15]
        assert frames[0].source == frames[1].source == "bypass"
    assert await listener.engine.inspect(ObjectRef("b", "live")) is None
    assert listener.context.counted_stats().snapshot()["totals"]["bypass"] == 8


async def test_ids_name_samples_and_binary_is_the_same(listener, order):
    listener.put(big=BIG, small=SMALL, other=b"other")
    listener.register(("small",), ("big", 10, 20), ("big", 100, PAGE), ("other",))
    ids = [3, 1, 0, 2, 1]
    path = f"/v1/batch?dataset=data&order={order}"
    first = parse_frames((await listener.call(path, binary(*ids), IDS))[1])
    listener.cache.drop_object(ObjectRef("b", "big"), "test")
    for body in ({"dataset": "data", "ids": ids}, {"job": "train", "epoch": 2, "rank": 0, "ids": ids}):
        frames, ended = parse_frames((await listener.call("/v1/batch", body | {"order": order}))[1])
        assert ended
        bodies = [frame.body for frame in by_index(frames)]
        assert bodies == [frame.body for frame in by_index(first[0])]
    assert bodies == [b"other", BIG[10:30], SMALL, BIG[100 : 100 + PAGE], BIG[10:30]]


async def test_reads_belong_to_the_job_that_is_named_or_the_only_one(listener):
    listener.put(small=SMALL)
    listener.register(("small",))
    await listener.call("/v1/batch?job=train&epoch=3&rank=0", binary(0), IDS)
    await listener.call("/v1/batch?dataset=data", binary(0, 0), IDS)
    epochs = listener.context.counted_stats().snapshot()["jobs"]["train"]["epochs"]
    assert {epoch: reads["requests"] for epoch, reads in epochs.items()} == {"3": 1, "unknown": 2}


async def test_a_call_is_a_sign_of_life_of_its_job(listener):
    listener.put(small=SMALL)
    listener.register(("small",))
    listener.context.clock.advance(1000)
    await listener.call("/v1/batch?job=train", binary(0), IDS)
    assert listener.context.hints.jobs.get("train").seen_s == listener.context.clock.now_s()


@pytest.mark.parametrize("body", [{"items": []}, {"dataset": "data", "ids": []}])
async def test_nothing_asked_is_an_end(listener, body):
    listener.register(("small",))
    status, data = await listener.call("/v1/batch", body)
    assert (status, len(data)) == (200, 16)
    assert parse_frames(data) == ([], True)


async def test_a_connection_serves_one_batch_after_another(listener):
    listener.put(small=SMALL)
    connection = await listener.connect()
    for _ in range(3):
        await connection.ask("/v1/batch", b'{"items":[{"bucket":"b","key":"small"}]}')
        status, fields = await connection.head()
        data, whole = await connection.body(fields)
        assert (status, whole) == (200, True)
        assert fields["content-type"] == "application/vnd.shadeproxy.batch"
        assert [frame.body for frame in parse_frames(data)[0]] == [SMALL]


async def test_http_1_0_is_told(listener):
    connection = await listener.connect()
    connection.writer.write(b"POST /v1/batch HTTP/1.0\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
    status, fields = await connection.head()
    assert status == 400
    assert b"use HTTP/1.1" in (await connection.body(fields))[0]


class Unmeasured(MemoryOrigin):
    """Sends the whole object for every range, without its length.

    With ``cut``, it sends the length too, but ends the body early.
    """

    cut = False

    @asynccontextmanager
    async def open(self, ref, **options):
        async with super().open(ref, **({} if self.cut else options | {"span": None})) as read:
            if self.cut:
                yield replace(read, chunks=_first(read.chunks), receive=None)
            else:
                meta = replace(read.meta, size=UNKNOWN_BYTES)
                yield replace(read, meta=meta, span=Span(0, ENDLESS), receive=None)


async def _first(chunks):
    async for chunk in chunks:
        yield chunk
        return


async def test_what_has_no_length_is_read_past_the_cache_and_counted(listen, order):
    origin = Unmeasured(chunk_bytes=1000)
    listener = await listen(origin=origin, rules=(Rule(bucket="b", cache=False),))
    listener.put(live=BIG[:3000])
    items = [item("live"), item("live", 5, 10), item("live", 2990, 11), item("live", 7)]
    frames = by_index(await listener.frames(items, order=order))
    assert [(frame.status, frame.source) for frame in frames] == [
        (200, "bypass"), (200, "bypass"), (416, "bypass"), (200, "bypass")
    ]  # fmt: skip
    assert [frame.body for frame in frames if frame.status == 200] == [BIG[:3000], BIG[5:15], BIG[7:3000]]
    totals = listener.context.counted_stats().snapshot()["totals"]
    assert (totals["bypass"], totals["bytes"]) == (3, 3000 + 10 + 2993)


async def test_a_body_that_ends_early_past_the_cache_breaks_the_answer_off(listen, order):
    origin = Unmeasured(chunk_bytes=1000)
    origin.cut = True
    listener = await listen(origin=origin, rules=(Rule(bucket="b", cache=False),))
    listener.put(live=BIG[:3000])
    connection = await listener.connect()
    body = b'{"items":[{"bucket":"b","key":"live"}],"order":"%s"}' % order.encode()
    await connection.ask("/v1/batch", body)
    _, fields = await connection.head()
    data, whole = await connection.body(fields)
    frames, ended = parse_frames(data)
    assert not (whole and ended and frames[0].status == 200)
