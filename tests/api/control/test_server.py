"""Answers to bytes that are no control call: bytes that are not HTTP, and requests that aiohttp refuses."""

import asyncio
import json

import pytest

from shadeproxy.api.control.app import make_control_app
from shadeproxy.api.control.server import ControlRunner
from shadeproxy.app.listening import listen_control
from shadeproxy.config.fields import Address


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
