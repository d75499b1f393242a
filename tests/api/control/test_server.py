"""Answers to bytes that are no control call: bytes that are not HTTP, and requests that aiohttp refuses."""

import asyncio
import json
from contextlib import suppress

import numpy as np
import pytest

from shadeproxy.api.control.app import make_control_app
from shadeproxy.api.control.server import ControlRunner
from shadeproxy.api.s3.connection_limit import ConnectionLimiter
from shadeproxy.app.listening import listen_control
from shadeproxy.config.fields import Address
from shadeproxy.core.clock import SystemClock
from shadeproxy.hints.frozen import Frozen


@pytest.fixture
async def port(context):
    runner = ControlRunner(make_control_app(context), shutdown_timeout=1.0)
    try:
        yield int(
            (await listen_control("control.listen", runner, Address("127.0.0.1", 0))).rpartition(":")[2]
        )
    finally:
        await runner.cleanup()


@pytest.fixture
def send(port):
    """Return ``send(data)``, which sends bytes on a new connection, and reads one answer.

    The function returns the status line, the header fields and the body.
    """

    async def send(data):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(data)
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
            fields = dict(line.split(": ", 1) for line in head[1:] if line)
            body = await reader.readexactly(int(fields["content-length"]))
            return head[0], fields, body
        finally:
            writer.close()

    return send


LONG = b"x" * 20_000


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"BAD\r\n\r\n", "Invalid method encountered"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "Received HTTPS traffic on an HTTP port"),
        (LONG, "Invalid method encountered"),
        (b"GET /" + LONG + b" HTTP/1.1\r\n\r\n", "Got more than 8190 bytes when reading"),
        (b"GET / HTTP/1.1\r\nA: " + LONG + b"\r\n\r\n", "Got more than 8190 bytes when reading"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", "Too many headers received"),
        (b"GET / HTTP/1.1\r\nBad Name: 1\r\n\r\n", "Invalid header token"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", "Invalid character in Content-Length"),
        (b"GET http://[x/ HTTP/1.1\r\nHost: a\r\n\r\n", ""),
        (b"GET / HTTP/1.1\r\nH\xff\xfe: \xff\r\n\r\n", "Invalid header token"),
    ],
)
async def test_bytes_that_are_no_http_are_answered_in_the_one_form_of_error(send, data, reason):
    status, fields, body = await send(data)
    assert status == "http/1.0 400 bad request"
    assert fields["content-type"] == "application/json"
    error = json.loads(body)["error"]
    assert error["code"] == "invalid_request"
    assert error["message"].startswith(f"the request is not valid HTTP/1.1: {reason}")
    assert len(error["message"]) < 250
    assert "\n" not in error["message"]
    assert error["hint"] == (
        "send HTTP/1.1 to http://, not https://; lines have up to 8190 bytes, heads up to 128 fields"
    )


async def test_such_a_connection_ends_and_others_go_on(port, send):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"BAD\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    told = await reader.read()
    writer.close()
    assert told.count(b"HTTP/1.0 400") == 1
    assert b"200 OK" not in told
    status, _, body = await send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (status, json.loads(body)) == ("http/1.1 200 ok", {"status": "ok"})


@pytest.mark.parametrize("path", [b"/healthz", b"/v1/nothing"])
async def test_an_expectation_that_nobody_knows_is_refused_in_the_same_form(send, path):
    status, fields, body = await send(
        b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nExpect: nonsense\r\n\r\n"
    )
    assert (status, fields["content-type"]) == ("http/1.1 417 expectation failed", "application/json")
    assert json.loads(body)["error"]["code"] == "expectation_failed"


@pytest.fixture
async def watching(context, request):
    """Return the port of a listener that checks its connections often, and the runner of the listener."""
    seconds = getattr(request, "param", 0.2)
    runner = ControlRunner(make_control_app(context), shutdown_timeout=1.0, keepalive_s=seconds)
    try:
        at = await listen_control("control.listen", runner, Address("127.0.0.1", 0))
        yield int(at.rpartition(":")[2]), runner
    finally:
        await runner.cleanup()


HEAD = (
    b"PUT /v1/jobs/late HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: 2\r\n"
)


@pytest.mark.parametrize(
    "sent", [b"", HEAD, HEAD + b"\r\n{"], ids=["nothing", "part of a head", "part of a body"]
)
async def test_a_client_that_sends_no_more_is_cut_off(watching, sent):
    port, _ = watching
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    with suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_a_client_that_takes_nothing_of_its_answer_is_cut_off(watching, context, job):
    port, _ = watching
    context.hints.frozen.merge("resnet", 3, Frozen(np.zeros(1 << 22, np.float32), None))
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(
        f"POST {job}/epochs/3/scores HTTP/1.1\r\nHost: localhost\r\n".encode()
        + b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    )
    await asyncio.sleep(1.0)
    with pytest.raises(ConnectionResetError):
        while await reader.read(1 << 20):
            pass
    writer.close()


async def test_a_client_that_waits_between_calls_keeps_its_connection(watching):
    port, _ = watching
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(2):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(15)
        await asyncio.sleep(0.7)
    writer.close()


@pytest.mark.parametrize("watching", [30], indirect=True)  # A busy machine takes its time for 40 connections.
async def test_connections_beyond_those_of_probes_count_as_those_of_clients(watching):
    port, runner = watching
    runner.limiter = ConnectionLimiter(6, clock=SystemClock())
    kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
    await asyncio.sleep(0.1)
    assert runner.limiter.inside == 3
    assert [reader.at_eof() or reader.exception() is not None for reader, _ in kept].count(True) == 5
    for _, writer in kept:
        writer.close()
        with suppress(ConnectionResetError):
            await writer.wait_closed()
    await asyncio.sleep(0.1)
    assert runner.limiter.inside == 0
