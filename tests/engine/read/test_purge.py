"""A purge drops pages in slices. It reports its progress, and can be stopped between two slices."""

import asyncio

import pytest

from shadeproxy.core.types import Source

SLICE = 32
COUNT = 5 * SLICE


@pytest.fixture
async def bench(make_bench):
    bench = await make_bench(budget_bytes=1 << 22)
    for n in range(COUNT):
        bench.origin.put("b", f"p/{n:04}", b"12345")
        await bench.get(f"p/{n:04}")
    return bench


@pytest.fixture
def begun(bench):
    """Return a class that begins a purge when it is called. Its ``at(pages)`` waits until the purge has
    dropped this number of pages.
    """

    class Begun:
        def __init__(self, **options):
            self.purge = bench.engine.purging("b", "p/", **{"dry_run": False} | options)
            self.progress = self.purge.progress
            self.task = asyncio.create_task(self.purge.run())

        async def at(self, pages):
            while self.progress.pages < pages:
                assert not self.task.done()
                await asyncio.sleep(0)

    return Begun


def resident(bench):
    return bench.cache.residents.members[0].pages


async def test_progress_grows_slice_by_slice_and_ends_whole(bench, begun):
    purge, seen = begun(), []
    while not purge.task.done():
        seen.append((purge.progress.done, purge.progress.pages))
        await asyncio.sleep(0)
    await purge.task
    assert sorted(set(seen)) == [(n, n) for n in range(0, COUNT + 1, SLICE)]
    progress = purge.progress
    assert (progress.listed, progress.total, progress.done) == (True, COUNT, COUNT)
    assert (progress.bytes, progress.total_bytes) == (5 * COUNT, 5 * COUNT)
    assert resident(bench) == 0


async def test_a_cancelled_purge_stops_between_slices_and_tells_what_is_gone(bench, begun, monkeypatch):
    purge, kept = begun(), []
    keep_purged = bench.cache.erasing.keep_purged

    async def keep():
        kept.append(resident(bench))
        await keep_purged()

    monkeypatch.setattr(bench.cache.erasing, "keep_purged", keep)
    await purge.at(2 * SLICE)
    purge.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await purge.task
    gone = COUNT - resident(bench)
    assert SLICE < gone < COUNT
    assert (purge.progress.done, purge.progress.pages, purge.progress.bytes) == (gone, gone, 5 * gone)
    assert kept == [COUNT - gone], "what was dropped would come back after a crash"
    sources = [(await bench.get(f"p/{n:04}"))[1] for n in range(COUNT)]
    assert sources.count(Source.RAM) == COUNT - gone


async def test_a_purge_that_is_cancelled_too_late_is_done(bench, begun, monkeypatch):
    purge = begun()
    keep_purged = bench.cache.erasing.keep_purged

    async def keep():
        purge.task.cancel()
        await keep_purged()

    monkeypatch.setattr(bench.cache.erasing, "keep_purged", keep)
    await purge.task
    assert purge.progress.done == COUNT
    assert resident(bench) == 0


async def test_a_purge_that_is_cancelled_while_it_counts_drops_nothing(bench, begun, monkeypatch):
    monkeypatch.setattr(bench.cache, "find_under", lambda *_: asyncio.Event().wait())
    purge = begun()
    await asyncio.sleep(0)
    purge.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await purge.task
    assert resident(bench) == COUNT


async def test_pages_that_leave_meanwhile_are_gone_too(bench, begun):
    purge = begun()
    await purge.at(SLICE)
    for slot in range(COUNT):
        if bench.cache.residents.tier[slot] == 0:
            bench.cache.drop(slot, "capacity")
    await purge.task
    assert (purge.progress.done, purge.progress.pages) == (COUNT, COUNT)


async def test_a_dry_run_counts_and_drops_nothing(bench, begun):
    purge = begun(dry_run=True)
    await purge.task
    assert (purge.progress.done, purge.progress.pages, purge.progress.bytes) == (COUNT, COUNT, 5 * COUNT)
    assert resident(bench) == COUNT
