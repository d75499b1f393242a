"""A relayed head is the same for the client, whether its bytes or its parsed fields were passed on."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadeproxy.api.s3 import relayed_head as module
from shadeproxy.api.s3.relayed_head import plain_head, relayed_head, unchanged_head
from shadeproxy.origin.http1 import BadAnswer, parse_head

OWN = (
    ("x-amz-id-2", "shadeproxy"),
    ("x-amz-request-id", "0123456789ABCDEF"),
    ("Date", "Thu, 01 Jan 2026 00:00:00 GMT"),
    ("x-shade-cache", "ram"),
)
FIELDS = (("Content-Type", "image/png"), ("ETag", '"e"'), ("Content-Length", "1000"), *OWN)
PART = ("Content-Range", "bytes 0-999/5000")


def written(fields, line=b"HTTP/1.1 200 OK"):
    lines = [line, *(f"{name}: {value}".encode("utf-8", "surrogateescape") for name, value in fields)]
    return b"\r\n".join((*lines, b"", b""))


def passed_on(data, body=b"body"):
    """Return the head whose bytes are passed on, with the node's name in it; None if the head is not plain.

    The head is read three times, because a pattern recognises it by the third time.
    """
    memory = memoryview(bytearray(data + body))
    found = [plain_head(memory, len(memory)) for _ in range(3)]
    assert found == found[:1] * 3
    return found[0] and (found[0], unchanged_head(memory, found[0], "node"))


def by_fields(data):
    head = parse_head(data, len(data))
    return head, relayed_head(
        head.status, head.headers, "node", request_id="of this node", now_s=0.0, keep=True
    )


@pytest.mark.parametrize(
    ("fields", "line"),
    [(FIELDS, b"HTTP/1.1 200 OK"), ((PART, *FIELDS), b"HTTP/1.1 206 Partial Content")],
)
def test_the_head_of_a_hit_is_passed_on_by_its_bytes(fields, line):
    data = written(fields, line)
    head, rendered = passed_on(data)
    parsed, expected = by_fields(data)
    assert rendered == expected
    assert (head.size_bytes, head.length) == (len(data), parsed.length)
    assert head.content_range == ("" if line.endswith(b"OK") else PART[1])


@pytest.mark.parametrize(
    "fields",
    [
        FIELDS[:-1],
        (FIELDS[-1], *FIELDS[:-1]),
        (*FIELDS, ("x-shade-cache", "ram")),
        (*FIELDS[:-1], ("x-shade-node", "other"), FIELDS[-1]),
        (("x-shade-refused", "ShuttingDown"), *FIELDS),
        (("Connection", "close"), *FIELDS),
        (("Keep-Alive", "timeout=5"), *FIELDS),
        (("Transfer-Encoding", "chunked"), *FIELDS),
        (("Content-Length", "1000"), *FIELDS),
        (("content-length", "999"), *FIELDS),
        tuple(field for field in FIELDS if field[0] != "Content-Length"),
        tuple(field for field in FIELDS if field[0] != "Date"),
        (PART, *FIELDS),
        (("x-amz-meta-a", "\x01"), *FIELDS),
        (("x-amz-meta-a", "\t"), *FIELDS),
        (("x-amz-meta-a", ""), *FIELDS),
        (("x-amz-meta-a", " b"), *FIELDS),
        (("x-amz-meta-a", "b "), *FIELDS),
        (("x-amz-meta-a", "\xe4"), *FIELDS),
        (("x-amz-meta a", "b"), *FIELDS),
        (("x-amz-meta-a", "b\r\n c"), *FIELDS),
        (("x-amz-meta-a", "b\rc"), *FIELDS),
    ],
)
def test_any_other_head_is_parsed(fields):
    assert passed_on(written(fields)) is None


@pytest.mark.parametrize(
    "line",
    [
        b"HTTP/1.0 200 OK",
        b"HTTP/1.1 200 Yes",
        b"HTTP/1.1 200",
        b"HTTP/1.1 204 No Content",
        b"HTTP/1.1 206 OK",
    ],
)
def test_a_head_of_another_status_line_is_parsed(line):
    assert passed_on(written(FIELDS, line)) is None


@pytest.mark.parametrize("length", ["", "1 0", "+10", "-1", "1e3", "1" * 19, "0x10"])
def test_a_length_that_is_no_number_is_not_passed_on(length):
    fields = [(name, length if name == "Content-Length" else value) for name, value in FIELDS]
    assert passed_on(written(fields)) is None


def test_a_head_whose_end_is_yet_to_come_is_not_plain():
    """A head is not plain before all of it has come. Behind its first bytes, the memory may still hold bytes
    of an earlier head.
    """
    data = written(FIELDS)
    memory = memoryview(bytearray(data))
    for filled in range(len(data)):
        assert plain_head(memory, filled) is None
    assert plain_head(memory, len(data)) is not None


KNOWN = (
    "Content-Length", "content-length", "Content-Range", "Connection", "Transfer-Encoding", "x-shade-cache",
    "x-shade-node", "x-shade-refused", "Date", "x-amz-id-2", "x-amz-request-id", "Trailer", "Upgrade",
)  # fmt: skip
NAMES = st.sampled_from(KNOWN) | st.text(
    string.ascii_letters + string.digits + "!#$%&'*+.^_`|~- :", min_size=1, max_size=8
)
VALUES = st.sampled_from(["1000", "ram", "close", "bytes 0-999/5000", "b  c ", "a: b"]) | st.text(
    st.characters(max_codepoint=300), max_size=8
)


@settings(max_examples=300, deadline=None)
@given(more=st.lists(st.tuples(NAMES, VALUES), max_size=3), at=st.integers(0, len(FIELDS)), data=st.data())
def test_both_ways_give_the_same_head(more, at, data):
    kept = [field for field in FIELDS if data.draw(st.integers(0, 19)) or field[0] == "ETag"]
    raw = written((*kept[:at], *more, *kept[at:]))
    found = passed_on(raw)
    if found is None:
        return
    try:
        head, expected = by_fields(raw)
    except BadAnswer:
        pytest.fail(f"a head that is refused was passed on: {raw!r}")
    assert (head.size_bytes, head.length, head.keep_alive, head.flawed) == (
        found[0].size_bytes,
        found[0].length,
        True,
        False,
    )
    assert found[1] == expected


LINES = {b"HTTP/1.1 200 OK": FIELDS, b"HTTP/1.1 206 Partial Content": (PART, *FIELDS)}


@settings(max_examples=300, deadline=None)
@given(
    line=st.sampled_from(sorted(LINES)),
    at=st.integers(0, 250),
    cut=st.integers(0, 3),
    more=st.sampled_from([b"", b" ", b"\r\n", b"\r\n\r\n", b": ", b"\t", b"\x80", b"9", b"a"]),
)
def test_a_pattern_recognises_what_is_plain_without_it(line, at, cut, more):
    known = written(LINES[line], line)
    passed_on(known)
    assert all(memo.pattern for memo in module._KNOWN if memo.is_part == (b"206" in line))
    damaged = known[:at] + more + known[at + cut :]
    memory = memoryview(bytearray(damaged + b"body"))
    with_pattern = plain_head(memory, len(memory))
    for memo in module._KNOWN:
        memo.pattern = None
    assert with_pattern == plain_head(memory, len(memory))


def test_heads_that_take_turns_are_recognised_without_a_pattern():
    for memo in module._KNOWN:
        memo.__init__(is_part=memo.is_part)
    for fields in (FIELDS, (("x-amz-meta-a", "b"), *FIELDS)) * 2:
        memory = memoryview(bytearray(written(fields)))
        assert plain_head(memory, len(memory)) is not None
    assert module._KNOWN[False].pattern is None
