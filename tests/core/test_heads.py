"""The compiled code for heads and the Python code beside it give equal results."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.api.s3.errors import HOST_ID
from shadeproxy.api.s3.exchange import fast_head
from shadeproxy.api.s3.response import http_date
from shadeproxy.api.s3.semantics import Answer, answer_read
from shadeproxy.core import heads
from shadeproxy.core.types import ObjectMeta, Source, Span
from shadeproxy.engine.base import NO_CONDITIONS
from shadeproxy.origin.http1 import BadAnswer, parse_head

pytestmark = pytest.mark.skipif(not heads.COMPILED, reason="nothing is compiled")

USUAL = (
    b'HTTP/1.1 200 OK\r\nContent-Length: 4096\r\nETag: "e"\r\nx-Amz-Meta-A: \t1\t2 \t\r\nX-Empty:\r\n'
    b"Connection: Keep-Alive\r\nDate:Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n"
)
OWN = {"request_id": "0123456789ABCDEF", "now_s": 1e9, "source": Source.ORIGIN, "keep": True}

lines = st.sampled_from([
    b"HTTP/1.1 200 OK", b"HTTP/1.0 206 Partial Content", b"HTTP/1.1 200", b"HTTP/1.1 404 x", b"HTTP/2 200 OK",
    b"HTTP/1.1 204 ", b"HTTP/1.1 2000", b"HTTP/1.1 200 \x00", b"HTTP/1.1 207 x", b"HTTP/1.2 200 OK", b"",
])  # fmt: skip
names = st.sampled_from([
    b"Content-Length", b"content-length", b"ETag", b"Date", b"x-amz-checksum-crc32", b"Connection", b"Server",
    b"Transfer-Encoding", b"Content-Range", b"x-amz-meta-a", b"Bad Name", b"", b"X-AMZ-ID-2",
])  # fmt: skip
values = st.sampled_from([
    b"4096", b" 7", b"\t0 ", b"-1", b"9" * 18, b"9" * 19, b'"e"', b"close", b"keep-alive, x", b"chunked",
    b"", b"\xe9", b"a\tb", b"a\x00b", b"a\nb", b"a\rb", b" x \t", b"a: b", b"\x7f",
])  # fmt: skip
texts = st.text(st.sampled_from("aB:;, \t\xe9\u20ac\x00\r\n\x01"), max_size=8) | st.just('"e"')
field_names = st.sampled_from([
    "Content-Type", "etag", "ETag", "Content-Length", "content-length", "Date", "X-Amz-Request-Id",
    "x-amz-id-2", "x-amz-checksum-crc32", "X-Amz-Checksum-SHA256", "Accept-Ranges", "Content-Range",
    "x-amz-meta-\xe9", "dates",
])  # fmt: skip
headers = st.lists(st.tuples(field_names, texts), max_size=6).map(tuple)


@st.composite
def heads_of_answers(draw):
    fields = draw(st.lists(st.tuples(names, values), max_size=6))
    ends = st.sampled_from([b"\r\n"] * 12 + [b"\n", b"\r", b""])
    text = draw(lines) + draw(ends)
    for name, value in fields:
        text += name + draw(st.sampled_from([b":", b": ", b" :"])) + value + draw(ends)
    return text + draw(ends) + draw(st.sampled_from([b"", b"body", b"\r\n\r\n"]))


def both(work):
    """Return the two results or errors of ``work``: compiled and interpreted."""
    results = []
    for compiled in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(heads, "COMPILED", compiled)
            try:
                results.append(work())
            except (BadAnswer, ValueError) as error:
                results.append((type(error), str(error)))
    return results


@given(heads_of_answers(), st.integers(0, 8), st.booleans())
def test_heads_of_answers(text, missing, in_bytes):
    data = text if in_bytes else bytearray(text + b"older bytes\r\n\r\n")
    one, other = both(lambda: parse_head(data, max(0, len(text) - missing)))
    assert one == other
    assert type(one) is type(other)


@given(st.integers(0, len(USUAL)), st.binary(min_size=1, max_size=3))
def test_usual_heads_with_other_bytes(place, other):
    text = USUAL[:place] + other + USUAL[place + len(other) :]
    assert len({repr(one) for one in both(lambda: parse_head(text, len(text)))}) == 1


def test_a_usual_head_is_read_without_python(monkeypatch):
    monkeypatch.setattr("shadeproxy.origin.http1._FIELD", None)
    whole, cut = parse_head(bytearray(USUAL + b"body"), len(USUAL) + 4), USUAL[:-1]
    assert whole is not None
    assert (whole.status, whole.length, whole.keep_alive, whole.size_bytes) == (200, 4096, True, len(USUAL))
    assert whole.headers[2] == ("x-Amz-Meta-A", "1\t2")
    assert parse_head(cut, len(cut)) is None
    with pytest.raises(AttributeError):
        parse_head(USUAL.replace(b"4096", b"many"), len(USUAL))


@given(st.sampled_from([200, 206, 299]), headers)
def test_heads_of_answers_to_clients(status, fields):
    one, other = both(lambda: fast_head(Answer(status, fields, Span(0, 1)), method="GET", **OWN))
    assert one == other


@given(headers, st.just('"e"') | st.just("") | texts, st.integers(0, 2**40), st.booleans())
def test_heads_of_whole_objects(fields, etag, size, checksums):
    meta = ObjectMeta(etag, size, fields)
    head = heads.render_whole(
        fields,
        etag,
        size,
        checksums,
        id2=HOST_ID,
        request_id="0123456789ABCDEF",
        date=http_date(10**9),
        source=Source.ORIGIN,
    )
    _, other = both(
        lambda: fast_head(
            answer_read(meta, method="GET", range_field=None, conditions=NO_CONDITIONS, checksums=checksums),
            method="GET",
            **OWN,
        )
    )
    assert head in {None, other}


def test_usual_heads_are_rendered_without_python(monkeypatch):
    monkeypatch.setattr("shadeproxy.api.s3.exchange.render_head", None)
    fields = (("Content-Type", "a/b"), ("Content-Length", "3"))
    assert fast_head(Answer(200, fields, Span(0, 3)), method="GET", **OWN).startswith(
        b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 3\r\nx-amz-id-2: "
    )
