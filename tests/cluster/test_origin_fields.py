"""Header fields of an origin that no cached answer repeats, and that seem to be the proxy's own."""

from contextlib import aclosing, asynccontextmanager

import pytest

from shadeproxy.core.types import SHARED
from shadeproxy.origin.credentials import AnonymousCredentials
from shadeproxy.origin.s3 import S3Origin
from tests.support.answering import answering
from tests.support.relaying import cluster

HIDDEN = (
    "x-shade-cache: disk", "x-shade-node: evil", "x-shade-refused: Misdirected", "X-Shade-Other: a",
    "Keep-Alive: timeout=1", "Proxy-Authenticate: Basic", "Trailer: x", "Upgrade: h2c",
)  # fmt: skip
OF_ONE_ANSWER = (
    "Set-Cookie: a=b", "Refresh: 0; url=http://evil.example", "Location: http://evil.example/",
    "WWW-Authenticate: Basic", "x-amz-meta-named: a",
)  # fmt: skip
KEPT = ("x-amz-meta-a: b", "Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT", 'ETag: "e"')
REPEATED = {b"x-amz-meta-a": b"b", b"etag": b'"e"', b"content-length": b"10"}


def written(connection):
    fields = (*HIDDEN, *OF_ONE_ANSWER, *KEPT, "Content-Length: 10", *connection)
    return "HTTP/1.1 200 OK\r\n" + "".join(f"{field}\r\n" for field in fields) + "\r\nsome bytes"


def names(fields):
    return {field.partition(":")[0].lower().encode() for field in fields}


@asynccontextmanager
async def running(directory, answers, **options):
    async with (
        answering(*answers) as (url, _),
        aclosing(S3Origin(url, credentials={SHARED: AnonymousCredentials()})) as origin,
        cluster(directory, "a", "b", origin=origin, **options) as nodes,
    ):
        yield nodes


CONNECTION = ("Connection: keep-alive, x-amz-meta-named",)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
async def test_a_cached_answer_has_only_fields_of_the_object(tmp_path, fast, compiled):
    async with running(tmp_path, [written(CONNECTION)] * 4, fast=fast, compiled=compiled) as (_, b):
        for source in (b"origin", b"ram", b"ram", b"ram"):
            answer = await b.ask("/b/b-key")
            await b.engine._filling.flights.drain()
            assert answer.body == b"some bytes"
            assert answer.field(b"x-shade-cache") == source
            got = dict(answer.fields)
            assert got.items() >= REPEATED.items()
            assert got.keys().isdisjoint(names((*HIDDEN, *OF_ONE_ANSWER)) - {b"x-shade-cache"})
        answer = await b.ask("/b/b-key", method="HEAD")
        assert dict(answer.fields).keys().isdisjoint(names((*HIDDEN, *OF_ONE_ANSWER)) - {b"x-shade-cache"})


async def test_a_forwarded_answer_has_no_field_that_seems_to_be_the_proxys(tmp_path):
    async with running(tmp_path, [written(CONNECTION)] * 2) as (_, b):
        answer = await b.ask("/b/b-key?response-content-type=text/plain")
    got = dict(answer.fields)
    assert (answer.body, got[b"x-shade-cache"]) == (b"some bytes", b"bypass")
    assert got.keys().isdisjoint(names(HIDDEN) - {b"x-shade-cache"} | {b"x-amz-meta-named"})


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("path", ["/b/b-key", "/b/b-key?response-content-type=text/plain"])
async def test_a_field_of_the_origin_is_no_refusal_of_the_owner(tmp_path, fast, path):
    async with running(tmp_path, [written(())] * 8, fast=fast) as (a, b):
        for _ in range(3):
            answer = await a.ask(path)
            await b.engine._filling.flights.drain()
            assert answer.body == b"some bytes"
            assert answer.field(b"x-shade-refused") == b""
            nodes = [value for name, value in answer.fields if name == b"x-shade-node"]
            assert nodes == ([] if "?" in path else [b"b"])
        assert a.results().get("refused", 0) == a.results().get("misdirected", 0) == 0
        assert a.results().get("ok", 0) == (0 if "?" in path else 3)
