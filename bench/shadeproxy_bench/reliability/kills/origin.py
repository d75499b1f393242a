"""A slow S3 origin that counts how often each page was asked for, and what was under way.

Objects can be overwritten. The body of version v of object n is the body of object n + v in
``bench.objects``, so numbers of overwritten objects are ``VERSIONS`` apart.
"""

import asyncio
import random
from collections import Counter

from shadeproxy_bench.objects import BUCKET, Piece, body_of, parse_key
from shadeproxy_bench.reliability.kit.origin import (
    Fields,
    answer_of,
    described,
    error_of,
    fields_of,
    head_of,
    list_buckets_of,
    span_of,
)

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
    """Return the version with the ETag ``tag``; None if it is no ETag of this object."""
    version = int(tag.strip('"'), 16) - piece.number
    return version if 0 <= version < VERSIONS and tag == tag_of(piece, version) else None


class PacedOrigin:
    """Serves the objects of ``bench.objects``, each body in pieces with random pauses between them."""

    def __init__(self, choices: random.Random) -> None:
        self.gets: Counter[tuple[int, int]] = Counter()
        """Requests by number of the object and number of the page."""
        self.under_way: set[int] = set()
        """The proxy's ports of connections whose answers are not finished."""
        self.versions: Counter[int] = Counter()
        """The current version of each object, by its number."""
        self.uploading: set[int] = set()
        """The proxy's ports of connections whose uploads are not answered."""
        self.damaged: list[str] = []
        """Uploads whose whole body came, but was another one."""
        self._choices = choices

    async def serve(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
                method, target, _ = first.split(" ", 2)
                fields = fields_of(lines)
                if method == "PUT":
                    await self._store(target, fields, reader, out)
                else:
                    await self._answer(method, target, fields.get("range"), out)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            out.close()

    async def _answer(self, method: str, target: str, span: str | None, out: asyncio.StreamWriter) -> None:
        found = parse_key(target.removeprefix(f"/{BUCKET}/"))
        if target == "/":
            listing = list_buckets_of(BUCKET)
            out.writelines((head_of("200 OK", len(listing), {}), listing))
            return
        if found is None:
            out.writelines(error_of("404 Not Found", "NoSuchKey", method))
            return
        size_bytes, number = found
        piece = Piece(size_bytes, number)
        version = self.versions[number]
        start, stop = span_of(span, size_bytes)
        self.gets[number, start // PAGE_BYTES] += 1
        port: int = out.get_extra_info("peername")[1]
        self.under_way.add(port)
        try:
            status, fields = described(
                start, stop, size_bytes, tag_of(piece, version), ranged=span is not None
            )
            await asyncio.sleep(self._choices.random() * _MOST_PAUSE_S)
            out.write(head_of(status, stop - start, fields))
            body = body_of_version(piece, version)[start:stop] if method == "GET" else memoryview(b"")
            step = max(1, -(-len(body) // _PIECES))
            for at in range(0, len(body), step):
                await asyncio.sleep(self._choices.random() * _MOST_PAUSE_S)
                out.write(body[at : at + step])
                await out.drain()
        finally:
            self.under_way.discard(port)

    async def _store(
        self, target: str, fields: Fields, reader: asyncio.StreamReader, out: asyncio.StreamWriter
    ) -> None:
        """Take a version as the current one when its last byte has come, and answer after a pause."""
        found = parse_key(target.removeprefix(f"/{BUCKET}/"))
        assert found is not None, target
        piece, version = Piece(*found), int(fields[VERSION_FIELD])
        port: int = out.get_extra_info("peername")[1]
        self.uploading.add(port)
        try:
            body = await reader.readexactly(int(fields["content-length"]))
            if body != body_of_version(piece, version):
                self.damaged.append(f"{target}, version {version}")
            self.versions[piece.number] = version
            await asyncio.sleep(self._choices.random() * _MOST_PAUSE_S)
            out.writelines(answer_of("200 OK", b"", {"ETag": tag_of(piece, version)}))
            await out.drain()
        finally:
            self.uploading.discard(port)
