"""Locate calls: a process on this host copies bytes from the file that the answer names.

Afterwards it compares the record's header, to see whether the page has moved meanwhile.
"""

import struct
import tracemalloc
from pathlib import Path

import msgspec
import numpy as np
import pytest

from shadeproxy.api.control import locate
from shadeproxy.api.control.pieces import PieceReader
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.rules import Freshness, Rule
from shadeproxy.hints.datasets import Sample
from tests.support.engine import PAGE
from tests.support.locating import BIG, RECORD, SMALL, copy


def test_a_record_is_packed_as_it_is_documented():
    assert RECORD.itemsize == locate.RECORD.itemsize == 112


async def located(listener, *items, **fields):
    asked = [dict(zip(("bucket", "key", "offset", "length"), ("b", *item), strict=False)) for item in items]
    status, data = await listener.call("/v1/locate", {"items": asked, **fields})
    assert status == 200, data
    json_bytes, count = struct.unpack_from("<II", data)
    assert (8 + json_bytes) % 8 == 0
    assert len(data) == 8 + json_bytes + count * RECORD.itemsize
    files = msgspec.json.decode(data[8 : 8 + json_bytes])["files"]
    assert all(Path(file).is_absolute() for file in files)
    return files, np.frombuffer(data, RECORD, count, 8 + json_bytes)


async def test_resident_pieces_are_found_and_their_header_proves_them(listener):
    listener.put(big=BIG, small=SMALL, empty=b"")
    await listener.warm("big", "small", "empty")
    items = [("small",), ("big", PAGE - 5, 10), ("gone",), ("big",), ("small", 2, 3)]
    files, records = await located(listener, *items)
    assert records["index"].tolist() == [0, 1, 1, 2, 3, 3, 3, 3, 4]
    assert records["status"].tolist() == [200, 200, 200, 0, 200, 200, 200, 200, 200]
    wanted = {0: SMALL, 1: BIG[PAGE - 5 : PAGE + 5], 3: BIG, 4: SMALL[2:5]}
    for index, body in wanted.items():
        got = bytearray(len(body))
        for record in records[records["index"] == index]:
            piece, right = copy(files, record)
            assert right
            got[record["position"] : record["position"] + record["length"]] = piece
        assert got == body
    assert set(records["source"]) == {0}
    assert listener.context.counted_stats().totals().hits_ram == 4


async def test_what_is_not_here_is_told_and_not_fetched(listener):
    listener.put(cold=SMALL, small=SMALL)
    await listener.warm("small")
    before = listener.origin.gets
    _, records = await located(listener, ("cold",), ("gone",), ("small", 5, 99), ("small", 99))
    assert records["status"].tolist() == [0, 0, 0, 0]
    assert records["index"].tolist() == [0, 1, 2, 3]
    assert listener.origin.gets == before


async def test_every_item_has_a_record_also_an_empty_one(listener):
    listener.put(empty=b"", small=SMALL)
    await listener.warm("empty", "small")
    _, records = await located(listener, ("empty",), ("small",), ("empty",))
    assert records["index"].tolist() == [0, 1, 2]
    assert records["status"].tolist() == [0, 200, 0]


async def test_a_rule_that_wants_a_check_or_no_cache_gives_no_place(listen):
    rules = (Rule(prefix="check", freshness=Freshness.REVALIDATE), Rule(prefix="live", cache=False))
    listener = await listen(rules=rules)
    listener.put(check=SMALL, live=SMALL)
    await listener.warm("check", "live")
    assert (await located(listener, ("check",), ("live",)))[1]["status"].tolist() == [0, 0]


async def test_what_was_cached_before_a_rule_forbade_it_is_not_answered_from_there(listener):
    listener.put(small=SMALL)
    await listener.warm("small")
    listener.engine._rules.adopt([Rule(cache=False)])
    assert (await located(listener, ("small",)))[1]["status"].tolist() == [0]
    (frame,) = await listener.frames([{"bucket": "b", "key": "small"}])
    assert (frame.status, frame.source, frame.body) == (200, "bypass", SMALL)


async def test_a_page_that_leaves_meanwhile_is_noticed(listener):
    listener.put(small=SMALL)
    await listener.warm("small")
    files, records = await located(listener, ("small",))
    assert copy(files, records[0]) == (SMALL, True)
    listener.cache.drop_object(ObjectRef("b", "small"), "test")
    assert not copy(files, records[0])[1]


async def test_ids_and_items_are_the_same(listener):
    listener.put(big=BIG, small=SMALL)
    listener.register(("small",), ("big", 10, PAGE))
    await listener.warm("big", "small")
    ids = np.array([1, 0], dtype="<u4").tobytes()
    _, binary = await listener.call("/v1/locate?dataset=data", ids, "application/vnd.shadeproxy.ids")
    _, json = await listener.call("/v1/locate", {"job": "train", "ids": [1, 0]})
    _, items = await located(listener, ("big", 10, PAGE), ("small",))
    assert binary == json
    assert binary.endswith(items.tobytes())


async def test_nothing_asked(listener):
    files, records = await located(listener)
    assert (files, len(records)) == ([], 0)


async def test_an_answer_is_bounded(listener, monkeypatch):
    monkeypatch.setattr(locate, "MOST_RECORDS", 6)
    listener.put(big=BIG)
    await listener.warm("big")
    _, records = await located(listener, ("big",), ("big",), ("big",), ("big",))
    assert records["status"].tolist() == [200] * 8 + [0, 0]


@pytest.mark.parametrize("count", [200])
async def test_many_items_are_answered_in_turns(listener, count):
    listener.put(small=SMALL)
    await listener.warm("small")
    _, records = await located(listener, *[("small",)] * count)
    assert records["index"].tolist() == list(range(count))
    assert set(records["status"]) == {200}


async def test_many_items_take_little_more_memory_than_their_records(listener):
    count = 8_000
    listener.put(small=SMALL)
    await listener.warm("small")
    places = locate._Places(PieceReader(listener.context, None))
    samples = [Sample(ObjectRef("b", "small"), 0, None)] * count
    tracemalloc.start()
    try:
        records = await places.rows(samples, range(count))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert set(records["status"]) == {200}
    assert peak_bytes < 3 * records.nbytes
