"""A prefetch by a worker has the same effects as one by the coordinator: the page, the counts and
the memory.
"""

import asyncio
from contextlib import AsyncExitStack

import pytest

from shadeproxy.core.errors import BodyCutShort, ShadeProxyError
from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.read.prefetch_port import Need
from shadeproxy.engine.read.worker_fills import PrefetchWorkers
from shadeproxy.origin.pool import NotConnected
from tests.support.s3.cases import chopped, crc32, damaged, ok, part, refusal
from tests.support.s3.fetching import fetching
from tests.support.s3.scripted import CUT, PAGE, PAUSE, WAIT, set_up

pytestmark = pytest.mark.timeout(30)
REF = ObjectRef("b", "k")
BODY = bytes(range(256)) * 1200
BIG = BODY * 8
ETAG = '"e1"'


class AnyRange(dict):
    """A script by Range that has an answer to every range of BODY."""

    def __missing__(self, asked):
        start, _, last = asked.removeprefix("bytes=").partition("-")
        return [part(BODY, int(start), int(last) + 1)]


RANGES = AnyRange({"": [ok(BODY)]})
SCRIPTS = {
    "at once": [[ok(BODY)]],
    "in pieces": [chopped(ok(BODY), 50_000)],
    "more than a page": [[ok(BIG)]],
    "empty": [[ok(b"")]],
    "with a checksum": [[ok(BODY, crc32(BODY))]],
    "a small one with a checksum": [[ok(b"small", crc32(b"small"))]],
    "a wrong checksum": [[ok(BODY, crc32(damaged(BODY)))], [ok(BODY, crc32(BODY))]],
    "cut before the head": [[CUT], [ok(BODY)]],
    "cut in the body": [[ok(BODY)[:-100_000], PAUSE, CUT], RANGES],
    "missing": [[refusal(b"404 Not Found", b"NoSuchKey")]],
    "too busy, then there": [[refusal(b"503 Slow Down", b"SlowDown")], [ok(BODY)]],
    "without a version": [[ok(BODY, etag=b"")]],
}


ASKED_TWICE = {"cut before the head", "missing", "too busy, then there", "without a version"}
"""Scripts whose first answer a worker cannot use, so that the coordinator sends the request again."""
PAGES = {
    "more than a page": {0: BIG[:PAGE]},
    "a small one with a checksum": {0: b"small"},
    "empty": {},
    "a wrong checksum": None,
}


def need(ref=REF, number=0):
    return Need(ref, object_hash(ref), number, None)


async def prefetch(setup, ref=REF):
    """Fetch the first page as the prefetcher does. Return the outcome that the prefetcher would get."""
    ended = asyncio.get_running_loop().create_future()
    setup.engine.prefetch_port.begin(need(ref), ended.set_result)
    return await ended


async def outcome(tmp_path, script, *, by_worker):
    """Prefetch an object, with a worker or without one. Return the cached pages, the counts, and the outcome
    that the prefetcher gets.
    """
    async with AsyncExitStack() as stack:
        setup = await stack.enter_async_context(set_up(tmp_path, by_callbacks=True))
        worker = await stack.enter_async_context(fetching(setup, most_orders=4)) if by_worker else None
        await setup.warm(2)
        if worker is not None:
            await worker.warm(2)
        setup.server.scripts["/b/k"] = list(script)
        fetched = await prefetch(setup)
        cached, counted = await setup.cached("/b/k"), setup.counted()
        await setup.settle()
        if worker is not None:
            assert worker.begun == ["/b/k"]
            await worker.settle()
            assert not worker.fills.orders
        told = fetched.meta, fetched.size_bytes, fetched.stored, type(fetched.error)
        prefetches = setup.proxy.stats.snapshot()["prefetch"]
        return {"told": told, "cached": cached, "counted": counted, "prefetches": prefetches}


@pytest.mark.parametrize("name", SCRIPTS)
async def test_a_worker_fetches_what_the_coordinator_would(tmp_path, name):
    alone = await outcome(tmp_path / "alone", SCRIPTS[name], by_worker=False)
    found = await outcome(tmp_path / "worker", SCRIPTS[name], by_worker=True)
    for one in (alone, found) if name in ASKED_TWICE else ():
        del one["counted"]["gets"]
    assert found == alone
    if name not in ASKED_TWICE:
        assert alone["cached"].get("pages") == PAGES.get(name, {0: BODY})


async def test_a_body_whose_checksum_only_the_worker_has_is_not_cached_in_part(tmp_path):
    """A body with a checksum that breaks off is not cached, because its rest could not be verified.

    The checksum of the first bytes is in the worker, and the coordinator would fetch the rest. So the
    prefetch fails, and the next reader asks for the whole body.
    """
    found = await outcome(tmp_path, [[ok(BODY, crc32(BODY))[:-100_000], PAUSE, CUT], RANGES], by_worker=True)
    assert found["cached"] == {}
    assert found["told"][3] is BodyCutShort


async def test_memory_comes_back_after_a_page_whose_client_has_left_breaks_off(tmp_path):
    async with (
        set_up(tmp_path, by_callbacks=True) as setup,
        fetching(setup) as worker,
    ):
        await setup.warm(2)
        await worker.warm(2)
        setup.server.scripts["/b/k"] = [[ok(BODY)[:-1000], WAIT, CUT], RANGES]
        first = await worker.client()
        first.ask("/b/k")
        await setup.server.reached.wait()
        other = await setup.client()
        other.ask("/b/k")
        await asyncio.sleep(0.02)
        await first.close()
        await asyncio.sleep(0.02)
        setup.server.go_on.set()
        assert (await other.answer()).body == BODY
        await worker.settle()


