"""Uploads whose connection must not be used again, and those whose end must still arrive."""

import asyncio
import socket
import struct
from collections import Counter

import pytest

from shadeproxy.core.errors import BodyMismatch, OutcomeUnknown
from shadeproxy.core.types import ObjectRef
from shadeproxy.origin.base import ForwardRequest
from shadeproxy.origin.upload_connection import UploadConnection
from tests.support.uploading import OK, pieces, put, read_put, send

EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"
SLOW_DOWN = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize("early", [EMPTY, NO_CONTENT], ids=["200", "204"])
@pytest.mark.parametrize("how", ["error", "cancel"])
async def test_no_request_becomes_the_rest_of_an_object_that_was_answered_too_early(forwarding, how, early):
    """An answer without a body ends its exchange. But the server still waits for the rest of the upload."""
    answered, stored = asyncio.Event(), []

    async def serve(reader, writer, _number):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            writer.write(early)
            await writer.drain()
            answered.set()
            stored.append((head.split()[1], await reader.readexactly(size)))

    async def ends():
        yield b"a" * 100
        await answered.wait()
        await asyncio.sleep(0.05)
        if how == "error":
            raise BodyMismatch("the client's")
        await asyncio.Event().wait()

    async with forwarding(serve) as (origin, connections):
        first = asyncio.ensure_future(put(origin, ends(), 600))
        await answered.wait()
        await asyncio.sleep(0.1)
        first.cancel()
        with pytest.raises((BodyMismatch, asyncio.CancelledError)):
            await first
        assert (await put(origin, pieces(b"b" * 900), 900, key="other"))[0] in {200, 204}
        await asyncio.sleep(0)
        assert len(connections) == 2
    assert {path for path, _ in stored} <= {b"/b/other"}


async def test_a_refused_upload_whose_client_hangs_up_leaves_no_idle_connection(forwarding, monkeypatch):
    """The refusal and the hang-up are seen in the same turn of the event loop."""
    upload = None

    async def serve(reader, writer, number):
        while True:
            await reader.readuntil(b"\r\n\r\n")
            if number == 0:
                writer.write(SLOW_DOWN)
                await reader.readexactly(600)
            await reader.readexactly(5)
            writer.write(OK)

    async def ends():
        yield b"a" * 100
        await asyncio.Event().wait()

    take_head = UploadConnection._take_head

    def take_head_and_hang_up(self):
        take_head(self)
        upload.cancel()

    async with forwarding(serve) as (origin, connections):
        monkeypatch.setattr(UploadConnection, "_take_head", take_head_and_hang_up)
        upload = asyncio.ensure_future(put(origin, ends(), 600))
        with pytest.raises(asyncio.CancelledError):
            await upload
        monkeypatch.undo()
        assert await put(origin, pieces(b"other"), 5) == (200, b"ok")
        assert len(connections) == 2


async def test_all_of_a_body_that_was_answered_too_early_arrives_at_a_slow_server(forwarding):
    size, received, done = 3_000_000, 0, asyncio.Event()

    async def serve(reader, writer, _number):
        nonlocal received
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        while received < size and (came := await reader.read(65_536)):
            received += len(came)
            await asyncio.sleep(0.002)
        done.set()

    async with forwarding(serve, read_s=10, receive_bytes=4096) as (origin, _):
        assert await put(origin, pieces(*[b"x" * 50_000] * 60), size) == (200, b"ok")
        async with asyncio.timeout(15):
            await done.wait()
    assert received == size


async def test_a_server_that_resets_an_upload_gives_no_other_error_than_a_lost_connection(forwarding):
    """The client's bytes may come between the reset and its effect on the proxy."""
    errors = Counter()

    async def serve(reader, writer, number):
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.0005 * (number % 8))
        link = writer.get_extra_info("socket")
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def endless():
        while True:
            yield b"x" * 500
            await asyncio.sleep(0)

    async def upload(origin):
        try:
            await put(origin, endless(), 1 << 40)
        except Exception as error:  # noqa: BLE001 - counted by its class
            errors[type(error)] += 1

    async with forwarding(serve) as (origin, _):
        for _ in range(8):
            await asyncio.gather(*(upload(origin) for _ in range(10)))
    assert errors == {OutcomeUnknown: 80}


async def test_the_answer_to_a_head_with_a_body_has_none(forwarding):
    async def serve(reader, writer, _number):
        while True:
            await read_put(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n")

    async with forwarding(serve) as (origin, _):
        head = ForwardRequest("HEAD", ObjectRef("b", ""), "/b", body=pieces(b"x"), content_length=1)
        assert await send(origin, head) == (200, b"")


async def test_deletions_follow_each_other_on_one_connection(forwarding):
    async def serve(reader, writer, _number):
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(NO_CONTENT)

    async with forwarding(serve) as (origin, connections):
        for _ in range(10):
            assert await send(origin, ForwardRequest("DELETE", ObjectRef("b", "k"), "/b/k")) == (204, b"")
        assert len(connections) == 1


async def test_a_first_piece_that_is_too_long_does_not_reach_the_server(forwarding):
    asked = []

    async def serve(reader, writer, _number):
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(EMPTY)
        await reader.read()

    async with forwarding(serve) as (origin, _):
        with pytest.raises(BodyMismatch, match="longer than announced"):
            await put(origin, pieces(b"xy"), 1)
        with pytest.raises(BodyMismatch, match="longer than announced"):
            await put(origin, pieces(b"x"), 0)
    assert asked == []
