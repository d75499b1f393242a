"""Plain reads of a worker: which reads are plain, and that they end in the same state as other reads."""

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest

from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.ownership import Standing
from shadeproxy.engine.read.fill_messages import (
    BodyWritten,
    ClientLeft,
    FillComplete,
    FillFailure,
    FillHead,
    RefuseFill,
)
from shadeproxy.engine.read.plain_read import PlainRead
from shadeproxy.engine.read.worker_read import WorkerRead
from tests.support.ownership import SetOwnership
from tests.support.s3.cases import ok, part
from tests.support.s3.fetching import fetching
from tests.support.s3.scripted import CUT, PAGE, WAIT, set_up

pytestmark = pytest.mark.timeout(30)
BODY = bytes(range(256)) * 200
NEWER = BODY[::-1]


@asynccontextmanager
async def served(directory, **settings):
    """Yield a proxy, and a worker of it."""
    async with set_up(directory, by_callbacks=True, **settings) as setup, fetching(setup) as worker:
        await setup.warm(2)
        await worker.warm(2)
        yield setup, worker
        await worker.settle()


def plain(worker):
    """Return the plain reads that are under way."""
    return [read for read in worker.fills._reads.values() if isinstance(read, PlainRead)]


async def waiting(setup, client, *request):
    """Send a request. Return when the server has received a GET for it, and waits."""
    setup.server.reached.clear()
    client.ask(*request)
    await setup.server.reached.wait()


def go_on(setup):
    setup.server.go_on.set()


async def test_an_unknown_object_is_read_plainly(tmp_path):
    async with served(tmp_path) as (setup, worker):
        setup.server.scripts["/b/k"] = [[WAIT, ok(BODY)]]
        client = await worker.client()
        await waiting(setup, client, "/b/k", "x-shade-job: one;epoch=3")
        assert len(plain(worker)) == setup.engine.readings == 1
        go_on(setup)
        assert (await client.answer()).body == BODY
        await worker.settle()
        assert setup.engine.readings == 0
        assert (await setup.cached("/b/k"))["pages"] == {0: BODY}


@pytest.mark.parametrize("why", ["range", "write", "busy"])
async def test_other_reads_are_not_plain(tmp_path, why):
    async with served(tmp_path) as (setup, worker):
        setup.server.scripts["/b/k"] = [[WAIT, ok(BODY)], [ok(BODY)]]
        client, other = await worker.client(), await setup.client()
        if why == "busy":
            await waiting(setup, other, "/b/k")
            client.ask("/b/k")
            while setup.engine.readings != 2:  # The coordinator does the read itself.
                await asyncio.sleep(0.001)
        elif why == "write":
            async with setup.engine.writing([ObjectRef("b", "k")]):
                await waiting(setup, client, "/b/k")
        else:
            await waiting(setup, client, "/b/k", "Range: bytes=0-9")
        assert plain(worker) == []
        go_on(setup)
        answer = await client.answer()
        assert answer.body == (BODY[:10] if why == "range" else BODY)


async def test_a_reader_of_the_coordinator_joins_a_plain_read(tmp_path):
    async with served(tmp_path) as (setup, worker):
        setup.server.scripts["/b/k"] = [[WAIT, ok(BODY)]]
        client, other = await worker.client(), await setup.client()
        await waiting(setup, client, "/b/k")
        other.ask("/b/k")
        await asyncio.sleep(0.01)
        assert len(plain(worker)) == 1
        go_on(setup)
        assert (await client.answer()).body == (await other.answer()).body == BODY
        assert len(setup.server.asked) == 1


@pytest.mark.parametrize("arrives", [0, 1000])
async def test_another_attempt_fills_the_page_of_a_plain_read_that_failed(tmp_path, arrives):
    """The client gets the whole body, and the page is cached, although the worker's read failed.

    If no byte had come, the worker relays the request. Otherwise the coordinator asks for the rest.
    """
    async with served(tmp_path) as (setup, worker):
        head = ok(BODY).removesuffix(BODY)
        begun = [head + BODY[:arrives], CUT] if arrives else [CUT]
        setup.server.scripts["/b/k"] = [begun, [part(BODY, arrives, len(BODY)) if arrives else ok(BODY)]]
        client = await worker.client()
        assert (await client.get("/b/k")).body == BODY
        await worker.settle()
        assert (await setup.cached("/b/k"))["pages"] == {0: BODY}
        assert setup.counted()["gets"][1] >= len(BODY)


