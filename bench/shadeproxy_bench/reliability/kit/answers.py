"""Reads answers strictly: every byte that a connection returns must be part of an HTTP/1.1 answer.

An answer must also agree with itself. It has one framing and the proxy's own fields. If its ETag is an MD5,
its body has this MD5. Its Content-Range is as long as its body, and an error document is XML.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree.ElementTree import ParseError

from defusedxml.ElementTree import fromstring

_STATUS = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [ -~]+")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ?([^\r\n\0]*)")
_MD5 = re.compile(rb'"([0-9a-f]{32})"')
_SPAN = re.compile(rb"bytes (\d+)-(\d+)/(\d+)")
_LENGTH = re.compile(
    rb"HTTP/1.1 (?!204|304)[2-5].*\r\ncontent-length: *(\d{1,18})(?:\r\n|$)", re.IGNORECASE | re.DOTALL
)
_CHUNK = re.compile(rb"([0-9a-f]+)\r\n")


class Unreadable(Exception):
    """Bytes of the server are no HTTP, or an answer contradicts itself."""


@dataclass(frozen=True)
class Answer:
    """An answer. ``whole``: True if the body is complete. ``body``: None if no body was sent, as for a
    HEAD.
    """

    status: int
    fields: dict[bytes, bytes]
    body: bytes | None
    whole: bool

    @property
    def last(self) -> bool:
        return self.fields.get(b"connection") == b"close"


def read_answers(data: bytes, *, may_be_head: bool) -> Iterator[Answer]:
    """Yield the final answers in ``data``, and skip the interim answers. The last answer may be incomplete.
    Raises Unreadable.

    ``may_be_head``: True if an answer without a body may be the answer to a HEAD.
    """
    while data:
        head, mark, rest = data.partition(b"\r\n\r\n")
        if not mark:
            if not data.startswith(b"HTTP/1.1 "[: len(data)]):
                raise Unreadable(f"no answer begins with {data[:80]!r}")
            yield Answer(0, {}, None, whole=False)
            return
        status, fields = _head(head)
        if status < 200:
            data = rest
            continue
        bodiless = status in {204, 304} or (may_be_head and (not rest or rest.startswith(b"HTTP/1.1 ")))
        if bodiless:
            answer, data = Answer(status, fields, None, whole=True), rest
        else:
            answer, data = _with_body(status, fields, rest)
        if answer.whole:
            _check(answer)
        yield answer


def next_answer(data: bytes, method: bytes) -> tuple[Answer, bytes]:
    """Return the final answer at the beginning of ``data``, to a request with ``method``, and the bytes
    behind it. Skip interim answers. Raises Unreadable.

    The status is 0 if the head of the answer is not complete.
    """
    while True:
        head, mark, rest = data.partition(b"\r\n\r\n")
        if not mark:
            if not data.startswith(b"HTTP/1.1 "[: len(data)]):
                raise Unreadable(f"no answer begins with {data[:80]!r}")
            return Answer(0, {}, None, whole=False), b""
        status, fields = _head(head)
        if status >= 200:
            break
        data = rest
    if method == b"HEAD" or status in {204, 304}:
        answer = Answer(status, fields, None, whole=True)
    else:
        answer, rest = _with_body(status, fields, rest)
    if answer.whole:
        _check(answer)
    return answer, rest


def is_whole(data: bytes, method: bytes) -> bool:
    """Return whether ``data`` begins with a whole answer, or with something else than an answer. An answer
    that ends with its connection is never whole.
    """
    try:
        head, mark, rest = data.partition(b"\r\n\r\n")
        length = _LENGTH.match(head)
        if mark and method != b"HEAD" and length is not None and len(rest) < int(length[1]):
            return False  # A shortcut, for long answers that arrive in many pieces.
        answer, _ = next_answer(data, method)
    except Unreadable:
        return True
    framed = b"content-length" in answer.fields or b"transfer-encoding" in answer.fields
    return answer.whole and (framed or answer.body is None)


def _head(head: bytes) -> tuple[int, dict[bytes, bytes]]:
    first, *lines = head.split(b"\r\n")
    matched = _STATUS.fullmatch(first)
    if matched is None:
        raise Unreadable(f"no status line: {first[:80]!r}")
    fields: dict[bytes, bytes] = {}
    for line in lines:
        found = _FIELD.fullmatch(line)
        if found is None:
            raise Unreadable(f"no field: {line[:80]!r}")
        name = found[1].lower()
        if name in fields and name in {b"content-length", b"transfer-encoding", b"etag"}:
            raise Unreadable(f"{name!r} twice")
        fields[name] = found[2]
    return int(matched[1]), fields


def _with_body(status: int, fields: dict[bytes, bytes], rest: bytes) -> tuple[Answer, bytes]:
    length = fields.get(b"content-length")
    if fields.get(b"transfer-encoding") == b"chunked":
        if length is not None:
            raise Unreadable("Content-Length beside Transfer-Encoding")
        return _chunked(status, fields, rest)
    if length is None:
        if fields.get(b"connection") != b"close":
            raise Unreadable(f"no client can tell where the body of a {status} ends")
        return Answer(status, fields, rest, whole=True), b""
    size = int(length)
    return Answer(status, fields, rest[:size], whole=len(rest) >= size), rest[size:]


def _chunked(status: int, fields: dict[bytes, bytes], rest: bytes) -> tuple[Answer, bytes]:
    pieces: list[bytes] = []
    at = 0
    while (found := _CHUNK.match(rest, at)) is not None:
        size = int(found[1], 16)
        piece = rest[found.end() : found.end() + size]
        at = found.end() + size
        pieces.append(piece)
        if len(piece) < size or len(rest) < at + 2:
            return Answer(status, fields, b"".join(pieces), whole=False), b""
        if not rest.startswith(b"\r\n", at):
            raise Unreadable(f"a chunk is longer than it says: {rest[at : at + 40]!r}")
        at += 2
        if size == 0:
            return Answer(status, fields, b"".join(pieces), whole=True), rest[at:]
    if len(rest) - at > 18:
        raise Unreadable(f"no chunk begins with {rest[at : at + 40]!r}")
    return Answer(status, fields, b"".join(pieces), whole=False), b""


def _check(answer: Answer) -> None:
    fields, body = answer.fields, answer.body
    for name in (b"x-amz-request-id", b"x-shade-cache", b"date"):
        if name not in fields:
            raise Unreadable(f"a {answer.status} without {name.decode()}")
    if body is None:
        return
    if answer.status >= 400:
        _check_error(answer)
    elif answer.status == 200 and body and (tag := _MD5.fullmatch(fields.get(b"etag", b""))) is not None:
        if hashlib.md5(body).hexdigest().encode() != tag[1]:
            raise Unreadable(f"the body is not that of its ETag {tag[1]!r}")
    elif answer.status == 206:
        span = _SPAN.fullmatch(fields.get(b"content-range", b""))
        if span is None or int(span[2]) - int(span[1]) + 1 != len(body) or int(span[2]) >= int(span[3]):
            raise Unreadable(f"Content-Range {fields.get(b'content-range')!r} of {len(body)} bytes")


def _check_error(answer: Answer) -> None:
    try:
        root = fromstring(answer.body or b"")
    except ParseError as error:
        raise Unreadable(f"the error document of a {answer.status} is no XML: {error}") from None
    if root.tag.rpartition("}")[2] != "Error" or not root.findtext("Code"):
        raise Unreadable(f"the error document of a {answer.status} names no code")
