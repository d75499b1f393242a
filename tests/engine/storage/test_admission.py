"""Pages that are stored many at a time. Each page gets one answer, and a page that was dropped meanwhile gets
no place.
"""

import asyncio
import errno

import numpy as np
import pytest

from shadeproxy.core.errors import TierError
from shadeproxy.core.types import ObjectMeta, ObjectRef, Page
from shadeproxy.engine.index.columns import Share
from shadeproxy.engine.storage.transfers import NewPage
from shadeproxy.tiers.segment import Segment

ETAG = '"v1"'


def new_page(key, answers, *, body=b"x" * 5000, etag=ETAG, wanted=lambda: True, number=0, stored=None):
    """Return a new page of an object in bucket "b". The answers on its storage are appended to
    ``answers[key]``.
    """
    page = Page(ObjectRef("b", key), etag, number)
    told = answers.setdefault(key, []).append if stored is None else stored
    return NewPage(page, ObjectMeta(etag, len(body), ()), memoryview(body), 1.0, wanted, told)


def body_of(bench, key, etag=ETAG):
    view = bench.cache.view_now(Page(ObjectRef("b", key), etag, 0))
    return None if view is None else bytes(view)


def miss_all(bench, keys):
    for key in keys:
        bench.cache.miss(ObjectRef("b", key), 0, explained=False)


async def test_pages_of_one_turn_are_stored_before_the_call_returns(make_bench):
    bench, answers = await make_bench(ram_bytes=1 << 20), {}
    bodies = {f"k{number}": bytes([number]) * (4000 + number) for number in range(20)}
    bench.cache.insert_many([new_page(key, answers, body=body) for key, body in bodies.items()])
    assert answers == {key: [True] for key in bodies}
    assert {key: body_of(bench, key) for key in bodies} == bodies
    bench.cache.assert_quiescent()


async def test_a_full_tier_answers_each_page_and_holds_what_it_said(make_bench):
    bench, answers = await make_bench(ram_bytes=1 << 16, policy="lru"), {}
    for turn in range(10):
        keys = [f"{turn}-{n}" for n in range(6)]
        miss_all(bench, keys)
        bench.cache.insert_many([new_page(key, answers) for key in keys])
    assert all(len(told) == 1 for told in answers.values())
    assert all(body_of(bench, key) is not None for key in list(answers)[-6:])
    bench.cache.assert_quiescent()


@pytest.mark.parametrize("others", ["a", "acdef"])
async def test_a_page_that_is_no_longer_wanted_is_not_placed(make_bench, others):
    bench, answers = await make_bench(), {}
    bench.cache.insert_many([new_page("first", {})])
    bench.cache.drop_object(ObjectRef("b", "first"), "written")
    empty = bench.cache.media[0].tier.used_bytes
    pages = [new_page(key, answers) for key in others]
    bench.cache.insert_many([*pages, new_page("b", answers, wanted=lambda: False)])
    assert answers == {**{key: [True] for key in others}, "b": [False]}
    assert body_of(bench, "b") is None
    bench.cache.assert_quiescent()
    for key in others:
        assert body_of(bench, key) == b"x" * 5000
        bench.cache.drop_object(ObjectRef("b", key), "written")
    assert bench.cache.media[0].tier.used_bytes == empty


