"""Pages that a worker fetches while a client leaves, comes late, or asks for more than memory allows."""

import asyncio

import pytest

from shadeproxy.api.s3 import timeout_answers, worker_misses
from shadeproxy.api.s3.relay import WorkerProtocol
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.base import ReadRequest
from tests.support.s3.cases import ok, part
from tests.support.s3.fetching import FILL_BYTES, fetching
from tests.support.s3.scripted import CUT, PAGE, PAUSE, WAIT, Setup, set_up

pytestmark = pytest.mark.timeout(30)
BODY = bytes(range(256)) * 200
HALF = len(BODY) // 2
HEAD = ok(BODY).removesuffix(BODY)
REST = part(BODY, HALF, len(BODY))


async def go_on(setup: Setup) -> None:
    """Let the server's answer go on until it waits again."""
    await setup.server.reached.wait()
    setup.server.reached.clear()
    setup.server.go_on.set()
    setup.server.go_on.clear()


async def test_a_page_that_came_whole_is_stored_though_memory_is_short(tmp_path):
    """A page that has come whole is stored, although its client has left before the coordinator knows of it.

    Memory is too short to finish a page without a reader.
    """
    async with set_up(tmp_path, by_callbacks=True) as setup, fetching(setup) as worker:
        await setup.warm(2)
        await worker.warm(2)
        setup.server.scripts["/b/k"] = [[ok(BODY)]]
        ledger = setup.engine._ledger
        taken = int(ledger.capacity_bytes * 0.6)
        assert ledger.try_take(taken)
        client = await worker.client()
        for _ in range(3):
            assert (await client.get("/b/k")).body == BODY
            await asyncio.sleep(0.05)
        ledger.give(taken)
        assert worker.begun == ["/b/k"]
        assert len(setup.server.asked) == 1
        await worker.settle()


@pytest.mark.parametrize("last", ["99999999999999999999", "18446744073709551616"])
async def test_a_range_that_no_message_holds_is_relayed(tmp_path, last):
    async with set_up(tmp_path, by_callbacks=True) as setup, fetching(setup) as worker:
        await setup.warm(2)
        await worker.warm(2)
        setup.server.scripts["/b/k"] = [[ok(BODY)]]
        client = await worker.client()
        answer = await client.get("/b/k", f"Range: bytes=0-{last}")
        assert answer.body == BODY
        assert worker.begun == []
        await worker.settle()


async def test_a_version_that_no_message_names_is_read_by_the_coordinator(tmp_path):
    """The relayed request must not wait for a page that no process fetches."""
    body, etag = BODY * 40, b'"\xff"'
    async with set_up(tmp_path, by_callbacks=True) as setup, fetching(setup) as worker:
        await setup.warm(2)
        await worker.warm(2)
        setup.server.scripts["/b/k"] = [
            {
                f"bytes={start}-{start + 99}": [part(body, start, start + 100, etag=etag)]
                for start in (0, PAGE)
            }
        ]
        client = await worker.client()
        assert (await client.get("/b/k", "Range: bytes=0-99")).body == body[:100]
        while setup.engine._versions.known_now(ObjectRef("b", "k")) is None:
            await asyncio.sleep(0.001)
        answer = await client.get("/b/k", f"Range: bytes={PAGE}-{PAGE + 99}")
        assert answer.body == body[PAGE : PAGE + 100]
        assert answer.field(b"x-shade-cache") == b"origin"
        assert setup.server.asked[-1][3] == etag.decode("utf-8", "surrogateescape")
        await worker.settle()


async def test_a_part_of_a_long_page_is_fetched_and_stored_by_a_worker(tmp_path):
    body = BODY * 40
    async with set_up(tmp_path, by_callbacks=True) as setup, fetching(setup) as worker:
        await setup.warm(2)
        await worker.warm(2)
        asked = f"bytes={PAGE + 50}-{PAGE + 99}"
        scripts = {"bytes=0-99": [part(body, 0, 100)], asked: [part(body, PAGE + 50, PAGE + 100)]}
        setup.server.scripts["/b/k"] = [scripts]
        client = await worker.client()
        assert (await client.get("/b/k", "Range: bytes=0-99")).body == body[:100]
        await worker.settle()
        before = len(setup.server.asked)
        sources = []
        for last in (99, 99, 60):
            answer = await client.get("/b/k", f"Range: bytes={PAGE + 50}-{PAGE + last}")
            assert answer.body == body[PAGE + 50 : PAGE + last + 1]
            sources.append(answer.field(b"x-shade-cache"))
            await worker.settle()
        assert sources == [b"origin", b"ram", b"ram"]
        assert len(setup.server.asked) == before + 1
        assert len(worker.begun) == 2


