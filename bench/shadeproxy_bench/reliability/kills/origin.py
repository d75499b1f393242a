"""A slow S3 origin that counts the requests for each page, and knows which answers and uploads are under way.

Objects can be overwritten. The body of version v of object n is the body of object n + v in
``shadeproxy_bench.objects``. Therefore the numbers of overwritten objects are ``VERSIONS`` apart.
"""

import asyncio
import random
from collections import Counter

from shadeproxy_bench.objects import BUCKET, Piece, body_of, parse_key
from shadeproxy_bench.reliability.kit.exchanges import Exchange, StreamingOrigin, begin_object, refuse, say
from shadeproxy_bench.reliability.kit.origin import list_buckets_of, span_of

PAGE_BYTES = 4 * 1024**2
VERSIONS = 10_000
VERSION_FIELD = "x-amz-meta-version"
_PIECES = 6
_MOST_PAUSE_S = 0.12


def body_of_version(piece: Piece, version: int) -> memoryview:
    """Return the bytes of a version of an object."""
    return body_of(piece.size_bytes, piece.number + version)


def tag_of(piece: Piece, version: int) -> str:
    """Return the ETag of a version, including its quotes."""
    return f'"{piece.number + version:032x}"'


def version_of(piece: Piece, tag: str) -> int | None:
    """Return the version with the ETag ``tag``; None if no version of this object has it."""
    version = int(tag.strip('"'), 16) - piece.number
    return version if 0 <= version < VERSIONS and tag == tag_of(piece, version) else None


class PacedOrigin(StreamingOrigin):
    """Serves the objects of ``shadeproxy_bench.objects``. Bodies are sent in pieces with random pauses
    between them.
    """

    def __init__(self, choices: random.Random) -> None:
        self.gets: Counter[tuple[int, int]] = Counter()
        """Number of requests by (number of the object, number of the page)."""
        self.under_way: set[int] = set()
        """The proxy's ports of the connections on which an answer is not finished."""
        self.versions: Counter[int] = Counter()
        """The current version of each object, by its number."""
        self.uploading: set[int] = set()
        """The proxy's ports of the connections on which an upload is not answered yet."""
        self.damaged: list[str] = []
        """Descriptions of uploads that were complete, but had wrong bytes."""
        self._choices = choices

    async def answer(self, asked: Exchange) -> None:
        out, found = asked.out, parse_key(asked.target.removeprefix(f"/{BUCKET}/"))
        if asked.target == "/":
            say(out, "200 OK", list_buckets_of(BUCKET))
        elif found is None:
            refuse(out, "404 Not Found", "NoSuchKey")
        elif asked.method == "PUT":
            await self._store(Piece(*found), asked)
        else:
            await self._send(Piece(*found), asked)

    async def _send(self, piece: Piece, asked: Exchange) -> None:
        version, span = self.versions[piece.number], asked.fields.get("range")
        self.gets[piece.number, span_of(span, piece.size_bytes)[0] // PAGE_BYTES] += 1
        self.under_way.add(asked.port)
        try:
            await self._pause()
            start, stop = begin_object(asked.out, span, piece.size_bytes, tag_of(piece, version))
            body = body_of_version(piece, version)[start : stop if asked.method == "GET" else start]
            step = max(1, -(-len(body) // _PIECES))
            for at in range(0, len(body), step):
                await self._pause()
                asked.out.write(body[at : at + step])
                await asked.out.drain()
        finally:
            self.under_way.discard(asked.port)

    async def _store(self, piece: Piece, asked: Exchange) -> None:
        """Receive an upload. When its last byte has come, make its version the current one; after a pause,
        answer.
        """
        version = int(asked.fields[VERSION_FIELD])
        self.uploading.add(asked.port)
        try:
            if await asked.reader.readexactly(asked.length) != body_of_version(piece, version):
                self.damaged.append(f"{asked.target}, version {version}")
            self.versions[piece.number] = version
            await self._pause()
            say(asked.out, "200 OK", more={"ETag": tag_of(piece, version)})
            await asked.out.drain()
        finally:
            self.uploading.discard(asked.port)

    async def _pause(self) -> None:
        await asyncio.sleep(self._choices.random() * _MOST_PAUSE_S)