@pytest.mark.parametrize("policy", ["default", "lru"])
@pytest.mark.parametrize("disk_bytes", [0, 1 << 20])
async def test_pages_in_free_room_are_stored_as_if_alone(make_bench, policy, disk_bytes):
    """Pages that find free room are stored in the same way together as one by one. Both tiers have gaps, and
    the index has slots of dropped pages to use again.
    """
    told, found = [], []
    for together in (True, False):
        bench = await make_bench(
            ram_bytes=1 << 21, disk_bytes=disk_bytes, policy=policy, name="together" if together else "alone"
        )
        answers = {}
        for turn in range(4):
            keys = [f"{turn}-{n}" for n in range(12)]
            miss_all(bench, keys * (turn + 1))
            pages = [
                new_page(key, answers, body=b"%d" % n * (300 + 700 * n), number=n % 2)
                for n, key in enumerate(keys)
            ]
            for some in [pages] if together else [[page] for page in pages]:
                bench.cache.insert_many(some)
            for key in keys[::5]:
                bench.cache.drop_object(ObjectRef("b", key), "written")
            miss_all(bench, keys[::5])
        table = bench.cache.residents
        bench.cache.assert_quiescent()
        slots = sorted(table.ready().tolist(), key=lambda slot: int(table.object_hash[slot]))
        names = ("object_hash", "number", "etag", "body_bytes", "record_bytes", "uses", "admitted", "tier")
        columns = {name: getattr(table, name)[slots].tolist() for name in names}
        columns["rates"] = bench.cache.placement.histories.rates(np.array(slots), 500.0).tolist()
        columns["members"] = sorted(table.members[0].slots.tolist()) == sorted(slots)
        columns["pages"] = [bool(bench.cache.residents.pages_of(hashed)) for hashed in columns["object_hash"]]
        told.append(answers)
        found.append((columns, bench.stats.tiers["ram"].admissions))
    assert told[0] == told[1]
    assert found[0] == found[1]
    assert len(found[0][0]["uses"]) == 36


async def test_a_version_that_is_resident_is_replaced_among_others(make_bench):
    bench, answers = await make_bench(), {}
    bench.cache.insert_many([new_page(key, answers) for key in "abcde"])
    newer = [new_page(key, answers, body=b"n" * 5000, etag='"v2"') for key in "cdefg"]
    bench.cache.insert_many(newer)
    assert [body_of(bench, key) for key in "abcde"] == [b"x" * 5000] * 2 + [None] * 3
    assert [body_of(bench, key, '"v2"') for key in "cdefg"] == [b"n" * 5000] * 5
    bench.cache.assert_quiescent()


async def test_the_same_page_twice_keeps_the_later_version(make_bench):
    bench, answers = await make_bench(), {}
    both = [new_page("a", answers, body=b"1" * 5000), new_page("a", answers, body=b"2" * 5000, etag='"v2"')]
    bench.cache.insert_many(both)
    assert answers == {"a": [True, True]}
    assert body_of(bench, "a") is None
    assert body_of(bench, "a", '"v2"') == b"2" * 5000
    bench.cache.assert_quiescent()


async def test_a_write_in_a_task_answers_when_it_is_done(make_bench):
    bench, answers = await make_bench(ram_bytes=0, disk_bytes=1 << 20), {}
    bench.cache.insert_many([new_page("a", answers), new_page("b", answers)])
    assert answers == {"a": [], "b": []}
    await bench.cache.drain()
    assert answers == {"a": [True], "b": [True]}
    assert body_of(bench, "b") == b"x" * 5000


async def test_a_page_dropped_while_a_task_writes_it_is_not_placed(make_bench):
    bench, answers = await make_bench(ram_bytes=0, disk_bytes=1 << 20), {}
    bench.cache.insert_many([new_page("a", answers)])
    bench.cache.drop_object(ObjectRef("b", "a"), "written")
    await bench.cache.drain()
    assert answers == {"a": [False]}
    assert len(bench.cache.residents) == 0
    bench.cache.assert_quiescent()


async def test_a_task_that_is_cancelled_answers_and_gives_its_place_back(make_bench):
    bench, answers = await make_bench(ram_bytes=0, disk_bytes=1 << 20), {}
    bench.cache.insert_many([new_page("first", answers)])
    await bench.cache.drain()
    bench.cache.drop_object(ObjectRef("b", "first"), "written")
    empty = bench.cache.media[0].tier.used_bytes
    bench.cache.insert_many([new_page("a", answers)])
    await asyncio.sleep(0)
    for task in list(bench.cache.transfers._tasks):
        task.cancel()
    await asyncio.sleep(0.01)
    assert answers["a"] == [False]
    assert bench.cache.media[0].tier.used_bytes == empty
    bench.cache.assert_quiescent()


