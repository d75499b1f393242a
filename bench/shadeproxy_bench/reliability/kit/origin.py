"""S3 origins that keep a whole request in memory, for the long runs: their connections, answers and
documents.

A run subclasses ``OriginConnection`` and defines its objects. Origins whose bodies are too big for memory use
exchanges.py.
"""

import asyncio
from typing import cast

_XML = '<?xml version="1.0" encoding="UTF-8"?>'
_DATE = "Thu, 01 Jan 2026 00:00:00 GMT"
Fields = dict[str, str]
"""Header fields by name. In a request the names are lower-case."""
Parts = list[bytes | memoryview]
"""Head and body of an answer. An answer without a body has only the head."""


class OriginConnection(asyncio.Protocol):
    """One connection. Each request is answered ``latency_s`` after it has arrived."""

    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s
        self._received = bytearray()
        self._needed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= self._needed and (end := self._received.find(b"\r\n\r\n")) >= 0:
            first, *lines = self._received[:end].decode("latin-1").split("\r\n")
            fields = fields_of(lines)
            self._needed = end + 4 + int(fields.get("content-length", "0"))
            if len(self._received) < self._needed:
                if not self.expects(fields):
                    return
                if fields.get("expect"):
                    self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                return
            body = bytes(self._received[end + 4 : self._needed])
            del self._received[: self._needed]
            self._needed = 0
            method, target, _ = first.split(" ", 2)
            self.respond(method, target, fields, body)

    def expects(self, fields: Fields) -> bool:  # noqa: ARG002 (subclasses look at it)
        """Return whether to take the body of a request. This is called once, when the head and not yet all of
        the body has arrived.
        """
        return True

    def respond(self, method: str, target: str, fields: Fields, body: bytes) -> None:
        """Answer one request, ``latency_s`` after it has arrived."""
        answer = self.answer(method, target, fields, body)
        asyncio.get_running_loop().call_later(self._latency_s, self._write, answer)

    def answer(self, method: str, target: str, fields: Fields, body: bytes) -> Parts:
        """Return head and body of the answer to one request. Subclasses define this."""
        raise NotImplementedError

    def _write(self, parts: Parts) -> None:
        if not self._transport.is_closing():
            self._transport.writelines(parts)


def fields_of(lines: list[str]) -> Fields:
    """Return the header fields of a head. ``lines``: the lines of the head, without the first one."""
    pairs = (line.partition(":") for line in lines)
    return {name.lower(): value.strip() for name, _, value in pairs}


def answer_of(status: str, body: bytes | memoryview, more: Fields, *, with_body: bool = True) -> Parts:
    """Return head and body of an answer. ``more``: header fields to add to the usual header fields."""
    head = head_of(status, len(body), {"x-amz-request-id": "origin", **more})
    return [head, body] if with_body else [head]


def error_of(status: str, code: str, method: str) -> Parts:
    """Return head and XML document of an error answer. For HEAD, return only the head."""
    text = document(f"<Error><Code>{code}</Code></Error>")
    return answer_of(status, text, {"Content-Type": "application/xml"}, with_body=method != "HEAD")


def object_of(method: str, body: bytes | memoryview, tag: str, fields: Fields) -> Parts:
    """Return the answer to a GET or HEAD of an object. The request may name one range, and may have
    If-Match.
    """
    if fields.get("if-match", tag) != tag:
        return error_of("412 Precondition Failed", "PreconditionFailed", method)
    start, stop = span_of(fields.get("range"), len(body))
    ranged = "range" in fields
    if ranged and start >= len(body):
        return error_of("416 Requested Range Not Satisfiable", "InvalidRange", method)
    status, more = described(start, stop, len(body), tag, ranged=ranged)
    return answer_of(status, body[start:stop], more, with_body=method != "HEAD")


def span_of(value: str | None, size_bytes: int) -> tuple[int, int]:
    """Return the bytes [start, stop) that a Range field names, ``bytes=a-b``, ``bytes=a-`` or ``bytes=-n``.
    None: the whole object.
    """
    if value is None:
        return 0, size_bytes
    first, _, last = value.removeprefix("bytes=").partition("-")
    if not first:
        return max(size_bytes - int(last), 0), size_bytes
    return int(first), min(int(last or size_bytes) + 1, size_bytes)


def described(start: int, stop: int, size_bytes: int, tag: str, *, ranged: bool) -> tuple[str, Fields]:
    """Return the status and the header fields of an answer with the bytes [start, stop) of an object."""
    fields = {
        "ETag": tag,
        "Last-Modified": _DATE,
        "Content-Type": "application/octet-stream",
        "Accept-Ranges": "bytes",
    }
    if not ranged:
        return "200 OK", fields
    return "206 Partial Content", fields | {"Content-Range": f"bytes {start}-{stop - 1}/{size_bytes}"}


def head_of(status: str, length: int, fields: Fields) -> bytes:
    """Return the head of an answer whose body has ``length`` bytes."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def document(inner: str) -> bytes:
    """Return an XML document with the declaration before ``inner``."""
    return f"{_XML}{inner}".encode()


def list_buckets_of(bucket: str) -> bytes:
    """Return the body of the answer to ListBuckets, which names one bucket."""
    named = f"<Bucket><Name>{bucket}</Name><CreationDate>2026-01-01T00:00:00.000Z</CreationDate></Bucket>"
    return document(f"<ListAllMyBucketsResult><Buckets>{named}</Buckets></ListAllMyBucketsResult>")


def created_of(upload: str) -> bytes:
    """Return the body of the answer to CreateMultipartUpload."""
    return document(
        f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
    )


def result_of(operation: str, tag: str) -> bytes:
    """Return the body of the answer to CompleteMultipartUpload or CopyObject."""
    quoted = tag.replace('"', "&quot;")
    return document(f"<{operation}Result><ETag>{quoted}</ETag></{operation}Result>")
