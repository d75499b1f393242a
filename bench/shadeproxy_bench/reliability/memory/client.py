"""The clients of a memory run, one thread each: ``python -m shadeproxy_bench.reliability.memory.client``.

Clients with even numbers upload with one PutObject and download with one GET. Clients with odd numbers do as
boto3 does over TLS: multipart uploads with a trailing CRC-32 after each part, and ranged GETs with If-Match.
Every request is signed. The process writes the number of bytes moved to the file ``--tally`` every second.
"""

import argparse
import base64
import http.client
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from shadeproxy.core.sigv4 import EMPTY_SHA256, UNSIGNED_PAYLOAD
from shadeproxy_bench.reliability.kit.tally import Tally
from shadeproxy_bench.reliability.memory.stream import BUCKET, PIECE_BYTES, Pace, Stream, key_of, tag_of
from shadeproxy_bench.requests import signature_of

_TRAILED = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
_TRAILER = "x-amz-checksum-crc32"
_SILENCE_S = 120.0
_SLOW_DOWN_S = 1.0
_TRIES = 60
Fields = list[tuple[str, str]]


class Failed(Exception):
    """The proxy did not carry out a request."""


class _Body(NamedTuple):
    """The part of an object that a request moves: ``length`` bytes at ``offset``. ``trailed``: the bytes are
    sent in chunks, and followed by a CRC-32.
    """

    offset: int
    length: int
    trailed: bool = False