async def test_a_reader_joins_the_page_that_a_worker_prefetches(tmp_path):
    async with (
        set_up(tmp_path, by_callbacks=True) as setup,
        fetching(setup, most_orders=4) as worker,
    ):
        await setup.warm(2)
        await worker.warm(2)
        setup.server.scripts["/b/k"] = [[ok(BODY)[:-1000], WAIT, BODY[-1000:]]]
        page = asyncio.create_task(prefetch(setup))
        await setup.server.reached.wait()
        readers = [await setup.client(), await worker.client(), await worker.client()]
        for reader in readers:
            reader.ask("/b/k")
        await asyncio.sleep(0.02)
        setup.server.go_on.set()
        assert [(await reader.answer()).body for reader in readers] == [BODY] * 3
        assert (await page).stored
        assert len(setup.server.asked) == 1
        await worker.settle()
        assert setup.proxy.stats.snapshot()["prefetch"]["used"] == 1


@pytest.mark.parametrize("sent", [0, 100, 200_000])
async def test_the_coordinator_goes_on_without_a_worker_that_is_lost(tmp_path, sent):
    async with (
        set_up(tmp_path, by_callbacks=True) as setup,
        fetching(setup, most_orders=4) as worker,
    ):
        await setup.warm(2)
        await worker.warm(2)
        answer = ok(BODY)
        steps = [answer[:sent], WAIT] if sent else [WAIT]
        setup.server.scripts["/b/k"] = [steps, RANGES]
        page = asyncio.create_task(prefetch(setup))
        await setup.server.reached.wait()
        await asyncio.sleep(0.02)
        worker.lose()
        assert (await page).stored
        assert (await setup.cached("/b/k"))["pages"] == {0: BODY}
        assert len(setup.server.asked) == 2
        await setup.settle()
        assert not worker.fills.takes_orders
        setup.server.go_on.set()


async def test_a_prefetch_that_is_given_up_ends_at_the_worker(tmp_path):
    async with (
        set_up(tmp_path, by_callbacks=True) as setup,
        fetching(setup, most_orders=4) as worker,
    ):
        await setup.warm(2)
        await worker.warm(2)
        setup.server.scripts["/b/k"] = [[ok(BODY)[:-1000], WAIT, BODY[-1000:]]]
        port = setup.engine.prefetch_port
        flight = port.begin(need(), lambda _fetched: None)
        await setup.server.reached.wait()
        await asyncio.sleep(0.02)
        assert worker.held["extents"] == 1
        assert not worker.fills.orders, "it has its memory"
        port.give_up(flight)
        await worker.settle()
        assert not worker.fills.orders
        assert await setup.cached("/b/k") == {}
        setup.server.go_on.set()


async def test_a_worker_opens_a_connection_for_a_prefetch(tmp_path):
    async with (
        set_up(tmp_path, by_callbacks=True) as setup,
        fetching(setup, most_orders=4) as worker,
    ):
        await setup.warm(2)
        setup.server.scripts["/b/k"] = [[ok(BODY)]]
        assert (await prefetch(setup)).stored
        assert worker.begun == ["/b/k"]
        assert len(setup.server.asked) == 1
        await worker.settle()


async def test_the_coordinator_fetches_the_page_if_a_worker_cannot_connect(tmp_path):
    async with (
        set_up(tmp_path, by_callbacks=True) as setup,
        fetching(setup, most_orders=4) as worker,
    ):
        await setup.warm(2)
        setup.server.scripts["/b/k"] = [[ok(BODY)]]

        async def refuse(_peer):
            raise NotConnected

        worker.gets.pool._connect = refuse
        assert (await prefetch(setup)).stored
        assert worker.begun == []
        assert len(setup.server.asked) == 1
        await worker.settle()


async def test_a_worker_carries_out_so_many_prefetches_and_no_more(tmp_path):
    async with (
        set_up(tmp_path, by_callbacks=True) as setup,
        fetching(setup, most_orders=2) as worker,
    ):
        await setup.warm(3)
        await worker.warm(3)
        keys = ["k", "l", "m"]
        setup.server.scripts = {f"/b/{key}": [[WAIT, ok(BODY)]] for key in keys}
        pages = [asyncio.create_task(prefetch(setup, ObjectRef("b", key))) for key in keys]
        await setup.server.reached.wait()
        await asyncio.sleep(0.02)
        assert worker.begun == ["/b/k", "/b/l"]
        setup.server.go_on.set()
        assert all([(await page).stored for page in pages])
        assert len(setup.server.asked) == 3
        await worker.settle()


async def test_a_page_that_a_stuck_worker_has_fails_in_time(tmp_path):
    async with (
        set_up(tmp_path, by_callbacks=True, origin__timeouts__first_byte="300ms") as setup,
        fetching(setup, most_orders=4) as worker,
    ):
        await setup.warm(2)
        await worker.warm(2)
        setup.server.scripts["/b/k"] = [[ok(BODY)]]
        worker.wire.is_cut = True
        fetched = await prefetch(setup)
        assert not fetched.stored
        assert isinstance(fetched.error, ShadeProxyError)
        assert setup.server.asked == []
        assert not worker.fills.orders
        await setup.settle()


def test_the_worker_with_the_fewest_prefetches_gets_the_next_one():
    class Worker:
        def __init__(self, orders, *, takes_orders=True):
            self.orders, self.takes_orders = set(range(orders)), takes_orders

    workers, busy, idle, full = PrefetchWorkers(), Worker(3), Worker(1), Worker(0, takes_orders=False)
    assert workers.pick() is None
    for one in (busy, full, idle):
        workers.add(one)
    assert workers.pick() is idle
    workers.remove(idle)
    workers.remove(idle)
    assert workers.pick() is busy