async def test_a_client_that_leaves_alone_ends_its_read(tmp_path):
    async with served(tmp_path) as (setup, worker):
        setup.server.scripts["/b/k"] = [[WAIT, ok(BODY)], [ok(BODY)]]
        client = await worker.client()
        await waiting(setup, client, "/b/k")
        await client.close()
        await worker.settle()
        assert setup.engine.readings == 0
        assert await setup.cached("/b/k") == {}
        go_on(setup)


async def test_a_page_written_during_its_read_is_not_stored(tmp_path):
    async with served(tmp_path) as (setup, worker):
        setup.server.scripts["/b/k"] = [[WAIT, ok(BODY)], [ok(NEWER, etag=b'"newer"')]]
        client = await worker.client()
        await waiting(setup, client, "/b/k")
        async with setup.engine.writing([ObjectRef("b", "k")]):
            pass
        go_on(setup)
        assert (await client.answer()).body == BODY, "the answer began before the write"
        await worker.settle()
        assert await setup.cached("/b/k") == {}
        assert (await client.get("/b/k")).body == NEWER


async def test_plain_reads_are_counted_as_others_are(tmp_path, monkeypatch):
    shown = []
    for is_plain in (True, False):
        async with served(tmp_path / str(is_plain)) as (setup, worker):
            if not is_plain:
                monkeypatch.setattr(setup.engine.plain_reads, "begin", lambda *_: None)
            paths = [f"/b/{number}" for number in range(8)]
            for number, path in enumerate(paths):
                setup.server.scripts[path] = [[ok(BODY[: 100 + number])]]
            clients = [await worker.client() for _ in paths]
            for number, (client, path) in enumerate(zip(clients, paths, strict=True)):
                client.ask(path, *(["x-shade-job: one;epoch=3"] if number % 2 else []))
            for client in clients:
                assert (await client.answer()).status == 200
            await worker.settle()
            jobs = setup.proxy.stats.snapshot()["jobs"]["one"]["epochs"]
            reads = {epoch: (row["requests"], row["bytes"], row["origin"]) for epoch, row in jobs.items()}
            shown.append((setup.counted(), reads, setup.engine.cache.tick()))
    assert shown[0] == shown[1]


class Late:
    """A deadline that is over."""

    left_s = arriving_left_s = -1.0


@asynccontextmanager
async def late(setup, worker):
    """Yield the ident of a read whose deadline is over, before the flight calls the read's ``too_late``.

    Many other reads are late as well, so the flight makes this call in a later turn of the event loop.
    """
    setup.server.scripts["/b/k"] = [[WAIT, ok(BODY)], [ok(BODY)]]
    await waiting(setup, await worker.client(), "/b/k")
    ((ident, read),) = worker.fills._reads.items()
    flight, read.deadline = read._flight, Late()
    while flight._pace.take():
        pass
    flight.refuse_late()
    yield ident
    await asyncio.sleep(0.02)


def hear(worker, *messages):
    worker.fills.hear(msgspec.msgpack.encode(messages))


async def test_a_deadline_that_passed_before_its_client_left_changes_nothing(tmp_path):
    async with served(tmp_path) as (setup, worker):
        async with late(setup, worker) as ident:
            hear(worker, ClientLeft(ident))
        assert worker.fills._reads == {}
        assert setup.reads.limited.open_now == setup.engine.readings == 0
        worker.lose()
        go_on(setup)


async def test_a_deadline_that_passed_before_a_failure_reaches_the_client(tmp_path, monkeypatch):
    failures, sent = [], []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
    async with served(tmp_path) as (setup, worker):
        send = worker.fills.outbox.send
        monkeypatch.setattr(
            worker.fills.outbox, "send", lambda message: (sent.append(message), send(message))
        )
        async with late(setup, worker) as ident:
            hear(worker, FillFailure(ident, "OriginUnavailable", "no answer"))
        assert failures == []
        assert RefuseFill(ident, late=True) in sent
        go_on(setup)


async def test_a_slot_that_a_frame_frees_serves_the_next_read_of_the_frame(tmp_path):
    async with served(tmp_path) as (setup, worker):
        setup.reads.limited.resize(1)
        client = await worker.client()
        for number in range(10):
            setup.server.scripts[f"/b/{number}"] = [[ok(BODY)]]
            assert (await client.get(f"/b/{number}")).body == BODY
        assert len(worker.begun) == 10


