"""The origin of an overload run: ``python -m shadeproxy_bench.reliability.overload.origin``.

GET and HEAD of the objects of ``bench.objects``, each read counted by key and first byte; PutObject bodies,
counted and hashed as they arrive and discarded. ``POST /-/set`` sets its pace: it works on ``at_once``
requests at a time, each for ``latency_s``. ``GET /-/counts`` returns the counts. Prints its port first.
"""

import asyncio
import hashlib
from collections import Counter

import msgspec
import uvloop

from shadeproxy_bench.objects import BUCKET, body_of, parse_key
from shadeproxy_bench.reliability.kit.exchanges import StreamingOrigin, begin_object, pieces_of, refuse, say
from shadeproxy_bench.reliability.kit.origin import Fields, list_buckets_of


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


class Origin(StreamingOrigin):
    """All connections of one server."""

    def __init__(self) -> None:
        self._pace = Pace()
        self._turns = asyncio.Semaphore(1)
        self._reads: Counter[str] = Counter()
        self._uploads: dict[str, Upload] = {}

    async def answer(
        self,
        method: str,
        target: str,
        fields: Fields,
        reader: asyncio.StreamReader,
        out: asyncio.StreamWriter,
    ) -> None:
        span, length = fields.get("range"), int(fields.get("content-length", 0))
        path = target.partition("?")[0]
        key = path.removeprefix(f"/{BUCKET}/")
        if path == "/":
            say(out, "200 OK", list_buckets_of(BUCKET))
        elif path == "/-/counts":
            say(out, "200 OK", msgspec.json.encode(Asked(dict(self._reads), self._uploads)))
        elif path == "/-/set":
            self._pace = msgspec.json.decode(await reader.readexactly(length), type=Pace)
            self._turns = asyncio.Semaphore(self._pace.at_once or 1)
            say(out, "200 OK")
        elif method == "PUT":
            self._uploads[key] = await self._take(length, reader)
            say(out, "200 OK", more={"ETag": f'"{self._uploads[key].sha256[:32]}"'})
        elif (found := parse_key(key)) is not None:
            await self._work()
            self._send(key, *found, span, out, with_body=method == "GET")
        else:
            refuse(out, "404 Not Found", "NoSuchKey")

    async def _work(self) -> None:
        if self._pace.at_once:
            async with self._turns:
                await asyncio.sleep(self._pace.latency_s)
        elif self._pace.latency_s:
            await asyncio.sleep(self._pace.latency_s)

    def _send(
        self,
        key: str,
        size: int,
        number: int,
        span: str | None,
        out: asyncio.StreamWriter,
        *,
        with_body: bool,
    ) -> None:
        start, stop = begin_object(out, span, size, f'"{size:016x}{number:016x}"')
        self._reads[f"{key} {start}"] += with_body
        if with_body:
            out.write(body_of(size, number)[start:stop])

    async def _take(self, length: int, reader: asyncio.StreamReader) -> Upload:
        digest, taken = hashlib.sha256(), 0
        async for piece in pieces_of(reader, length, self.piece_bytes):
            digest.update(piece)
            taken += len(piece)
        return Upload(taken, digest.hexdigest())


if __name__ == "__main__":
    uvloop.run(Origin().serve())
