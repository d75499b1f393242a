"""Clients that come late, leave early or write while a page is on its way, by callbacks and by a task."""

import asyncio
import base64
import zlib
from collections.abc import AsyncIterator

import pytest

from shadeproxy.api.s3.exchange import CLIENT_CLOSED
from shadeproxy.api.s3.pending_read import PendingRead
from shadeproxy.app.admin import Observer
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.read.single_flight import SingleFlight
from tests.support.purging import purge_under
from tests.support.s3.scripted import CUT, PAUSE, WAIT, Client, Setup, set_up

BODY = bytes(range(256)) * 4000
HALF = len(BODY) // 2
HEAD = (
    b'HTTP/1.1 200 OK\r\nETag: "e1"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n'
    b"Content-Length: %d\r\n\r\n"
)
WHOLE = HEAD % len(BODY) + BODY
NEW = (HEAD % 3).replace(b"e1", b"new") + b"new"
HALF_FIRST = [HEAD % len(BODY) + BODY[:HALF], WAIT, BODY[HALF:]]
GONE = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
STAGES = {
    "before the head": [WAIT, WHOLE],
    "after the head": [HEAD % len(BODY), WAIT, BODY],
    "in the body": HALF_FIRST,
}


@pytest.fixture(params=[True, False], ids=["callbacks", "task"])
async def setup(request, tmp_path) -> AsyncIterator[Setup]:
    async with set_up(tmp_path, by_callbacks=request.param) as setup:
        await setup.warm(2)
        yield setup
        setup.server.go_on.set()
        for client in setup.clients:
            await client.close()
        await setup.settle()
        if request.param:
            assert "/b/k" in setup.started


async def begun(setup: Setup, *fields: str, steps=HALF_FIRST) -> Client:
    """Return a client that has asked for the object, when the server's answer waits."""
    setup.server.scripts["/b/k"] = [steps, [WHOLE]]
    client = await setup.client()
    client.ask("/b/k", *fields)
    await setup.server.reached.wait()
    await turns()
    return client


async def turns(count=30) -> None:
    for _ in range(count):
        await asyncio.sleep(0.001)


async def test_64_clients_of_a_cold_object_make_one_request(setup):
    setup.server.scripts["/b/k"] = [[WHOLE[:9000], PAUSE, WHOLE[9000:]]]
    clients = [await setup.client() for _ in range(64)]
    for client in clients:
        client.ask("/b/k")
    for client in clients:
        assert (await client.answer()).body == BODY
    for client in clients:
        assert (await client.get("/b/warm")).body == b"warm"
    assert len(setup.server.asked) == 1


async def test_who_joins_at_half_gets_all_of_it(setup):
    first = await begun(setup)
    late = await setup.client()
    late.ask("/b/k")
    early, rest = await setup.client(), await setup.client()
    assert (await early.get("/b/k", "Range: bytes=100-199")).body == BODY[100:200]  # This part has come.
    rest.ask("/b/k", f"Range: bytes={HALF + 5}-{HALF + 9}")
    across = await setup.client()
    across.ask("/b/k", f"Range: bytes={HALF - 5}-{HALF + 9}")
    await turns()
    setup.server.go_on.set()
    assert (await first.answer()).body == (await late.answer()).body == BODY
    assert (await rest.answer()).body == BODY[HALF + 5 : HALF + 10]
    assert (await across.answer()).body == BODY[HALF - 5 : HALF + 10]
    assert len(setup.server.asked) == 1


async def test_a_client_whose_range_never_came_gets_an_error_and_not_half_an_answer(setup, capfd):
    first = await begun(setup, steps=[*HALF_FIRST[:2], CUT])
    setup.server.scripts["/b/k"] = [[CUT]]
    late = await setup.client()
    late.ask("/b/k", f"Range: bytes={HALF + 5}-{HALF + 9}")
    await turns()
    setup.server.go_on.set()
    assert (await first.answer()).cut  # The client had received a part.
    answer = await late.answer()
    assert (answer.status, answer.cut) == (503, False)
    assert b"<Code>ServiceUnavailable</Code>" in answer.body
    assert (await late.get("/b/warm")).body == b"warm"
    (logged,) = [line for line in capfd.readouterr().out.splitlines() if "answer cut" in line]
    for part in (f"bytes_sent={HALF} ", "error='OriginUnavailable: ", "operation=GetObject ", "path=/b/k "):
        assert part in logged