class Mover:
    """One client, which uploads one object of its own and then downloads it, over one connection."""

    def __init__(self, options: argparse.Namespace, number: int, stream: Stream, tally: Tally) -> None:
        self._options = options
        self._number = number
        self._stream = stream
        self._tally = tally
        self._host = urlsplit(options.s3).netloc
        self._path = f"/{BUCKET}/{key_of(number)}"
        self._line = http.client.HTTPConnection(self._host, timeout=_SILENCE_S)
        # The receive buffer, allocated once for the client.
        self._buffer = memoryview(bytearray(PIECE_BYTES))

    def run(self) -> None:
        """Upload the object, then download it. A failure ends the client and is counted."""
        whole, in_parts = _Body(0, self._options.size), self._number % 2 == 1
        kind = "upload"
        try:
            if in_parts:
                self._upload_in_parts()
            else:
                self._exchange("put", "PUT", "", body=whole)
            kind, pace = "download", Pace(self._options.rate)
            step = self._options.part if in_parts else self._options.size
            for offset in range(0, self._options.size, step):
                span = _Body(offset, min(step, self._options.size - offset))
                self._download(span, pace, ranged=in_parts)
        except (Failed, OSError, http.client.HTTPException) as error:
            self._tally.failed(kind, "error", f"client {self._number}: {type(error).__name__}: {error}")
        finally:
            self._line.close()

    def _upload_in_parts(self) -> None:
        answer = self._exchange("create", "POST", "uploads=")
        upload = answer.partition(b"<UploadId>")[2].partition(b"</UploadId>")[0].decode()
        size, step = self._options.size, self._options.part
        for turn, offset in enumerate(range(0, size, step), 1):
            body = _Body(offset, min(step, size - offset), trailed=True)
            self._exchange("part", "PUT", f"partNumber={turn}&uploadId={upload}", body=body)
        parts = "".join(
            f"<Part><PartNumber>{turn}</PartNumber><ETag>{tag_of(self._number)}</ETag></Part>"
            for turn in range(1, -(-size // step) + 1)
        )
        document = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        self._exchange("complete", "POST", f"uploadId={upload}", document=document)

    def _exchange(
        self, kind: str, method: str, query: str, *, body: _Body | None = None, document: bytes = b""
    ) -> bytes:
        """Send a request, again after each SlowDown as clients do, until the answer is 200. Return the
        answer's body. Raises Failed for any other answer, and after ``_TRIES`` SlowDowns.
        """
        for _ in range(_TRIES):
            response = self._sent(method, query, body, document)
            text = response.read()
            if response.status == 200:
                self._tally.answered(kind, body.length if body else 0)
                return text
            self._slow_down_or_fail(kind, response, text)
        raise Failed(f"{kind}: {_TRIES} times SlowDown")

    def _download(self, span: _Body, pace: Pace, *, ranged: bool) -> None:
        kind, fields = ("range", self._range(span)) if ranged else ("get", [])
        for _ in range(_TRIES):
            response = self._sent("GET", "", None, b"", fields)
            if response.status == (206 if ranged else 200):
                break
            self._slow_down_or_fail(kind, response, response.read())
        else:
            raise Failed(f"{kind}: {_TRIES} times SlowDown")
        taken = 0
        while taken < span.length:
            count = response.readinto(self._buffer[: min(PIECE_BYTES, span.length - taken)])
            if not count:
                raise Failed(f"{kind}: the body ended after {taken} of {span.length} bytes")
            if not self._stream.is_at(self._number, span.offset + taken, self._buffer[:count]):
                self._tally.failed(kind, "wrong", f"client {self._number}: at {span.offset + taken}")
                raise Failed("wrong bytes")
            taken += count
            time.sleep(pace.rest_s(count))
        response.read()
        self._tally.answered(kind, taken, response.headers.get("x-shade-cache", ""))

    def _range(self, span: _Body) -> Fields:
        last = span.offset + span.length - 1
        return [("range", f"bytes={span.offset}-{last}"), ("if-match", tag_of(self._number))]

    def _slow_down_or_fail(self, kind: str, response: http.client.HTTPResponse, text: bytes) -> None:
        if response.status != 503 or b"SlowDown" not in text:
            raise Failed(f"{kind}: {response.status} {text[:300].decode(errors='replace')}")
        self._tally.failed(kind, "slow down")
        if response.will_close:
            self._line.close()
        time.sleep(_SLOW_DOWN_S)

    def _sent(
        self, method: str, query: str, body: _Body | None, document: bytes, fields: Fields | None = None
    ) -> http.client.HTTPResponse:
        fields, payload_hash = list(fields or []), UNSIGNED_PAYLOAD if body or document else EMPTY_SHA256
        length = body.length if body else len(document)
        if body and body.trailed:
            fields += [
                ("x-amz-decoded-content-length", str(body.length)),
                ("x-amz-trailer", _TRAILER),
                ("content-encoding", "aws-chunked"),
            ]
            payload_hash, length = _TRAILED, _trailed_length(body.length)
        signed = signature_of(
            method, self._path, self._host, query=query, fields=fields, payload_hash=payload_hash
        )
        self._line.putrequest(method, f"{self._path}?{query}" if query else self._path, skip_host=True)
        for name, value in [("host", self._host), *fields, *signed]:
            self._line.putheader(name, value)
        if method != "GET":
            self._line.putheader("content-length", str(length))
        self._line.endheaders()
        try:
            for piece in self._pieces(body) if body else (document,):
                self._line.send(piece)
        except (BrokenPipeError, ConnectionResetError):
            # The proxy refused the request before the end of its body. Read the answer: it says why.
            pass
        return self._line.getresponse()

    def _pieces(self, body: _Body) -> Iterator[bytes | memoryview]:
        checksum = 0
        for at in range(0, body.length, PIECE_BYTES):
            piece = self._stream.piece(self._number, body.offset + at, min(PIECE_BYTES, body.length - at))
            if body.trailed:
                checksum = zlib.crc32(piece, checksum)
                yield f"{len(piece):x}\r\n".encode()
            yield piece
            if body.trailed:
                yield b"\r\n"
        if body.trailed:
            yield b"0\r\n" + _trailer(checksum)


def _trailer(checksum: int) -> bytes:
    return f"{_TRAILER}:{base64.b64encode(checksum.to_bytes(4)).decode()}\r\n\r\n".encode()


def _trailed_length(length: int) -> int:
    """Return the length on the wire of a body of ``length`` bytes that is sent in chunks, with its
    trailer.
    """
    full, rest = divmod(length, PIECE_BYTES)
    sizes = [PIECE_BYTES] * full + [rest] * bool(rest)
    return length + sum(len(f"{size:x}") + 4 for size in sizes) + len(b"0\r\n") + len(_trailer(0))


def main() -> None:
    parser = argparse.ArgumentParser(description="The clients of a memory run.")
    parser.add_argument("--s3", required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--size", type=int, required=True, help="bytes of each object")
    parser.add_argument("--part", type=int, required=True, help="bytes of each part and range")
    parser.add_argument("--rate", type=float, default=0.0, help="bytes a second of each download; 0: any")
    parser.add_argument("--tally", type=Path, required=True)
    options = parser.parse_args()
    stream, tally = Stream(), Tally()
    stream.piece(0, 0, 1)  # Make the shared random base before the threads start.
    threads = [
        threading.Thread(target=Mover(options, number, stream, tally).run)
        for number in range(options.clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(1.0)
            tally.write(options.tally)
    tally.write(options.tally)


if __name__ == "__main__":
    main()