@pytest.mark.parametrize("keys", ["abc", "abcdef"])
@pytest.mark.parametrize("fails", ["encode", "write", "stored", "wanted"])
async def test_whatever_raises_each_page_is_answered_once(make_bench, monkeypatch, fails, keys):
    bench, answers = await make_bench(), {}
    tier = bench.cache.media[0].tier
    stored = wanted = None

    def refuse(*_args):
        raise OSError(errno.EIO, "no") if fails == "write" else TierError("no")

    def raise_(*args):
        if args:
            answers.setdefault("b", []).append(args[0])
        raise ValueError("a caller's fault")

    if fails == "encode":
        monkeypatch.setattr(tier, "record_bytes", refuse)
        monkeypatch.setattr(tier, "encode_many", refuse)
    elif fails == "write":
        monkeypatch.setattr(Segment, "write", refuse)
    elif fails == "stored":
        stored = raise_
    else:
        wanted = raise_
    pages = [new_page(key, answers) for key in keys]
    pages[1] = new_page("b", answers, stored=stored, wanted=wanted or (lambda: True))
    if fails in ("stored", "wanted"):
        with pytest.raises(ValueError, match="a caller's fault"):
            bench.cache.insert_many(pages)
    else:
        bench.cache.insert_many(pages)
    assert [len(answers[key]) for key in keys] == [1] * len(keys)
    for key in keys:
        assert (body_of(bench, key) is not None) is answers[key][0]
    bench.cache.assert_quiescent()


async def test_a_reader_that_gives_up_waiting_does_not_end_the_write(make_bench):
    bench = await make_bench(ram_bytes=0, disk_bytes=1 << 20)
    new = new_page("a", {})
    task = asyncio.create_task(bench.cache.insert(new.page, new.meta, new.body, 1.0, new.wanted))
    await asyncio.sleep(0)
    task.cancel()
    await bench.cache.drain()
    assert body_of(bench, "a") == b"x" * 5000
    bench.cache.assert_quiescent()


SMALL = 1100
"""A number of pages greater than the size of the random sample that ranks a new page."""


