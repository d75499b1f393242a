"""Heads and chunked bodies. Valid ones are parsed, and all ambiguous ones are refused."""

import pytest

from shadeproxy.origin.http1 import BadAnswer, ChunkedBody, Head
from shadeproxy.origin.http1 import parse_head as parse_received


def head(*fields: str, line: str = "HTTP/1.1 200 OK") -> bytes:
    return "\r\n".join([line, *fields, "", ""]).encode("latin-1")


def parse_head(raw: bytes) -> Head:
    parsed = parse_received(raw + b"body", len(raw))
    assert parsed is not None
    assert parsed.size_bytes == len(raw)
    return parsed


def test_fields_come_as_they_were_sent():
    parsed = parse_head(
        head('ETag:  "e" ', "x-Amz-Meta-A:\t1\t2", "X-Empty:", "etag: again", "Content-Length: 5")
    )
    assert parsed.status == 200
    assert parsed.headers == (
        ("ETag", '"e"'),
        ("x-Amz-Meta-A", "1\t2"),
        ("X-Empty", ""),
        ("etag", "again"),
        ("Content-Length", "5"),
    )
    assert (parsed.length, parsed.length_given, parsed.chunked, parsed.keep_alive) == (5, True, False, True)


def test_octets_that_are_no_utf8_survive():
    ((_, value),) = parse_head(head("x-amz-meta-a: \xe9\xff")).headers
    assert value.encode("utf-8", "surrogateescape") == b"\xe9\xff"


@pytest.mark.parametrize(
    ("fields", "framing"),
    [
        (["Content-Length: 0"], (0, False, True)),
        (["Transfer-Encoding: Chunked"], (None, True, True)),
        ([], (None, False, False)),
        (["Content-Length: 3", "Connection: Close"], (3, False, False)),
        (["Content-Length: 3", "Connection: x, close"], (3, False, False)),
        (["Content-Length: 3", "Connection: keep-alive"], (3, False, True)),
    ],
)
def test_framing(fields, framing):
    parsed = parse_head(head(*fields))
    assert (parsed.length, parsed.chunked, parsed.keep_alive) == framing


@pytest.mark.parametrize(("status", "length"), [(204, 0), (304, 0), (100, 0), (404, None)])
def test_some_answers_have_no_body(status, length):
    assert parse_head(head(line=f"HTTP/1.1 {status} X")).length == length


def test_an_old_server_keeps_the_connection_only_when_it_says_so():
    line = "HTTP/1.0 200 OK"
    assert not parse_head(head("Content-Length: 1", line=line)).keep_alive
    assert parse_head(head("Content-Length: 1", "Connection: keep-alive", line=line)).keep_alive


@pytest.mark.parametrize(
    "raw",
    [
        head(line="garbage"),
        head(line="HTTP/2 200 OK"),
        head(line="HTTP/1.1 20 OK"),
        head(line="HTTP/1.1 2000 OK"),
        head(line="HTTP/1.1 600 OK"),
        b"HTTP/1.1 200 OK\nA: b\r\n\r\n",
        head("no colon"),
        head(": no name"),
        head("a b: c"),
        head("name : value"),
        head("a: b", " folded: c"),
        head("a: b\nc: d"),
        head("a: b\rc"),
        head("a: b\x00c"),
        head("Content-Length: 1", "Content-Length: 1"),
        head("Content-Length: +1"),
        head("Content-Length: 1, 1"),
        head("Content-Length: -1"),
        head("Content-Length: "),
        head("Content-Length: " + "9" * 19),
        head("Content-Length: \xb2"),
        head("Content-Length: 1", "Transfer-Encoding: chunked"),
        head("Transfer-Encoding: gzip, chunked"),
        head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        head("Transfer-Encoding: identity"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(raw):
    with pytest.raises(BadAnswer):
        parse_head(raw)


CODED = b"3\r\nabc\r\n00A;ext=1\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"


@pytest.mark.parametrize("size", [1, 2, 7, len(CODED)])
def test_chunks_are_put_together_however_they_are_cut(size):
    body = ChunkedBody()
    content = b"".join(body.feed(CODED[at : at + size]) for at in range(0, len(CODED), size))
    assert (content, body.ended, body.surplus) == (b"abc0123456789", True, False)


def test_octets_after_the_last_chunk_are_noticed():
    body = ChunkedBody()
    body.feed(CODED + b"HTTP/1.1 200 OK")
    assert body.surplus


@pytest.mark.parametrize(
    "coded",
    [b"\r\n", b"x\r\n", b"-1\r\n", b"1 1\r\n", b"1\r\nab\r\n", b"1" * 16 + b"\r\n", b"1;" + b"x" * 5000,
     b"0\r\n" + b"A: b\r\n" * 5000],
)  # fmt: skip
def test_a_coding_that_is_none_is_refused(coded):
    body = ChunkedBody()
    with pytest.raises(BadAnswer):
        body.feed(coded)
