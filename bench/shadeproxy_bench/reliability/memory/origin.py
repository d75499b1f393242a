"""The origin of a memory run: ``python -m shadeproxy_bench.reliability.memory.origin``.

It answers GET and HEAD (whole or one range) of objects whose bytes are computed while they are sent. It takes
PutObject and multipart uploads, compares their bytes as they arrive at ``--rate``, and discards them. A wrong
body is answered 400. The process prints its port first.
"""

import argparse
import asyncio
import re

import uvloop

from shadeproxy_bench.reliability.kit.exchanges import (
    Exchange,
    StreamingOrigin,
    begin_object,
    pieces_of,
    refuse,
    say,
)
from shadeproxy_bench.reliability.kit.origin import created_of, list_buckets_of, result_of
from shadeproxy_bench.reliability.memory.stream import BUCKET, PIECE_BYTES, Pace, Stream, tag_of

_TARGET = re.compile(rf"/{BUCKET}/(\d{{4}})\.bin(?:\?(.*))?")
_XML = {"Content-Type": "application/xml"}
_PART = re.compile(r"(?:^|&)partNumber=(\d+)")


class Origin(StreamingOrigin):
    """Serves objects that all have ``size_bytes``. Parts of multipart uploads have ``part_bytes``."""

    piece_bytes = PIECE_BYTES

    def __init__(self, size_bytes: int, part_bytes: int, bytes_per_s: float) -> None:
        self._size_bytes = size_bytes
        self._part_bytes = part_bytes
        self._bytes_per_s = bytes_per_s
        self._stream = Stream()

    async def answer(self, asked: Exchange) -> None:
        method, target, out = asked.method, asked.target, asked.out
        if target.partition("?")[0] == "/":
            say(out, "200 OK", list_buckets_of(BUCKET), _XML)
        elif (found := _TARGET.fullmatch(target)) is None:
            refuse(out, "404 Not Found", "NoSuchKey")
        elif method in {"GET", "HEAD"}:
            await self._send(int(found[1]), asked.fields.get("range"), out, with_body=method == "GET")
        elif method == "PUT":
            part = _PART.search(found[2] or "")
            offset = (int(part[1]) - 1) * self._part_bytes if part else 0
            if await self._take(int(found[1]), offset, asked):
                say(out, "200 OK", more={"ETag": tag_of(int(found[1]))})
            else:
                refuse(out, "400 Bad Request", "BadDigest")
        elif method == "POST":
            await asked.reader.readexactly(asked.length)
            say(out, "200 OK", _multipart_document(int(found[1]), found[2] or ""), _XML)
        else:
            refuse(out, "501 Not Implemented", "NotImplemented")

    async def _take(self, number: int, offset: int, asked: Exchange) -> bool:
        """Take the body of a request. Return whether it is the part of the object that begins at
        ``offset``.
        """
        right, pace, taken = True, Pace(self._bytes_per_s), 0
        async for piece in pieces_of(asked, PIECE_BYTES):
            right = right and self._stream.is_at(number, offset + taken, piece)
            taken += len(piece)
            await asyncio.sleep(pace.rest_s(len(piece)))
        return right

    async def _send(
        self, number: int, span: str | None, out: asyncio.StreamWriter, *, with_body: bool
    ) -> None:
        start, stop = begin_object(out, span, self._size_bytes, tag_of(number))
        for offset in range(start, stop if with_body else start, PIECE_BYTES):
            out.write(self._stream.piece(number, offset, min(PIECE_BYTES, stop - offset)))
            await out.drain()


def _multipart_document(number: int, query: str) -> bytes:
    if query.startswith("uploads"):
        return created_of(f"of-{number}")
    return result_of("CompleteMultipartUpload", tag_of(number))


def main() -> None:
    parser = argparse.ArgumentParser(description="The origin of a memory run.")
    parser.add_argument("--size", type=int, required=True, help="bytes of each object")
    parser.add_argument("--part", type=int, required=True, help="bytes of each part of an upload")
    parser.add_argument("--rate", type=float, default=0.0, help="bytes a second of each upload; 0: any")
    options = parser.parse_args()
    uvloop.run(Origin(options.size, options.part, options.rate).serve())


if __name__ == "__main__":
    main()
