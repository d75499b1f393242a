"""The origin of a memory run: ``python -m shadeproxy_bench.reliability.memory.origin``.

GET and HEAD (whole or one range) of objects that are made while they are sent; PutObject and multipart
uploads that are compared as they arrive, at ``--rate``, and discarded. A wrong body gets 400. Prints its port
first.
"""

import argparse
import asyncio
import re
from functools import partial

import uvloop

from shadeproxy_bench.exchanges import Fields, serve_exchanges
from shadeproxy_bench.reliability.memory.stream import BUCKET, PIECE_BYTES, Pace, Stream, tag_of

_TARGET = re.compile(rf"/{BUCKET}/(\d{{4}})\.bin(?:\?(.*))?")
_PART = re.compile(r"(?:^|&)partNumber=(\d+)")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_XML = '<?xml version="1.0" encoding="UTF-8"?>'
_BUCKETS = (
    f"{_XML}<ListAllMyBucketsResult><Buckets><Bucket><Name>{BUCKET}</Name>"
    "<CreationDate>2026-01-01T00:00:00.000Z</CreationDate></Bucket></Buckets></ListAllMyBucketsResult>"
)


class Origin:
    """Objects of ``size_bytes``; multipart uploads have parts of ``part_bytes``."""

    def __init__(self, size_bytes: int, part_bytes: int, bytes_per_s: float) -> None:
        self._size_bytes = size_bytes
        self._part_bytes = part_bytes
        self._bytes_per_s = bytes_per_s
        self._stream = Stream()

    async def serve(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        await serve_exchanges(reader, out, self._answer)

    async def _answer(
        self,
        method: str,
        target: str,
        fields: Fields,
        reader: asyncio.StreamReader,
        out: asyncio.StreamWriter,
    ) -> None:
        length = int(fields.get("content-length", 0))
        if target.partition("?")[0] == "/":
            _say(out, "200 OK", _BUCKETS)
        elif (found := _TARGET.fullmatch(target)) is None:
            _say(out, "404 Not Found", f"{_XML}<Error><Code>NoSuchKey</Code></Error>")
        elif method in {"GET", "HEAD"}:
            await self._send(int(found[1]), fields.get("range", ""), out, with_body=method == "GET")
        elif method == "PUT":
            part = _PART.search(found[2] or "")
            offset = (int(part[1]) - 1) * self._part_bytes if part else 0
            if await self._take(int(found[1]), offset, length, reader):
                _say(out, "200 OK", "", f"ETag: {tag_of(int(found[1]))}\r\n")
            else:
                _say(out, "400 Bad Request", f"{_XML}<Error><Code>BadDigest</Code></Error>")
        elif method == "POST":
            await reader.readexactly(length)
            _say(out, "200 OK", _multipart_document(int(found[1]), found[2] or ""))
        else:
            _say(out, "501 Not Implemented", f"{_XML}<Error><Code>NotImplemented</Code></Error>")

    async def _take(self, number: int, offset: int, length: int, reader: asyncio.StreamReader) -> bool:
        """Return whether the next ``length`` bytes received are those at ``offset``."""
        right, pace, taken = True, Pace(self._bytes_per_s), 0
        while taken < length:
            piece = await reader.read(min(PIECE_BYTES, length - taken))
            if not piece:
                raise ConnectionResetError("the upload was given up")
            right = right and self._stream.is_at(number, offset + taken, piece)
            taken += len(piece)
            await asyncio.sleep(pace.rest_s(len(piece)))
        return right

    async def _send(self, number: int, span: str, out: asyncio.StreamWriter, *, with_body: bool) -> None:
        start, stop, status, more = 0, self._size_bytes, "200 OK", ""
        if found := _RANGE.fullmatch(span):
            start, stop = int(found[1]), min(int(found[2] or self._size_bytes) + 1, self._size_bytes)
            status = "206 Partial Content"
            more = f"Content-Range: bytes {start}-{stop - 1}/{self._size_bytes}\r\n"
        out.write(
            (
                f"HTTP/1.1 {status}\r\nContent-Length: {stop - start}\r\nETag: {tag_of(number)}\r\n{more}"
                "Accept-Ranges: bytes\r\nContent-Type: application/octet-stream\r\n"
                "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n"
            ).encode()
        )
        for offset in range(start, stop if with_body else start, PIECE_BYTES):
            out.write(self._stream.piece(number, offset, min(PIECE_BYTES, stop - offset)))
            await out.drain()


def _multipart_document(number: int, query: str) -> str:
    if query.startswith("uploads"):
        return (
            f"{_XML}<InitiateMultipartUploadResult><UploadId>of-{number}</UploadId>"
            "</InitiateMultipartUploadResult>"
        )
    tag = tag_of(number).replace('"', "&quot;")
    return f"{_XML}<CompleteMultipartUploadResult><ETag>{tag}</ETag></CompleteMultipartUploadResult>"


def _say(out: asyncio.StreamWriter, status: str, text: str, more: str = "") -> None:
    out.write(
        f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\nContent-Type: application/xml\r\n"
        f"{more}\r\n{text}".encode()
    )


async def _serve(origin: Origin) -> None:
    server = await asyncio.start_server(
        partial(origin.serve), "127.0.0.1", 0, backlog=1024, limit=PIECE_BYTES // 2
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description="The origin of a memory run.")
    parser.add_argument("--size", type=int, required=True, help="bytes of each object")
    parser.add_argument("--part", type=int, required=True, help="bytes of each part of an upload")
    parser.add_argument("--rate", type=float, default=0.0, help="bytes a second of each upload; 0: any")
    options = parser.parse_args()
    uvloop.run(_serve(Origin(options.size, options.part, options.rate)))


if __name__ == "__main__":
    main()
