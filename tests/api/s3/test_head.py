"""Heads that are read, and heads that are refused because parsers could disagree on them."""

import pytest

from shadeproxy.api.s3.head import MAX_FIELD_BYTES, MAX_LINE_BYTES, MOST_FIELDS, HeadReader, may_begin
from shadeproxy.core.errors import InvalidRequest


def head(*fields, line=b"PUT /b/k HTTP/1.1", host=(b"Host: h",)):
    return b"\r\n".join([line, *host, *fields, b"", b""])


def read(*fields, **parts):
    return HeadReader().read(head(*fields, **parts))


CHUNKED = b"Transfer-Encoding: chunked"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ((CHUNKED, b"Content-Length: 5"), "has both Content-Length and Transfer-Encoding"),
        ((CHUNKED, CHUNKED), "Transfer-Encoding comes twice"),
        ((b"Transfer-Encoding: gzip, chunked",), "may only be chunked"),
        ((b"Transfer-Encoding: chunked, identity",), "may only be chunked"),
        ((b"Transfer-Encoding:",), "may only be chunked"),
        ((b"Transfer-Encoding: chun\xe2\x84\xaaed",), "may only be chunked"),
        ((b"Content-Length: 5", b"content-length: 5"), "content-length comes twice"),
        ((b"Content-Length: +5",), "Content-Length is not a number"),
        ((b"Content-Length: -5",), "Content-Length is not a number"),
        ((b"Content-Length: 5, 5",), "Content-Length is not a number"),
        ((b"Content-Length: 0x5",), "Content-Length is not a number"),
        ((b"Content-Length: 5_0",), "Content-Length is not a number"),
        ((b"Content-Length: \xd9\xa5",), "Content-Length is not a number"),
        ((b"Content-Length: ",), "Content-Length is not a number"),
        ((b"Content-Length: 1234567890123456789",), "Content-Length is not a number"),
        ((b"Content-Length : 5",), "a name that HTTP does not allow"),
        ((b" Content-Length: 5",), "a name that HTTP does not allow"),
        ((b"X: a", b" folded"), "a name that HTTP does not allow"),
        ((b"X: a", b"\tfolded: b"), "a name that HTTP does not allow"),
        ((b": a",), "a name that HTTP does not allow"),
        ((b"X\xc3\xa9: a",), "a name that HTTP does not allow"),
        ((b"X(a): a",), "a name that HTTP does not allow"),
        ((b"Xa",), "no colon"),
        ((b"Content-Length: 5\n",), "control character"),
        ((b"X: a\nTransfer-Encoding: chunked",), "control character"),
        ((b"X: a\rb",), "control character"),
        ((b"X: a\0b",), "control character"),
        ((b"X: a\x0bb",), "control character"),
        ((b"X: \xc3\xa9\x7f",), "control character"),
        ((b"Host: h",), "Host comes twice"),
        ((b"Expect: 100-continue", b"Expect: 100-continue"), "Expect comes twice"),
        ((b"X: " + b"x" * MAX_FIELD_BYTES,), f"longer than {MAX_FIELD_BYTES} bytes"),
        (tuple(b"X%d:" % n for n in range(MOST_FIELDS)), f"more than {MOST_FIELDS} header fields"),
        (tuple(b"X%d: %b" % (n, b"x" * 9000) for n in range(8)), "longer than 65536 bytes"),
    ],
)
def test_a_head_that_parsers_could_read_differently_is_refused(fields, text):
    with pytest.raises(InvalidRequest, match=text):
        read(*fields)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"GET /b/k", "not HTTP/1.1"),
        (b"GET", "request line"),
        (b"", "request line"),
        (b" GET /b/k HTTP/1.1", "request line"),
        (b"GET  /b/k HTTP/1.1", "request line"),
        (b"GET /b/k  HTTP/1.1", "not HTTP/1.1"),
        (b"GET /b/k HTTP/1.1 ", "not HTTP/1.1"),
        (b"GET /b k HTTP/1.1", "not HTTP/1.1"),
        (b"GET\t/b/k HTTP/1.1", "request line"),
        (b"GET /b\tk HTTP/1.1", "request line"),
        (b"GET /b\0k HTTP/1.1", "request line"),
        (b"GET /b/k HTTP/1.1\nX: a", "not HTTP/1.1"),
        (b"G\xc3\x89T /b/k HTTP/1.1", "request line"),
        (b"GET /b/k HTTP/1.2", "not HTTP/1.1"),
        (b"GET /b/k HTTP/0.9", "not HTTP/1.1"),
        (b"GET /b/k http/1.1", "not HTTP/1.1"),
        (b"PRI * HTTP/2.0", "not HTTP/1.1"),
        (b"GET /" + b"x" * MAX_LINE_BYTES + b" HTTP/1.1", f"longer than {MAX_LINE_BYTES} bytes"),
    ],
)
def test_a_request_line_that_is_not_http_1_is_refused(line, text):
    with pytest.raises(InvalidRequest, match=text):
        read(line=line)