@pytest.mark.parametrize("by_callbacks", [True, False], ids=["callbacks", "task"])
async def test_a_client_whose_range_comes_too_late_leaves_in_time(tmp_path, by_callbacks):
    drip = [step for at in range(0, HALF, 1000) for step in (BODY[at : at + 1000], PAUSE)]
    async with set_up(
        tmp_path,
        by_callbacks=by_callbacks,
        origin__timeouts__first_byte="400ms",
        origin__timeouts__window="600ms",
    ) as setup:
        await setup.warm(2)
        setup.server.scripts["/b/k"] = [[HEAD % len(BODY), *drip, BODY[HALF:]]]
        first, late = await setup.client(), await setup.client()
        first.ask("/b/k")
        await turns()
        answer = await late.get("/b/k", f"Range: bytes={HALF + 5}-{HALF + 9}")
        assert (answer.status, answer.cut) == (503, False)
        assert b"the origin has given no byte of the answer within 0.4 s" in answer.body
        (flight,) = setup.engine._filling.flights.all()
        assert not flight.ended  # The fill goes on for the other client.
        assert (await first.answer()).body == BODY
        assert len(setup.server.asked) == 1


async def test_a_range_behind_a_claimed_length_waits_for_the_checksum(setup):
    short, long = BODY[:1000], BODY[:2000]
    proof = b"x-amz-checksum-crc32: " + base64.b64encode(zlib.crc32(long).to_bytes(4, "big"))
    whole = (HEAD % len(long)).replace(b"\r\n\r\n", b"\r\n" + proof + b"\r\n\r\n") + long
    claimed = whole.replace(b"Content-Length: 2000", b"Content-Length: 1000").removesuffix(long)
    first = await begun(setup, steps=[claimed, WAIT, short])
    setup.server.scripts["/b/k"] = [[whole]]
    late = await setup.client()
    late.ask("/b/k", "Range: bytes=1500-1599")
    await turns()
    setup.server.go_on.set()
    assert (await first.answer()).body == long
    answer = await late.answer()
    assert (answer.status, answer.body) == (206, long[1500:1600])


async def test_a_slow_client_holds_up_nobody_and_gets_its_bytes(setup):
    setup.server.scripts["/b/k"] = [[WHOLE]]
    slow = await setup.client(receive_bytes=4096)
    slow.writer.transport.pause_reading()
    slow.ask("/b/k")
    fast = [await setup.client() for _ in range(4)]
    for client in fast:
        client.ask("/b/k")
    for client in fast:
        assert (await client.answer()).body == BODY
    await turns()
    assert setup.engine._ledger.taken_bytes == 0  # The page is stored. The slow client reads it there.
    assert len(setup.engine._filling.flights) <= 1
    slow.writer.transport.resume_reading()
    assert (await slow.answer()).body == BODY
    assert len(setup.server.asked) == 1


@pytest.mark.parametrize("stage", STAGES)
async def test_the_last_client_that_hangs_up_ends_the_read(setup, stage, monkeypatch):
    seen: list[int] = []
    monkeypatch.setattr(Observer, "on_request", lambda _self, *, status, **_: seen.append(status))
    client = await begun(setup, steps=STAGES[stage])
    await client.close()
    await setup.settle()  # The origin's answer still waits.
    assert seen == [CLIENT_CLOSED]  # A download that broke off is no success.
    assert await setup.cached("/b/k") in ({}, {"etag": '"e1"', "size": len(BODY), "pages": {}})
    setup.server.go_on.set()
    assert (await (await setup.client()).get("/b/k")).body == BODY


@pytest.mark.parametrize("stage", STAGES)
async def test_another_client_gets_all_when_the_first_one_hangs_up(setup, stage):
    client = await begun(setup, steps=STAGES[stage])
    other = await setup.client()
    other.ask("/b/k")
    await turns()
    await client.close()
    await turns()
    setup.server.go_on.set()
    assert (await other.answer()).body == BODY
    assert len(setup.server.asked) == 1


async def served_in_part(setup: Setup) -> None:
    """Bring the fill of a page to its half, with no reader: its only reader wanted a range that has already
    come, and that is so long that the page was fetched.
    """
    steps = [HEAD % len(BODY) + BODY[:600_000], WAIT, BODY[600_000:]]
    client = await begun(setup, "Range: bytes=0-549999", steps=steps)
    assert (await client.answer()).body == BODY[:550_000]
    await turns()
    (flight,) = setup.engine._filling.flights.all()
    assert (flight.waiters, flight.ended) == (0, False)


async def test_a_page_of_which_a_range_was_served_is_kept(setup):
    await served_in_part(setup)
    setup.server.go_on.set()
    await setup.settle()
    assert (await setup.cached("/b/k"))["pages"] == {0: BODY}


