"""The listener finds the end of a request's body, whatever the pieces in which the bytes arrive."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.api.s3.body_end import ChunksEnd, end_of_body

NEXT = b"GET / HTTP/1.1\r\n\r\n"


def head(*fields: bytes) -> bytes:
    return b"\r\n".join([b"PUT /b/k HTTP/1.1", *fields, b"", b""])


def taken(end, data: bytes, step: int) -> int:
    """Return how many bytes of ``data`` belong to the body, if they arrive ``step`` bytes at a time."""
    count = 0
    for start in range(0, len(data), step):
        piece = data[start : start + step]
        mine = 0 if end.is_over else end.take(piece)
        count += mine
        if mine < len(piece):
            break
    return count


CHUNKED = b"Transfer-Encoding: chunked"
BODIES = [
    (head(b"Content-Length: 5"), b"12345"),
    (head(b"Content-Length: 0"), b""),
    (head(), b""),
    (head(CHUNKED), b"5\r\n12345\r\n0\r\n\r\n"),
    (head(CHUNKED), b"A;name=x\r\n0\r\n\r\n56789\r\n0\r\nx-a: b\r\nx-c: d\r\n\r\n"),
    (head(b"transfer-encoding:CHUNKED"), b"0\r\n\r\n"),
    # aiohttp accepts these two bodies, so the code under test must find their ends too.
    (head(CHUNKED), b"00000000000000000005\r\n12345\r\n0000000000000000000\r\n\r\n"),
    (head(CHUNKED), b'5;a="\xe9"\r\n12345\r\n0\r\n\r\n'),
]


@pytest.mark.parametrize(("raw", "body"), BODIES)
@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_the_end_is_found_before_the_next_request(raw, body, step):
    end = end_of_body(raw)
    assert taken(end, body + NEXT, step) == len(body)
    assert end.is_over


@given(chunks=st.lists(st.binary(min_size=1, max_size=300), max_size=5), step=st.integers(1, 400))
def test_chunks_of_any_content_end_with_the_last_one(chunks, step):
    body = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in chunks) + b"0\r\n\r\n"
    end = ChunksEnd()
    assert taken(end, body + NEXT, step) == len(body)


@pytest.mark.parametrize("body", [b"zz\r\n", b"\r\n", b"-5\r\n12345\r\n", b"5\n12345\r\n", b"1" * 20_000])
def test_a_body_with_broken_framing_has_no_end(body):
    end = ChunksEnd()
    assert taken(end, body + NEXT, 1000) == len(body + NEXT)
    assert not end.is_over


@pytest.mark.parametrize(
    "fields",
    [(CHUNKED, b"Content-Length: 5"), (CHUNKED, CHUNKED), (b"Transfer-Encoding: gzip, chunked",),
     (b"Content-Length: 5", b"Content-Length: 5"), (b"Upgrade: h2c",)],
)  # fmt: skip
def test_the_end_that_a_strange_head_announces_is_not_searched(fields):
    assert end_of_body(head(*fields)) is None
