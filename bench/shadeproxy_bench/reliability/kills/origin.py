"""A slow S3 origin that counts the requests for each page and part, and knows which answers and uploads are
under way.

Objects can be overwritten. The body of version v of object n is the body of object n + v in
``shadeproxy_bench.objects``. Therefore the numbers of overwritten objects are ``VERSIONS`` apart.
"""

import asyncio
import random
from collections import Counter

from shadeproxy_bench.objects import BUCKET, Piece, parse_key
from shadeproxy_bench.reliability.kit.exchanges import Exchange, StreamingOrigin, begin_object, refuse, say
from shadeproxy_bench.reliability.kit.origin import list_buckets_of, span_of

PAGE_BYTES = 4 * 1024**2
LONG_BYTES = 5_000_000
"""Size of the objects of two pages."""
VERSIONS = 10_000
VERSION_FIELD = "x-amz-meta-version"
_PIECES = 6
_MOST_PAUSE_S = 0.12
_SHORT_PAUSE_S = 0.012
"""Pause within the body of a long object. So its pages come soon enough that one answer may fill all of them
(docs/adr/0083).
"""


def body_of_version(piece: Piece, version: int) -> memoryview:
    """Return the bytes of ``piece`` in a version of its object."""
    return piece._replace(number=piece.number + version).body()


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
        """Number of requests by (number of the object, first byte that was requested)."""
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
        self.gets[piece.number, span_of(span, piece.size_bytes)[0]] += 1
        self.under_way.add(asked.port)
        try:
            await self._pause()
            start, stop = begin_object(asked.out, span, piece.size_bytes, tag_of(piece, version))
            body = body_of_version(piece, version)[start : stop if asked.method == "GET" else start]
            step = max(1, -(-len(body) // _PIECES))
            most_s = _MOST_PAUSE_S if piece.size_bytes <= PAGE_BYTES else _SHORT_PAUSE_S
            for at in range(0, len(body), step):
                await self._pause(most_s)
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

    async def _pause(self, most_s: float = _MOST_PAUSE_S) -> None:
        await asyncio.sleep(self._choices.random() * most_s)