def test_only_http_1_1_needs_a_host():
    with pytest.raises(InvalidRequest, match="no Host field"):
        read(host=())
    assert read(host=(), line=b"GET /b/k HTTP/1.0").fields == ()


@pytest.mark.parametrize(
    ("version", "fields", "keeps"),
    [
        (b"1.1", (), True),
        (b"1.1", (b"Connection: close",), False),
        (b"1.1", (b"Connection: Keep-Alive",), True),
        (b"1.1", (b"Connection: upgrade, CLOSE",), False),
        (b"1.1", (b"Connection: x", b"connection:\tclose\t"), False),
        (b"1.1", (b"Connection: closed",), True),
        (b"1.0", (), False),
        (b"1.0", (b"Connection: keep-alive",), True),
        (b"1.0", (b"Connection: keep-alive, close",), False),
    ],
)
def test_the_connection_continues_unless_the_client_ends_it(version, fields, keeps):
    assert read(*fields, line=b"GET /b/k HTTP/" + version).keep_alive is keeps


@pytest.mark.parametrize(
    ("fields", "body_bytes", "awaits_go"),
    [
        ((), 0, False),
        ((b"Content-Length:5",), 5, False),
        ((b"Content-Length: \t 005 \t",), 5, False),
        ((b"Transfer-Encoding: Chunked",), None, False),
        ((b"Content-Length: 5", b"Expect: 100-Continue"), 5, True),
        ((b"Content-Length: 5", b"Expect: 200-ok"), 5, False),
    ],
)
def test_the_end_of_the_body_is_known(fields, body_bytes, awaits_go):
    found = read(*fields)
    assert (found.body_bytes, found.awaits_go) == (body_bytes, awaits_go)


def test_http_1_0_knows_no_chunks_and_no_interim_answer():
    old = b"PUT /b/k HTTP/1.0"
    with pytest.raises(InvalidRequest, match=r"only in HTTP/1\.1"):
        read(CHUNKED, line=old)
    assert read(b"Content-Length: 5", b"Expect: 100-continue", line=old).awaits_go is False


def test_names_and_values_are_as_sent_without_white_space_around_values():
    found = read(b"X-Amz-Meta-A:\t b\tc  ", b"x-empty:", b"X: \xc3\xa9", b"Y: \xff", b"Z: a:b")
    assert found.fields[1:] == (
        ("X-Amz-Meta-A", "b\tc"), ("x-empty", ""), ("X", "é"), ("Y", "\udcff"), ("Z", "a:b"),
    )  # fmt: skip


def test_one_empty_line_may_come_before_a_request():
    assert HeadReader().read(b"\r\n" + head()).method == "PUT"
    with pytest.raises(InvalidRequest):
        HeadReader().read(b"\r\n\r\n")


@pytest.mark.parametrize(
    "raw", [head(), b"\r\n" + head(), head(line=b"OPTIONS * HTTP/1.0"), head(line=b"x! \xff")]
)
def test_each_beginning_of_a_request_may_begin_one(raw):
    assert all(may_begin(raw[:end]) for end in range(raw.index(b"\r\n", 2) + 2))


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01",
        b"SSH-2.0-x\r\n",
        b"\n",
        b" ",
        b"\r\r",
        b"GET /\n",
        b"GET\t",
        b"G\x00",
        b"\xff",
        b"\r\n\r\n",
    ],
)
def test_bytes_of_another_protocol_begin_no_request(data):
    assert not may_begin(data)
