"""Locate calls for samples that were located before, and whose pages have not moved.

They are answered from columns, and the records in the answer are the same as before.
"""

import json
import os

import numpy as np
import pytest

from shadeproxy.core.identity import object_hash
from shadeproxy.core.ranges import part_number
from shadeproxy.core.types import ObjectRef, Page
from shadeproxy.engine.rules import Freshness, Rule
from tests.support.engine import PAGE
from tests.support.locating import BIG, RECORD, SMALL, copy
from tests.support.turns import counted_turns

IDS = "application/vnd.shadeproxy.ids"
OTHER = b"another one of it"


async def by_id(listener, *ids, query="dataset=data"):
    status, data = await listener.call(f"/v1/locate?{query}", np.array(ids, "<u4").tobytes(), IDS)
    assert status == 200, data
    json_bytes, count = np.frombuffer(data, "<u4", 2).tolist()
    files = json.loads(data[8 : 8 + json_bytes])["files"]
    return files, np.frombuffer(data, RECORD, count, 8 + json_bytes)


def bodies(files, records):
    got = [copy(files, record) for record in records]
    return [body if right else None for body, right in got]


@pytest.fixture
async def known(listener):
    """Return a listener with five samples (three whole objects, two parts), all of them located once."""
    listener.put(small=SMALL, other=OTHER, big=BIG, tiny=b"x")
    listener.register(("small",), ("other",), ("big", 10, 50), ("big", PAGE + 7, 90), ("tiny",))
    await listener.warm("small", "other", "big", "tiny")
    await by_id(listener, 0, 1, 2, 3, 4)
    return listener


def forbid_tickets(listener, monkeypatch):
    def none(*_):
        raise AssertionError("looked for one by one")

    monkeypatch.setattr(listener.engine.hits, "find_handle", none)


async def test_what_was_located_is_told_again_without_a_look(known, monkeypatch):
    forbid_tickets(known, monkeypatch)
    before = known.context.counted_stats().totals().hits_ram
    files, records = await by_id(known, 3, 0, 0, 2, 1)
    assert records["index"].tolist() == [0, 1, 2, 3, 4]
    assert bodies(files, records) == [BIG[PAGE + 7 : PAGE + 97], SMALL, SMALL, BIG[10:60], OTHER]
    assert known.context.counted_stats().totals().hits_ram == before + 5


async def test_others_have_their_turns_while_many_are_told_again(known, monkeypatch):
    seen, find = [], known.engine.find_samples
    async with counted_turns() as turns:

        def noted(_dataset, ids, *rest):
            seen.append((turns.count, len(ids)))
            return find(_dataset, ids, *rest)

        monkeypatch.setattr(known.engine, "find_samples", noted)
        _, records = await by_id(known, *[0, 1] * 4096)
    assert records["index"].tolist() == list(range(8192))
    assert len({turn for turn, _ in seen}) == len(seen) > 1
    assert max(count for _, count in seen) <= 1024


async def test_reads_count_for_the_job_and_by_their_bytes(known, monkeypatch):
    forbid_tickets(known, monkeypatch)
    await by_id(known, 0, 2, query="job=train&epoch=4&rank=0")
    epochs = known.context.counted_stats().snapshot()["jobs"]["train"]["epochs"]
    counted = {str(number): epoch for number, epoch in epochs.items()}["4"]
    assert (counted["requests"], counted["bytes"]) == (2, len(SMALL) + 50)


async def test_it_is_used_by_the_read(known):
    slot = known.cache.residents.first_page(object_hash(ObjectRef("b", "small")))
    known.engine.access_log.flush()
    before = known.cache.residents.uses[slot]
    await by_id(known, 0, 0)
    known.engine.access_log.flush()
    assert known.cache.residents.uses[slot] == before + 2


async def test_cold_and_known_samples_come_in_the_order_asked(listener):
    listener.put(small=SMALL, other=OTHER, cold=b"cold")
    listener.register(("small",), ("cold",), ("other",))
    await listener.warm("small", "other")
    await by_id(listener, 2)
    files, records = await by_id(listener, 0, 1, 2, 1)
    assert records["index"].tolist() == [0, 1, 2, 3]
    assert records["status"].tolist() == [200, 0, 200, 0]
    assert bodies(files, records[records["status"] == 200]) == [SMALL, OTHER]