async def test_a_message_that_cannot_be_processed_leaves_no_slot_taken(tmp_path):
    async with served(tmp_path) as (setup, worker):
        setup.server.scripts["/b/k"] = [[WAIT, ok(BODY)], [ok(BODY)]]
        await waiting(setup, await worker.client(), "/b/k")
        (ident,) = worker.fills._reads
        head = FillHead(ident, 0, 4096, '"e"', 4096, (), doubtful=False)
        with pytest.raises(KeyError):
            hear(worker, head, FillComplete(ident), BodyWritten(999_424, None))
        await asyncio.sleep(0)
        assert setup.reads.limited.open_now == 0
        assert setup.counted()["gets"] == (2, 4096 + 4)
        worker.lose()
        go_on(setup)


async def test_a_head_with_another_length_than_its_page_is_not_stored(tmp_path):
    async with served(tmp_path) as (setup, worker):
        setup.server.scripts["/b/k"] = [[WAIT, ok(BODY)], [ok(BODY)]]
        await waiting(setup, await worker.client(), "/b/k")
        (ident,) = worker.fills._reads
        hear(worker, FillHead(ident, 0, 4096, '"e"', 9999, (), doubtful=False), FillComplete(ident))
        await asyncio.sleep(0.05)
        cached = await setup.cached("/b/k")
        assert cached == {} or cached["pages"] == {0: BODY}
        worker.lose()
        go_on(setup)


async def test_a_read_that_cannot_be_allowed_is_given_up(tmp_path, monkeypatch):
    """Its slot is released once. The relayed request does not wait for its page."""
    async with served(tmp_path) as (setup, worker):
        setup.server.scripts["/b/k"] = [[ok(BODY)]]

        def fail(read, *begun):
            read._reading, read._flight = begun
            begun[1].followers.append(read)
            raise RuntimeError

        monkeypatch.setattr(WorkerRead, "allow", fail)
        client = await worker.client()
        answer = await client.get("/b/k", "Range: bytes=0-9")
        assert (answer.status, answer.body) == (206, BODY[:10])
        assert answer.field(b"x-shade-cache") == b"origin"
        await setup.settle()
        assert setup.reads.limited.open_now == 0


@pytest.mark.parametrize("change", ["", "epoch", "standing"])
async def test_reads_of_own_objects_are_plain_in_a_cluster(tmp_path, change):
    async with served(tmp_path) as (setup, worker):
        setup.engine._ownership = setup.engine._versions.ownership = ownership = SetOwnership()
        setup.server.scripts["/b/k"] = [[WAIT, ok(BODY)]]
        client, ref = await worker.client(), ObjectRef("b", "k")
        await waiting(setup, client, "/b/k")
        assert len(plain(worker)) == 1
        if change == "epoch":
            ownership.epoch += 1
        elif change == "standing":
            ownership.set(ref, Standing.CHECK)
            ownership.set(ref, Standing.OWN)
        go_on(setup)
        assert (await client.answer()).body == BODY
        await worker.settle()
        (slot,) = setup.engine.cache.residents.pages_of(object_hash(ref))
        is_trusted = setup.engine.cache.residents.validated_s[slot] > 0
        known = setup.engine._versions._metadata.get(ref).validated_s > 0
        assert (is_trusted, known) == (not change, not change)


@pytest.mark.parametrize("standing", [Standing.CHECK, Standing.FOREIGN])
async def test_reads_of_other_objects_are_not_plain_in_a_cluster(tmp_path, standing):
    async with served(tmp_path) as (setup, _):
        setup.engine._versions.ownership = ownership = SetOwnership()
        ref, reads = ObjectRef("b", "k"), setup.engine.plain_reads
        ownership.set(ref, standing)
        begun = reads.begin(ref, object_hash(ref), None, None, None)
        assert (begun, reads.readings, len(setup.engine._filling.flights)) == (None, 0, 0)


async def test_a_worker_asks_for_no_object_that_is_probably_long(tmp_path):
    """The worker would have to give up an answer of several pages. The coordinator reads on in its answer."""
    long = bytes(PAGE + 5)
    async with served(tmp_path) as (setup, worker):
        client = await worker.client()
        asked = []
        for name, body in (("a", long), ("b", long), ("c", b"short"), ("d", b"short")):
            setup.server.scripts[f"/b/{name}"] = [[ok(body)]] * 4
            before = len(setup.server.asked)
            assert (await client.get(f"/b/{name}")).body == body
            await worker.settle()
            asked.append(len(setup.server.asked) - before)
        assert asked == [2, 1, 1, 1], "only the first one is given up"
        assert worker.begun == ["/b/a", "/b/d"], "a short object shows that the next one may be short too"
