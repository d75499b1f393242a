"""Pages under a prefix are found and dropped. Each key is read once, and few keys in one system call."""

import asyncio

import numpy as np
import pytest

from shadeproxy.core.identity import object_hash
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import ObjectRef, Source
from shadeproxy.engine.storage import prefix_pages
from shadeproxy.engine.storage.object_names import NOTHING_NAMED
from tests.support.engine import PAGE
from tests.support.purging import purge_under

COUNT = 200


@pytest.fixture
async def bench(make_bench):
    bench = await make_bench(ram_bytes=96 * 1024, disk_bytes=1 << 20, policy="lru", budget_bytes=1 << 22)
    for n in range(COUNT):
        key = f"data/{n % 4}/{n:03}"
        bench.origin.put("b", key, b"x" * 700)
        await bench.get(key)
    await bench.settle()
    pages = [members.pages for members in bench.cache.residents.members]
    assert min(pages) > 40
    assert sum(pages) == COUNT
    return bench


@pytest.fixture
def read(bench, monkeypatch):
    """Return a list of the locations whose records are asked for their objects, and a list of the lengths of
    all reads of segments.
    """
    records, lengths = [], []
    for medium in bench.cache.media:
        refs = medium.tier.refs

        def noted(locations, refs=refs):
            records.extend(locations := list(locations))
            return refs(locations)

        monkeypatch.setattr(medium.tier, "refs", noted)
        for segment in medium.tier._all_segments():

            def reading(offset, length, read=segment.read):
                lengths.append(length)
                return read(offset, length)

            monkeypatch.setattr(segment, "read", reading)
    return records, lengths


async def test_a_purge_reads_each_key_once_and_few_bytes_in_many_calls(bench, read):
    records, lengths = read
    assert await purge_under(bench.engine, "b", "data/2/") == (50, 50, 50 * 700)
    assert len(records) == COUNT
    assert len(lengths) < COUNT / 10
    sources = [(await bench.get(f"data/{n % 4}/{n:03}"))[1] for n in range(COUNT)]
    assert sources == [Source.ORIGIN if n % 4 == 2 else source for n, source in enumerate(sources)]
    assert sources.count(Source.ORIGIN) == 50


async def test_one_page_tells_the_key_of_all_pages_of_its_object(make_bench):
    bench = await make_bench()
    bench.origin.put("b", "d/k", b"x" * 9 * PAGE)
    await bench.get("d/k")
    await bench.settle()
    tier, records = bench.cache.media[0].tier, []
    refs = tier.refs

    def noted(locations):
        records.extend(locations := list(locations))
        return refs(locations)

    tier.refs = noted
    assert len((await bench.cache.find_under("b", "d/k")).slots) == 9
    assert len(records) == 1
    # Drop the page that was asked.
    bench.cache.drop(int(np.flatnonzero(bench.cache.residents.location == records[0])[0]), "capacity")
    assert len((await bench.cache.find_under("b", "d/k")).slots) == 8
    assert len((await bench.cache.find_under("b", "d/l")).slots) == 0


async def test_erasures_do_not_wait_in_heaps(bench, monkeypatch):
    """An erasure that waits for the writer of a disk takes memory. A purge of a million pages must not queue
    a million of them.
    """
    monkeypatch.setattr(prefix_pages, "_ERASED_TOGETHER", 64)
    since, most = 0, 0
    over, drop = bench.cache.erasing.over, bench.cache.transfers.drop

    async def waited(*args):
        nonlocal since
        await over(*args)
        since = 0

    def dropped(slot, reason):
        nonlocal since, most
        since += 1
        most = max(most, since)
        drop(slot, reason)

    monkeypatch.setattr(bench.cache.erasing, "over", waited)
    monkeypatch.setattr(bench.cache.transfers, "drop", dropped)
    await bench.cache.drop_under("b", "data/", "", lambda _: True)
    assert most == 64
    assert len(bench.cache.residents) == 0


@pytest.mark.parametrize("is_counted", [True, False])
async def test_a_page_that_moves_while_a_purge_looks_goes_too(bench, monkeypatch, is_counted):
    """While a page moves between two tiers, it has no record that can be read."""
    cache = bench.cache
    ref = ObjectRef("b", f"data/3/{COUNT - 1:03}")
    (slot,) = cache.residents.pages_of(object_hash(ref))
    assert cache.residents.tier[slot] == 0
    named = (await cache.find_under("b", "data/3/")).named if is_counted else NOTHING_NAMED
    scan = cache.names.scan

    async def move_meanwhile(groups):
        pages = await scan(groups)
        assert cache.transfers._demote(slot)
        return pages

    monkeypatch.setattr(cache.names, "scan", move_meanwhile)
    await cache.drop_under("b", "data/3/", "", lambda _: True, named)
    await bench.settle()
    assert cache.residents.pages_of(object_hash(ref)) == []
    assert (await bench.get(ref.key))[1] is Source.ORIGIN


async def test_a_page_with_a_damaged_header_goes_too(bench):
    cache = bench.cache
    ref = ObjectRef("b", f"data/3/{COUNT - 1:03}")
    (slot,) = cache.residents.pages_of(object_hash(ref))
    tier = cache.media[0].tier
    segment, offset, _ = tier._resolve(int(cache.residents.location[slot]))
    segment._calls.pwrite(segment.descriptor, b"damaged", offset + 80)
    assert len((await cache.find_under("b", "data/3/")).slots) == COUNT / 4 - 1
    assert await purge_under(bench.engine, "b", "data/3/") == (49, 49, 49 * 700)
    assert cache.residents.pages_of(object_hash(ref)) == []
    assert bench.counted_stats().snapshot()["tiers"]["ram"]["errors"]["header"] > 0


async def test_a_purge_drops_all_that_was_there_beside_readers_and_moves(bench):
    """A purge drops each page that was cached when it began, though readers store pages and move others."""
    table, over = bench.cache.residents, False

    async def read_on():
        n = 0
        while not over:
            n = (n * 7 + 3) % COUNT
            await bench.get(f"data/{n % 4}/{n:03}", range=RangeSpec(0, 9))
            await asyncio.sleep(0)

    reader = asyncio.create_task(read_on())
    for prefix in ("data/1/", "data/2/1", "data/"):
        before = {
            (slot, int(table.generation[slot])) for slot in (await bench.cache.find_under("b", prefix))[0]
        }
        assert before
        await purge_under(bench.engine, "b", prefix)
        assert not before & {(slot, table.generations[slot]) for slot in table.ready().tolist()}
    over = True
    await reader