async def test_a_sample_in_a_stored_part_is_located_there(known, monkeypatch):
    ref, first = ObjectRef("b", "big"), PAGE + 7
    meta = known.origin.buckets["b"]["big"].meta
    known.cache.drop_object(ref, "test")
    part = Page(ref, meta.etag, part_number(first))
    now_s = known.context.clock.now_s()
    assert await known.cache.insert(part, meta, memoryview(BIG[first : first + 200]), now_s, lambda: True)
    for _ in range(2):
        files, records = await by_id(known, 3, 2)
        assert records["status"].tolist() == [200, 0]
        assert bodies(files, records[:1]) == [BIG[first : first + 90]]
    forbid_tickets(known, monkeypatch)
    assert bodies(*await by_id(known, 3)) == [BIG[first : first + 90]]


async def test_a_page_that_left_is_told_no_more(known):
    known.cache.drop_object(ObjectRef("b", "small"), "test")
    _, records = await by_id(known, 0, 1)
    assert records["status"].tolist() == [0, 200]


async def test_a_new_version_is_located_anew(known):
    async with known.engine.writing([ObjectRef("b", "small")]):
        known.put(small=b"written since")
    assert (await by_id(known, 0))[1]["status"].tolist() == [0]
    await known.warm("small")
    assert bodies(*await by_id(known, 0)) == [b"written since"]


async def test_what_is_to_be_checked_first_is_not_told(known):
    known.engine._rules.adopt([Rule(freshness=Freshness.REVALIDATE)])
    known.engine.forget_rights(None)
    assert (await by_id(known, 0, 3))[1]["status"].tolist() == [0, 0]


async def test_its_freshness_ends_when_the_rule_says(listen):
    listener = await listen(rules=(Rule(ttl_s=100.0),))
    listener.put(small=SMALL)
    listener.register(("small",))
    await listener.warm("small")
    await by_id(listener, 0)
    heads = listener.origin.heads
    listener.context.clock.advance(101.0)
    assert (await by_id(listener, 0))[1]["status"].tolist() == [200]  # Answered before the check has ended.
    await listener.settled()
    assert listener.origin.heads == heads + 1


async def test_ids_of_another_manifest_are_refused(known):
    digest = known.context.hints.dataset("data").digest
    query = f"dataset=data&digest={digest}"
    assert (await by_id(known, 0, query=query))[1]["status"].tolist() == [200]
    known.context.hints.delete_job("train")
    known.register(("other",), ("small",), job=None)
    for path in ("/v1/locate", "/v1/batch"):
        status, text = await known.refused(f"{path}?{query}", bytes(4), IDS)
        assert status == 409
        assert text.startswith("conflict | dataset 'data' was registered again, so that its ids mean other")
        assert "register your manifest under another name, or ask for items by bucket and key" in text
    assert bodies(*await by_id(known, 0, 1)) == [OTHER, SMALL]


async def test_a_digest_is_of_ids(listener):
    status, text = await listener.refused("/v1/locate", {"items": [], "digest": "sha256:0"})
    assert (status, "a digest belongs to ids" in text) == (400, True)


async def test_a_page_on_a_disk_is_told_only_while_its_bytes_can_be_trusted(listen, monkeypatch):
    """A caller gets the place of a page on disk only while the page's checked bytes are in memory.

    Otherwise the caller would read the bytes from the medium again, and these were not checked.
    """
    listener = await listen(on_disk=True)
    listener.put(small=SMALL, other=OTHER, big=BIG)
    listener.register(("small",), ("other",), ("big", 10, 50))
    await listener.warm("small", "other", "big")
    for _ in range(2):
        files, records = await by_id(listener, 0, 1, 2)
        assert bodies(files, records) == [SMALL, OTHER, BIG[10:60]]
    tier = listener.cache.media[0].tier
    with monkeypatch.context() as patched:
        patched.setattr(tier, "is_hot", lambda _location: False)
        _, records = await by_id(listener, 0, 1, 2)
        assert records["status"].tolist() == [0, 0, 0]
        listener.engine.hits.forget()
        _, records = await by_id(listener, 0, 1, 2)
        assert records["status"].tolist() == [0, 0, 0]
    handle = listener.engine.find_handle(ObjectRef("b", "small"), 0, 0.0)
    segment, _, _ = tier._resolve(handle.location)
    os.pwrite(segment.descriptor, b"x", handle.start)
    _, records = await by_id(listener, 0, 1, 2)
    assert records["status"].tolist() == [0, 200, 200]
    # A batch call finds that the record is damaged, and fetches the object again.
    assert [frame.body for frame in await listener.frames([{"bucket": "b", "key": "small"}])] == [SMALL]
    _, records = await by_id(listener, 0)
    assert records["status"].tolist() == [200]