async def test_readers_do_not_wait_for_a_worker_that_is_stuck(tmp_path):
    async with (
        set_up(tmp_path, by_callbacks=True, origin__timeouts__first_byte="500ms") as setup,
        fetching(setup) as worker,
    ):
        await setup.warm(2)
        await worker.warm(2)
        setup.server.scripts["/b/k"] = [[WAIT, ok(BODY)], [ok(BODY)]]
        stuck = await worker.client()
        stuck.ask("/b/k")
        await setup.server.reached.wait()
        await asyncio.sleep(0.25)
        other = await setup.client()
        other.ask("/b/k")  # This client joins the flight that the worker fills.
        answer = await other.answer()
        assert (answer.status, answer.body) == (200, BODY)
        answer = await stuck.answer()
        assert (answer.status, answer.cut) == (503, False)
        setup.server.go_on.set()
        await worker.settle()


async def test_a_job_whose_pages_come_by_a_worker_gives_signs_of_life(tmp_path):
    seen = []
    async with set_up(tmp_path, by_callbacks=True) as setup, fetching(setup) as worker:
        worker.fills._on_job = seen.append
        await setup.warm(2)
        await worker.warm(2)
        setup.server.scripts["/b/k"] = [[HEAD, PAUSE, BODY]]
        client = await worker.client()
        assert (await client.get("/b/k", "x-shade-job: one;epoch=3")).body == BODY
        await worker.settle()
    assert [(job.job, job.epoch) for job in seen] == [("one", 3)]


async def test_an_error_of_the_engine_is_no_end_of_the_worker(tmp_path, monkeypatch):
    async with set_up(tmp_path, by_callbacks=True) as setup, fetching(setup) as worker:
        await setup.warm(2)
        await worker.warm(2)
        setup.server.scripts["/b/k"] = [[ok(BODY)]]
        begin = setup.engine.begin

        def fail(request, meta, reads=None):
            if reads is not None:
                raise RuntimeError
            return begin(request, meta)

        def fail_plain(*_):
            raise RuntimeError

        monkeypatch.setattr(setup.engine, "begin", fail)
        monkeypatch.setattr(setup.engine.plain_reads, "begin", fail_plain)
        client = await worker.client()
        assert (await client.get("/b/k")).body == BODY
        assert worker.begun == []
        assert setup.reads.limited.open_now == 0
        await worker.settle()


async def test_a_page_that_breaks_off_after_its_client_was_served_keeps_no_memory(tmp_path):
    async with set_up(tmp_path, by_callbacks=True) as setup, fetching(setup) as worker:
        await setup.warm(2)
        await worker.warm(2)
        setup.server.scripts |= {"HEAD /b/k": [[HEAD]], "/b/k": [[HEAD + BODY[:HALF], WAIT, CUT], [REST]]}
        await setup.engine.stat(ReadRequest(ObjectRef("b", "k")))
        client = await worker.client()
        assert (await client.get("/b/k", "Range: bytes=0-99")).body == BODY[:100]
        await go_on(setup)
        await worker.settle()
        assert (await setup.cached("/b/k"))["pages"] == {0: BODY}


async def test_a_client_whose_bytes_crossed_its_refusal_does_not_hang(tmp_path):
    async with (
        set_up(tmp_path, by_callbacks=True, origin__timeouts__first_byte="2s") as setup,
        fetching(setup) as worker,
    ):
        await setup.warm(2)
        await worker.warm(2)
        setup.server.scripts["/b/k"] = [[HEAD, WAIT, BODY[:HALF], WAIT, CUT], [REST]]
        crossed = await worker.client()
        crossed.ask("/b/k")
        await setup.server.reached.wait()
        await asyncio.sleep(1.2)
        worker.misses._report_progress()  # By its timer, the worker reports the head without any bytes.
        other = await setup.client()
        other.ask("/b/k")
        worker.wire.hold()
        await go_on(setup)
        await crossed.reader.readuntil(b"\r\n\r\n")
        while setup.engine.readings > 1:  # The refused reader has left.
            await asyncio.sleep(0.001)
        worker.wire.go_on()
        await go_on(setup)
        assert (await other.answer()).body == BODY
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await crossed.reader.readexactly(len(BODY))
        await worker.settle()


class Late:
    """A deadline that has passed."""

    left_s = arriving_left_s = -1.0


