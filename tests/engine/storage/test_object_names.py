"""Keys of resident objects are read from records, though pages move, and headers are damaged."""

import pytest

from shadeproxy.core.errors import TierError
from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import ObjectRef
from tests.support.engine import PAGE


@pytest.fixture
async def bench(make_bench):
    bench = await make_bench()
    for key in ("d/1", "d/2", "e"):
        bench.origin.put("b", key, b"x" * 3 * PAGE)
        await bench.get(key)
    await bench.settle()
    return bench


async def asked(bench):
    """Ask about all pages. Return the keys, in the order in which they were read, and the wanted hashes."""
    keys = []

    def wanted(ref, hashed):
        assert hashed == object_hash(ref)
        keys.append(ref.key)
        return ref.key.startswith("d/")

    names = bench.cache.names
    named = await names.ask(await names.gather(bench.cache.residents.ready()), wanted)
    assert sorted(named.wanted.tolist()) == named.wanted.tolist()
    return keys, set(named.wanted.tolist()), set(named.others.tolist())


HASHES = {key: object_hash(ObjectRef("b", key)) for key in ("d/1", "d/2", "e")}
ALL = (["d/1", "d/2", "e"], {HASHES["d/1"], HASHES["d/2"]}, {HASHES["e"]})


async def test_each_object_is_asked_about_once_in_the_order_of_the_records(bench):
    assert await asked(bench) == ALL


@pytest.mark.parametrize("kind", ["damaged", "of another object"])
async def test_another_page_tells_the_key_if_a_record_is_bad(bench, monkeypatch, kind):
    tier, lost = bench.cache.media[0].tier, []
    refs = tier.refs

    def damaged(locations):
        for location, ref in zip(locations := list(locations), refs(locations), strict=True):
            if ref.key == "d/2" and len(lost) < 2:
                lost.append(location)
                yield TierError("damaged") if kind == "damaged" else ObjectRef("b", "e")
            else:
                yield ref

    monkeypatch.setattr(tier, "refs", damaged)
    assert await asked(bench) == (["d/1", "e", "d/2"], *ALL[1:])
    assert len(set(lost)) == 2
    assert bench.counted_stats().snapshot()["tiers"]["ram"]["errors"] == {"header": 2}


async def test_an_object_without_a_readable_record_is_left_out(bench, monkeypatch):
    tier = bench.cache.media[0].tier
    refs = tier.refs

    def damaged(locations):
        return (ref if ref.key != "d/1" else TierError("damaged") for ref in refs(locations))

    monkeypatch.setattr(tier, "refs", damaged)
    assert await asked(bench) == (["d/2", "e"], {HASHES["d/2"]}, {HASHES["e"]})
    assert bench.counted_stats().snapshot()["tiers"]["ram"]["errors"] == {"header": 3}


async def test_a_page_that_moves_is_asked_at_its_new_place_and_is_no_fault_of_the_tier(bench, monkeypatch):
    table, tier, moved = bench.cache.residents, bench.cache.media[0].tier, []
    refs = tier.refs

    def moving(locations):
        for location, ref in zip(locations := list(locations), refs(locations), strict=True):
            if ref.key == "d/1" and len(moved) < 3:
                moved.append(location)
                (slot,) = (slot for slot in table.ready().tolist() if table.location[slot] == location)
                table.stamp[slot] += 1
                # The page has another location now, and the record at the old one is erased.
                table.location[slot] = location + (1 << 62)
                yield TierError("no record here")
                continue
            yield ref

    def back(*args, note=bench.cache._places.note_failures):
        found = note(*args)
        table.location[:] = table.location[:] & ~(1 << 62)
        return found

    monkeypatch.setattr(tier, "refs", moving)
    monkeypatch.setattr(bench.cache._places, "note_failures", back)
    assert await asked(bench) == (["d/2", "e", "d/1"], *ALL[1:])
    assert len(moved) == 3
    assert bench.counted_stats().snapshot()["tiers"]["ram"]["errors"] == {}


async def test_a_slot_that_got_another_page_tells_nothing_of_the_old_one(bench):
    names, table = bench.cache.names, bench.cache.residents
    pages = await names.gather(table.ready())
    slots = [slot for ref in ("d/1", "e") for slot in table.pages_of(HASHES[ref])]
    bench.cache.drop_object(ObjectRef("b", "d/1"), "test")
    bench.cache.drop_object(ObjectRef("b", "e"), "test")
    bench.origin.put("b", "f", b"x" * 6 * PAGE)
    await bench.get("f")
    await bench.settle()
    assert sorted(table.pages_of(object_hash(ObjectRef("b", "f")))) == sorted(slots)
    assert (await names.ask(pages, lambda *_: True)).wanted.tolist() == [HASHES["d/2"]]
    assert sorted((await names.still_there(pages)).tolist()) == sorted(table.pages_of(HASHES["d/2"]))
