"""The origin of an overload run: ``python -m shadeproxy_bench.reliability.overload.origin``.

GET and HEAD of the objects of ``bench.objects``, each read counted by key and first byte; PutObject bodies,
counted and hashed as they arrive and discarded. ``POST /-/set`` sets its pace: it works on ``at_once``
requests at a time, each for ``latency_s``. ``GET /-/counts`` returns the counts. Prints its port first.
"""

import asyncio
import hashlib
import re
from collections import Counter
from functools import partial

import msgspec
import uvloop

from shadeproxy_bench.exchanges import Fields, serve_exchanges
from shadeproxy_bench.objects import BUCKET, body_of, parse_key

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_PIECE_BYTES = 1 << 20
_XML = '<?xml version="1.0" encoding="UTF-8"?>'
_BUCKETS = (
    f"{_XML}<ListAllMyBucketsResult><Buckets><Bucket><Name>{BUCKET}</Name>"
    "<CreationDate>2026-01-01T00:00:00.000Z</CreationDate></Bucket></Buckets></ListAllMyBucketsResult>"
)


class Pace(msgspec.Struct):
    """The speed of the origin. ``at_once`` 0: unlimited."""

    latency_s: float = 0.0
    at_once: int = 0


class Upload(msgspec.Struct):
    size_bytes: int
    sha256: str


class Asked(msgspec.Struct):
    """Requests. ``reads``: GETs by key and first byte ("key 0"). ``uploads``: last whole one by key."""

    reads: dict[str, int] = {}
    uploads: dict[str, Upload] = {}


class Origin:
    """All connections of one server."""

    def __init__(self) -> None:
        self._pace = Pace()
        self._turns = asyncio.Semaphore(1)
        self._reads: Counter[str] = Counter()
        self._uploads: dict[str, Upload] = {}

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
        span, length = fields.get("range", ""), int(fields.get("content-length", 0))
        path = target.partition("?")[0]
        key = path.removeprefix(f"/{BUCKET}/")
        if path == "/":
            _say(out, "200 OK", _BUCKETS.encode())
        elif path == "/-/counts":
            _say(out, "200 OK", msgspec.json.encode(Asked(dict(self._reads), self._uploads)))
        elif path == "/-/set":
            self._pace = msgspec.json.decode(await reader.readexactly(length), type=Pace)
            self._turns = asyncio.Semaphore(self._pace.at_once or 1)
            _say(out, "200 OK", b"")
        elif method == "PUT":
            self._uploads[key] = await _take(length, reader)
            _say(out, "200 OK", b"", f'ETag: "{self._uploads[key].sha256[:32]}"\r\n')
        elif (found := parse_key(key)) is not None:
            await self._work()
            self._send(key, *found, span, out, with_body=method == "GET")
        else:
            _say(out, "404 Not Found", f"{_XML}<Error><Code>NoSuchKey</Code></Error>".encode())

    async def _work(self) -> None:
        if self._pace.at_once:
            async with self._turns:
                await asyncio.sleep(self._pace.latency_s)
        elif self._pace.latency_s:
            await asyncio.sleep(self._pace.latency_s)

    def _send(
        self, key: str, size: int, number: int, span: str, out: asyncio.StreamWriter, *, with_body: bool
    ) -> None:
        start, stop, status, more = 0, size, "200 OK", ""
        if found := _RANGE.fullmatch(span):
            start, stop = int(found[1]), min(int(found[2] or size) + 1, size)
            status, more = "206 Partial Content", f"Content-Range: bytes {start}-{stop - 1}/{size}\r\n"
        self._reads[f"{key} {start}"] += with_body
        out.write(
            (
                f'HTTP/1.1 {status}\r\nContent-Length: {stop - start}\r\nETag: "{size:016x}{number:016x}"\r\n'
                f"{more}Accept-Ranges: bytes\r\nContent-Type: application/octet-stream\r\n"
                "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n"
            ).encode()
        )
        if with_body:
            out.write(body_of(size, number)[start:stop])


async def _take(length: int, reader: asyncio.StreamReader) -> Upload:
    digest, taken = hashlib.sha256(), 0
    while taken < length:
        piece = await reader.read(min(_PIECE_BYTES, length - taken))
        if not piece:
            raise ConnectionResetError("the upload was given up")
        digest.update(piece)
        taken += len(piece)
    return Upload(taken, digest.hexdigest())


def _say(out: asyncio.StreamWriter, status: str, body: bytes, more: str = "") -> None:
    out.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body)


async def _serve() -> None:
    origin = Origin()
    server = await asyncio.start_server(
        partial(origin.serve), "127.0.0.1", 0, backlog=4096, limit=_PIECE_BYTES // 2
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve())
