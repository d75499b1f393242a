"""A lean S3 origin with a stated latency, in processes of its own: ``python -m shadeproxy_bench.origin``.

It answers GET and HEAD of the objects of ``objects``, whole or one range. In the bucket of the bench, every
key of their form exists. A PUT of such an object is accepted, and a PUT with other bytes is refused. The
origin computes bodies from their keys and stores nothing, so that it is never the bottleneck. A GET takes
under 20 us of CPU time; where that is too much for one process, several processes share the port. The process
prints its port first.
"""

import argparse
import asyncio
import os
import random
import re
import socket
import ssl
from collections.abc import Callable
from hashlib import blake2b
from typing import cast

import uvloop

from shadeproxy_bench.listening import serve_at, shared_sockets
from shadeproxy_bench.objects import BUCKET, body_of, parse_key
from shadeproxy_bench.reliability.kit.origin import span_of

_RANGE = re.compile(rb"\r\nrange: *(bytes=[0-9-]+)", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_LISTING = (
    b'<?xml version="1.0" encoding="UTF-8"?><ListAllMyBucketsResult><Owner><ID>bench</ID></Owner><Buckets>'
    b"<Bucket><Name>bench</Name><CreationDate>2026-01-01T00:00:00.000Z</CreationDate></Bucket></Buckets>"
    b"</ListAllMyBucketsResult>"
)
_BAD_DIGEST = b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>BadDigest</Code></Error>'
_NO_SUCH_KEY = b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>NoSuchKey</Code></Error>'
_PREFIX = f"/{BUCKET}/".encode()
_HEAD = (
    b'HTTP/1.1 %s\r\nContent-Length: %d\r\nETag: "%s"\r\nAccept-Ranges: bytes\r\n'
    b"Content-Type: application/octet-stream\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
    b"x-amz-request-id: %s\r\nServer: bench\r\n%s\r\n"
)


class Link:
    """The link that all connections share: bodies leave one after another at ``bytes_per_s`` (0: at once)."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0

    def after_s(self, now_s: float, size_bytes: int) -> float:
        """Return the seconds from ``now_s`` until ``size_bytes``, which are ready at ``now_s``, have left
        over the link.
        """
        if not self._bytes_per_s:
            return 0.0
        self._free_s = max(self._free_s, now_s) + size_bytes / self._bytes_per_s
        return self._free_s - now_s


class Latency:
    """Draws the seconds that pass before each answer: always ``median_s``, or with ``sigma`` a lognormal
    value around it, as with object stores.
    """

    def __init__(self, median_s: float, *, sigma: float, seed: int) -> None:
        self._median_s = median_s
        self._sigma = sigma
        self._drawn = random.Random(seed)

    def next_s(self) -> float:
        return (
            self._median_s * self._drawn.lognormvariate(0.0, self._sigma) if self._sigma else self._median_s
        )


class Upload:
    """The body of a PUT. It is compared with the bytes of the object as it arrives."""

    def __init__(self, length: int, expected: memoryview) -> None:
        self._left_bytes = length
        self._expected = expected
        self._right = length == len(expected)
        self.stored: Callable[[], object] | None = None
        """Called when the whole body has come and is right."""

    def take(self, data: bytes) -> bytes:
        """Take the part of ``data`` that belongs to the body; return the rest."""
        body = data[: self._left_bytes]
        start = len(self._expected) - self._left_bytes
        self._right = self._right and body == self._expected[start : start + len(body)]
        self._left_bytes -= len(body)
        return data[len(body) :]

    @property
    def is_complete(self) -> bool:
        return not self._left_bytes

    def answer(self) -> tuple[bytes, memoryview]:
        if self._right:
            if self.stored is not None:
                self.stored()
            return b'HTTP/1.1 200 OK\r\nETag: "uploaded"\r\nContent-Length: 0\r\n\r\n', memoryview(b"")
        return document(b"400 Bad Request", _BAD_DIGEST)


class ObjectServer(asyncio.Protocol):
    """One connection to the origin. Requests are answered in the order in which they arrive."""

    def __init__(self, link: Link, latency: Latency, *, seed: int) -> None:
        self._link = link
        self._latency = latency
        self._seed = seed
        self._received = b""
        self._last_s = 0.0
        self._upload: Upload | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while self._take_body() and (end := self._received.find(b"\r\n\r\n")) >= 0:
            head, self._received = self._received[:end], self._received[end + 4 :]
            if head.startswith((b"PUT ", b"POST ")):
                self._upload = self._begin_upload(head)
            else:
                self._schedule(self._answer(head))

    def _take_body(self) -> bool:
        """Take the bytes of an upload that have arrived. Return whether a request's head comes next."""
        if self._upload is None:
            return True
        self._received = self._upload.take(self._received)
        if not self._upload.is_complete:
            return False
        self._schedule(self._upload.answer())
        self._upload = None
        return True

    def _begin_upload(self, head: bytes) -> Upload:
        path = head.split(b" ", 2)[1].partition(b"?")[0]
        found, length = parse_key(path.removeprefix(_PREFIX).decode("latin-1")), _LENGTH.search(head)
        if b"100-continue" in head.lower():
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        expected = memoryview(b"") if found is None else body_of(*found, self._seed)
        return Upload(int(length[1]) if length else 0, expected)

    def _schedule(self, parts: tuple[bytes, memoryview]) -> None:
        loop = asyncio.get_running_loop()
        # Reserve time on the link now, not when the body is sent: by then other answers will have used the
        # link.
        now_s = loop.time()
        ready_s = max(now_s + self._latency.next_s(), self._last_s)
        self._last_s = ready_s + self._link.after_s(ready_s, len(parts[1]))
        delay_s = self._last_s - now_s
        if delay_s:
            loop.call_later(delay_s, self._write, parts)
        else:
            self._write(parts)

    def _write(self, parts: tuple[bytes, memoryview]) -> None:
        if not self._transport.is_closing():
            self._transport.writelines(parts)

    def _answer(self, head: bytes) -> tuple[bytes, memoryview]:
        method, target, _ = head.split(b" ", 2)
        path = target.partition(b"?")[0]
        if path == b"/":
            return document(b"200 OK", _LISTING)
        found = parse_key(path.removeprefix(_PREFIX).decode("latin-1"))
        if not path.startswith(_PREFIX) or found is None:
            return document(b"404 Not Found", _NO_SUCH_KEY)
        size_bytes, number = found
        start, stop, status = 0, size_bytes, b"200 OK"
        if wanted := _RANGE.search(head):
            start, stop = span_of(wanted[1].decode(), size_bytes)
            status = b"206 Partial Content"
        tag = blake2b(path, digest_size=16).hexdigest().encode()
        span = b"Content-Range: bytes %d-%d/%d\r\n" % (start, stop - 1, size_bytes) if wanted else b""
        fields = _HEAD % (status, stop - start, tag, tag[:16], span)
        body = memoryview(b"") if method == b"HEAD" else body_of(size_bytes, number, self._seed)[start:stop]
        return fields, body


def document(status: bytes, body: bytes) -> tuple[bytes, memoryview]:
    head = b"HTTP/1.1 %s\r\nContent-Length: %d\r\nContent-Type: application/xml\r\n\r\n" % (status, len(body))
    return head, memoryview(body)


def main() -> None:
    parser = argparse.ArgumentParser(description="An S3 origin for measurements.")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument(
        "--sigma", type=float, default=0.0, help="of the logarithm of that; 0: always the same"
    )
    parser.add_argument("--seed", type=int, default=0, help="other bodies under the same keys")
    parser.add_argument("--rate", type=float, default=0.0, help="bytes a second over all connections; 0: any")
    parser.add_argument("--cert", default="", help="PEM file; with --key: HTTPS only")
    parser.add_argument("--key", default="", help="PEM file")
    parser.add_argument("--processes", type=int, default=1, help="that share the port; over 1 without --rate")
    options = parser.parse_args()
    if options.processes > 1 and options.rate:
        parser.error("--rate is a link of one process")
    latency = Latency(options.latency, sigma=options.sigma, seed=options.seed)
    link = Link(options.rate)
    tls = None
    if options.cert:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(options.cert, options.key)
    listener = _fork(shared_sockets(options.processes))
    uvloop.run(serve_at(listener, lambda: ObjectServer(link, latency, seed=options.seed), tls=tls))


def _fork(listeners: list[socket.socket]) -> socket.socket:
    """Print the port, and start a process for each listener but the first. In each process, return the
    listener that it serves, and close the others. The listener of a process that ends is then closed
    everywhere, and connections to it are refused instead of waiting.
    """
    print(listeners[0].getsockname()[1], flush=True)
    own = next((one for one in listeners[1:] if not os.fork()), listeners[0])
    for one in listeners:
        if one is not own:
            one.close()
    return own


if __name__ == "__main__":
    main()