@pytest.mark.parametrize("fields", [(), (f"Range: bytes=0-{len(BODY) - 1}",)], ids=["plain", "range"])
async def test_a_client_whose_bytes_came_before_its_refusal_gets_them_all(tmp_path, fields):
    """Many reads are late in one turn of the loop, so the flight tells this one in a later turn."""
    async with set_up(tmp_path, by_callbacks=True) as setup, fetching(setup) as worker:
        await setup.warm(2)
        await worker.warm(2)
        setup.server.scripts["/b/k"] = [[WAIT, HEAD + BODY[:HALF], WAIT, BODY[HALF:]]]
        client = await worker.client()
        client.ask("/b/k", *fields)
        await setup.server.reached.wait()
        (read,) = worker.fills._reads.values()
        flight = read._flight
        worker.wire.hold()
        sent = len(worker.wire.frames)
        await go_on(setup)
        while len(worker.wire.frames) == sent:
            await asyncio.sleep(0.001)
        worker.wire.go_on()
        while flight._pace.take():
            pass
        read.deadline = Late()
        flight.refuse_late()
        while not flight.filled:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        await go_on(setup)
        assert (await client.answer()).body == BODY
        await worker.settle()


async def test_one_new_object_asked_by_64_clients_over_three_workers_is_read_once(tmp_path):
    async with (
        set_up(tmp_path, by_callbacks=True) as setup,
        fetching(setup) as one,
        fetching(setup) as two,
        fetching(setup) as three,
    ):
        workers = [one, two, three]
        await setup.warm(2)
        for worker in workers:
            await worker.warm(2)
        setup.server.scripts["/b/k"] = [[HEAD + BODY[:HALF], PAUSE, BODY[HALF:]]]
        clients = [await workers[n % 3].client() for n in range(64)]
        for client in clients:
            client.ask("/b/k")
        for client in clients:
            assert (await client.answer()).body == BODY
        assert len(setup.server.asked) == 1
        for worker in workers:
            await worker.settle()


IMPATIENT = {"origin__timeouts__first_byte": "100ms", "origin__timeouts__window": "100ms"}


async def test_a_client_is_refused_in_time_though_the_coordinator_is_stuck(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_misses, "PROGRESS_S", 0.02)
    monkeypatch.setattr(timeout_answers, "_GRACE_S", 0.02)
    async with set_up(tmp_path, by_callbacks=True, **IMPATIENT) as setup, fetching(setup) as worker:
        await setup.warm(2)
        await worker.warm(2)
        setup.server.scripts["/b/k"] = [[ok(BODY)]]
        client = await worker.client()
        worker.wire.hold()
        answer = await client.get("/b/k")
        assert (answer.status, answer.cut) == (503, False)
        assert b"<Code>SlowDown</Code>" in answer.body
        worker.wire.go_on()
        await worker.settle()
        assert (await client.get("/b/k")).body == BODY
        await worker.settle()


async def test_a_relayed_read_is_refused_though_the_coordinator_is_stuck(tmp_path):
    reached = asyncio.Event()

    async def stuck(reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        reached.set()
        await reader.read(-1)
        out.close()

    listening = await asyncio.start_server(stuck, "127.0.0.1", 0)
    async with set_up(tmp_path, by_callbacks=True, **IMPATIENT) as setup, fetching(setup) as worker:
        worker.coordinator = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        worker.late.relayed_s = 0.1
        taken = worker.extents.take(FILL_BYTES)  # No memory is free: the read is relayed.
        assert taken is not None
        client = await worker.client()
        answer = await client.get("/b/k")
        assert reached.is_set()
        assert (answer.status, answer.cut) == (503, False)
        assert answer.field(b"connection") == b"close"
        assert await client.reader.read() == b""
        worker.extents.give(taken[0])
        await worker.settle()
    listening.close()


async def test_a_relayed_request_joins_the_flight_that_continues_its_read(tmp_path, monkeypatch):
    """The page begins to arrive before the relayed request does."""
    relay, relayed = WorkerProtocol.relay, list[WorkerProtocol]()

    def hold(connection):
        relayed.append(connection)

    monkeypatch.setattr(WorkerProtocol, "relay", hold)
    busy = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"
    async with set_up(tmp_path, by_callbacks=True) as setup, fetching(setup) as worker:
        await setup.warm(2)
        await worker.warm(2)
        setup.server.scripts["/b/k"] = [[busy], [HEAD + BODY[:HALF], WAIT, BODY[HALF:]], [ok(BODY)]]
        client = await worker.client()
        client.ask("/b/k")
        await setup.server.reached.wait()
        flight = setup.engine._filling.flights.find(ObjectRef("b", "k"), 0)
        while not (relayed and flight.filled):
            await asyncio.sleep(0.001)
        relay(relayed[0])
        while flight.waiters == 1:
            await asyncio.sleep(0.001)
        await go_on(setup)
        assert (await client.answer()).body == BODY
        assert len(setup.server.asked) == 2
        await worker.settle()