async def test_a_client_that_stays_sees_the_end_of_what_a_write_replaced(setup):
    reader, writer = await begun(setup), await setup.client()
    setup.server.scripts["/b/k"] = [[NEW]]
    writer.ask("/b/k", method="PUT", body=b"new")
    assert (await writer.answer()).status == 200
    late = await setup.client()
    assert (await late.get("/b/k")).body == b"new"
    setup.server.go_on.set()
    answer = await reader.answer()
    assert (answer.field(b"etag"), answer.body) == (b'"e1"', BODY)
    await setup.settle()
    assert await setup.cached("/b/k") == {"etag": '"new"', "size": 3, "pages": {0: b"new"}}
    assert (await late.get("/b/k")).body == b"new"


@pytest.mark.parametrize("change", ["write", "purge", "purge of all"])
async def test_a_change_ends_a_fill_that_nobody_waits_for(setup, change):
    await served_in_part(setup)
    setup.server.scripts["/b/k"] = [[NEW]]
    client = await setup.client()
    if change == "write":
        client.ask("/b/k", method="PUT", body=b"new")
        assert (await client.answer()).status == 200
    else:
        await purge_under(setup.engine, "b", "k" if change == "purge" else "")
    assert (await client.get("/b/k")).body == b"new"
    await setup.settle()
    assert await setup.cached("/b/k") == {"etag": '"new"', "size": 3, "pages": {0: b"new"}}


async def test_a_purge_keeps_what_is_read_from_being_stored(setup):
    reader = await begun(setup)
    await purge_under(setup.engine, "b", "")
    setup.server.go_on.set()
    assert (await reader.answer()).body == BODY
    await setup.settle()
    assert await setup.cached("/b/k") in ({}, {"etag": '"e1"', "size": len(BODY), "pages": {}})


async def test_closing_lets_answers_end_and_ends_what_nobody_waits_for(setup):
    client = await begun(setup)
    closing = asyncio.create_task(setup.proxy._stack.pop_all().aclose())
    await turns()
    setup.server.go_on.set()
    assert (await client.answer()).body == BODY
    await closing


async def test_pipelined_requests_are_answered_in_order(setup):
    scripts = {f"/b/k{number or ''}": [[PAUSE, HEAD % 2 + b"%02d" % number]] for number in range(6)}
    setup.server.scripts |= scripts
    client = await setup.client()
    for path in [*scripts, "/b/warm", *scripts]:
        client.ask(path)
    bodies = [(await client.answer()).body for _ in range(13)]
    assert bodies == [*(b"%02d" % number for number in range(6)), b"warm", *bodies[:6]]
    assert len(setup.server.asked) == 6


async def test_a_half_closed_client_ends_the_read_and_nobody_elses(setup):
    client, other = await begun(setup), await setup.client()
    other.ask("/b/k")
    await turns()
    client.writer.write_eof()
    await turns()
    setup.server.go_on.set()
    assert (await other.answer()).body == BODY
    assert len(setup.server.asked) == 1


async def test_a_task_that_never_began_leaves_nothing(setup, monkeypatch):
    """A read by callbacks is refused by the origin and becomes a task, but the client is gone by then."""
    if not setup.by_callbacks:
        setup.started.append("/b/k")
    go_on, cancelled = PendingRead.go_on_by_task, []

    def cancel_at_once(pending):
        read = pending._read
        go_on(pending)
        pending._task.cancel()
        cancelled.append(read)

    monkeypatch.setattr(PendingRead, "go_on_by_task", cancel_at_once)
    setup.server.scripts["/b/k"] = [[GONE]]
    client = await setup.client()
    client.ask("/b/k")
    await turns()
    assert len(cancelled) == setup.by_callbacks
    await client.close()
    await setup.settle()


@pytest.mark.parametrize("steps", [[GONE], [HEAD % 9 + b"1234", CUT], [CUT]], ids=["refused", "cut", "dead"])
async def test_a_fill_that_never_began_leaves_nothing(setup, monkeypatch, steps):
    fill, cancelled = SingleFlight.fill_by_task, []

    def cancel_at_once(flights, flight, coroutine):
        task = fill(flights, flight, coroutine)
        if flight.ref == ObjectRef("b", "k"):
            task.cancel()
            cancelled.append(flight)
        return task

    monkeypatch.setattr(SingleFlight, "fill_by_task", cancel_at_once)
    setup.server.scripts["/b/k"] = [steps]
    client = await setup.client()
    answer = await client.get("/b/k")
    assert answer.cut or answer.status == 500
    assert cancelled
    await client.close()
    await setup.settle()
