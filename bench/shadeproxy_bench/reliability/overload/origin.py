"""The origin of an overload run: ``python -m shadeproxy_bench.reliability.overload.origin``.

It answers GET and HEAD of the objects of ``shadeproxy_bench.objects``, and counts each GET by key and first
byte. Bodies of PutObject are counted and hashed as they arrive, and discarded. ``POST /-/set`` sets the pace:
the origin works on ``at_once`` requests at a time, on each for ``latency_s``. ``GET /-/counts`` returns the
counts. The process prints its port first.
"""

import asyncio
import hashlib
from collections import Counter

import msgspec
import uvloop

from shadeproxy_bench.objects import BUCKET, body_of, parse_key
from shadeproxy_bench.reliability.kit.exchanges import (
    Exchange,
    StreamingOrigin,
    begin_object,
    pieces_of,
    refuse,
    say,
)
from shadeproxy_bench.reliability.kit.origin import list_buckets_of


class Pace(msgspec.Struct):
    """The speed of the origin. ``at_once``: number of requests that it works on at the same time; 0: no
    limit.
    """

    latency_s: float = 0.0
    at_once: int = 0


class Upload(msgspec.Struct):
    size_bytes: int
    sha256: str


class Asked(msgspec.Struct):
    """Counts of requests to the origin. ``reads``: number of GETs by key and first byte ("key 0").
    ``uploads``: the last complete upload of each key.
    """

    reads: dict[str, int] = {}
    uploads: dict[str, Upload] = {}


class Origin(StreamingOrigin):
    """All connections of the origin, its pace and its counts."""

    def __init__(self) -> None:
        self._pace = Pace()
        self._turns = asyncio.Semaphore(1)
        self._reads: Counter[str] = Counter()
        self._uploads: dict[str, Upload] = {}

    async def answer(self, asked: Exchange) -> None:
        method, out = asked.method, asked.out
        path = asked.target.partition("?")[0]
        key = path.removeprefix(f"/{BUCKET}/")
        if path == "/":
            say(out, "200 OK", list_buckets_of(BUCKET))
        elif path == "/-/counts":
            say(out, "200 OK", msgspec.json.encode(Asked(dict(self._reads), self._uploads)))
        elif path == "/-/set":
            self._pace = msgspec.json.decode(await asked.reader.readexactly(asked.length), type=Pace)
            self._turns = asyncio.Semaphore(self._pace.at_once or 1)
            say(out, "200 OK")
        elif method == "PUT":
            self._uploads[key] = await self._take(asked)
            say(out, "200 OK", more={"ETag": f'"{self._uploads[key].sha256[:32]}"'})
        elif (found := parse_key(key)) is not None:
            await self._work()
            self._send(key, *found, asked)
        else:
            refuse(out, "404 Not Found", "NoSuchKey")

    async def _work(self) -> None:
        if self._pace.at_once:
            async with self._turns:
                await asyncio.sleep(self._pace.latency_s)
        elif self._pace.latency_s:
            await asyncio.sleep(self._pace.latency_s)

    def _send(self, key: str, size: int, number: int, asked: Exchange) -> None:
        tag, span = f'"{size:016x}{number:016x}"', asked.fields.get("range")
        start, stop = begin_object(asked.out, span, size, tag)
        self._reads[f"{key} {start}"] += asked.method == "GET"
        if asked.method == "GET":
            asked.out.write(body_of(size, number)[start:stop])

    async def _take(self, asked: Exchange) -> Upload:
        digest, taken = hashlib.sha256(), 0
        async for piece in pieces_of(asked, self.piece_bytes):
            digest.update(piece)
            taken += len(piece)
        return Upload(taken, digest.hexdigest())


if __name__ == "__main__":
    uvloop.run(Origin().serve())