async def full_bench(make_bench, *, policy="lru", sizes=(4000,), **options):
    """Return a bench whose tier is full with more than a thousand pages, the pages' bodies by key, and the
    answers.
    """
    bench = await make_bench(policy=policy, ram_bytes=SMALL * 5000, segment_bytes=1 << 20, **options)
    bodies = {f"{n:05d}": (b"%05d" % n) * (sizes[n % len(sizes)] // 5) for n in range(3 * SMALL)}
    answers = {}
    for start in range(0, len(bodies), 40):
        keys = list(bodies)[start : start + 40]
        miss_all(bench, keys)
        bench.cache.insert_many([new_page(key, answers, body=bodies[key]) for key in keys])
    assert all(len(told) == 1 for told in answers.values())
    return bench, bodies, answers


@pytest.mark.parametrize("sizes", [(4000,), (1000, 3000, 7000, 300, 6000)])
@pytest.mark.parametrize("policy", ["default", "lru"])
async def test_pages_that_take_over_places_are_whole_and_the_books_balance(make_bench, policy, sizes):
    bench, bodies, answers = await full_bench(make_bench, policy=policy, sizes=sizes)
    bench.cache.assert_quiescent()
    assert len(bench.cache.residents) > 1024
    resident = {key: body for key in bodies if (body := body_of(bench, key)) is not None}
    assert len(resident) == len(bench.cache.residents)
    assert all(body == bodies[key] for key, body in resident.items())
    if policy == "lru":
        assert all(told == [True] for told in answers.values())
        assert sum(key in resident for key in list(bodies)[-600:]) > 570
    stats = bench.stats
    assert stats.tiers["ram"].admissions == sum(told == [True] for told in answers.values())
    left = sum(stats.tiers["ram"].evictions.values())
    assert stats.tiers["ram"].admissions - left == len(resident)


@pytest.mark.parametrize("count", [16, 1])
async def test_pages_that_beat_none_are_refused_before_they_are_encoded(make_bench, monkeypatch, count):
    """Pages that beat no resident page are refused before they are encoded, and get no slot. The tier has
    some holes, but no record fits into them. So only one page of a batch searches for a hole.
    """
    bench, _, _ = await full_bench(make_bench, policy="default")
    tier, encoded, added = bench.cache.media[0].tier, [], []
    encode_many, residents = tier.encode_many, bench.cache.residents
    monkeypatch.setattr(residents, "add", lambda *row, **_columns: added.append(row))

    def recorded(pages, *rest):
        encoded.extend(pages)
        return encode_many(pages, *rest)

    monkeypatch.setattr(tier, "encode_many", recorded)
    room_bytes, bypassed = tier.capacity_bytes - tier.used_bytes, bench.stats.pages.bypassed
    answers = {}
    for turn in range(64 // count):
        keys = [f"{turn}-{n}" for n in range(count)]
        miss_all(bench, keys)
        bench.cache.insert_many([new_page(key, answers, body=b"n" * room_bytes) for key in keys])
    assert room_bytes > 1000
    assert added == []
    assert answers == {key: [False] for key in answers}
    assert bench.stats.pages.bypassed == bypassed + 64
    assert len(encoded) <= 64 // count
    bench.cache.assert_quiescent()


async def test_a_view_keeps_its_bytes_when_its_page_is_the_victim(make_bench):
    bench, bodies, _ = await full_bench(make_bench)
    views = {key: bench.cache.view_now(Page(ObjectRef("b", key), ETAG, 0)) for key in bodies}
    views = {key: view for key, view in views.items() if view is not None}
    for turn in range(SMALL // 16):
        keys, answers = [f"{turn}-{n}" for n in range(8)], {}
        miss_all(bench, keys)
        bench.cache.insert_many([new_page(key, answers, body=b"n" * 4000) for key in keys])
    assert all(bytes(view) == bodies[key] for key, view in views.items())
    views.clear()
    bench.cache.assert_quiescent()


@pytest.mark.parametrize("fails", ["write", "wanted", "unforeseen"])
async def test_a_page_whose_write_fails_leaves_its_place(make_bench, monkeypatch, fails):
    bench, _, _ = await full_bench(make_bench)
    write, answers, keys, before = (
        Segment.write,
        {},
        [f"new{n}" for n in range(8)],
        len(bench.cache.residents),
    )

    def failing(segment, offset, header, body):
        if b"new3" in header:
            raise OSError(errno.EIO, "no") if fails == "write" else ValueError("a fault")
        write(segment, offset, header, body)

    if fails != "wanted":
        monkeypatch.setattr(Segment, "write", failing)
    pages = [
        new_page(key, answers, body=b"n" * 4000, wanted=lambda key=key: fails != "wanted" or key != "new3")
        for key in keys
    ]
    if fails == "unforeseen":
        with pytest.raises(ValueError, match="a fault"):
            bench.cache.insert_many(pages)
    else:
        bench.cache.insert_many(pages)
        assert [key for key in keys if answers[key] == [False]] == ["new3"]
        assert len(bench.cache.residents) >= before - 1
    assert all(len(answers[key]) == 1 for key in keys)
    assert all((body_of(bench, key) is not None) is answers[key][0] for key in keys)
    bench.cache.assert_quiescent()


async def test_workers_are_shown_the_pages_that_took_over_and_none_that_left(make_bench):
    share = Share.create()
    bench, _, _ = await full_bench(make_bench, share=share)
    shown = np.frombuffer(share._shown, np.int32)
    assert sorted(shown[shown > 0] - 1) == bench.cache.residents.ready().tolist()


async def test_a_slot_that_was_taken_over_has_another_generation_and_stamp(make_bench):
    """A slot that another page has taken over has another generation and another stamp. So a read of the old
    page that is counted late does not count for the new page.
    """
    bench, _, _ = await full_bench(make_bench)
    table = bench.cache.residents
    before = {name: getattr(table, name).copy() for name in ("object_hash", "generation", "stamp")}
    keys = [f"new{n}" for n in range(16)]
    bench.cache.insert_many([new_page(key, {}, body=b"n" * 4000) for key in keys])
    changed = np.flatnonzero(table.object_hash != before["object_hash"])
    assert len(changed) == len(keys)
    assert (table.generation[changed] > before["generation"][changed]).all()
    assert (table.stamp[changed] > before["stamp"][changed]).all()
