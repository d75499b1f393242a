"""Decodes `aws-chunked` bodies, signed and unsigned, with and without trailers.

Law: data is yielded while its chunk is still arriving, so only the arriving pieces take memory. If the
signature of a chunk is wrong, an error is raised at the end of the chunk. The caller holds back the last
piece of the body until ``pieces`` has ended without an error, so the origin never gets all of a wrong body.
Source: "Signature calculations for the Authorization header: transferring payload in multiple chunks", with
and without trailing headers, in the S3 API reference.
"""

import asyncio
import hashlib
import hmac
import itertools
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import NamedTuple

from shadeproxy.api.s3.auth.clients import ChunkSeed
from shadeproxy.core.errors import MalformedBody, SignatureMismatch
from shadeproxy.core.sigv4 import EMPTY_SHA256

_MAX_LINE_BYTES = 8192
_MAX_TRAILERS = 16
_CHUNKS_AT_ONCE = 64
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,16})(?:;chunk-signature=([0-9a-f]{64}))?")
_TRAILER_SIGNATURE = "x-amz-trailer-signature"


class Framing(NamedTuple):
    """The framing of a body. ``signed``: each chunk has a signature. ``trailing``: trailing fields follow."""

    signed: bool
    trailing: bool


class ChunkVerifier:
    """Checks the chain of chunk signatures, which begins with the signature of the request's head."""

    def __init__(self, seed: ChunkSeed) -> None:
        self._seed = seed
        self._previous = seed.signature

    def check_chunk(self, digest: str, given: str) -> None:
        """Check the signature of a chunk whose hex SHA-256 is ``digest``. Raises SignatureMismatch."""
        self._check("AWS4-HMAC-SHA256-PAYLOAD", f"{EMPTY_SHA256}\n{digest}", given)

    def check_trailer(self, trailers: Mapping[str, str], given: str) -> None:
        """Check the signature of the trailing fields. Raises SignatureMismatch."""
        text = "".join(f"{name}:{value}\n" for name, value in trailers.items())
        self._check("AWS4-HMAC-SHA256-TRAILER", hashlib.sha256(text.encode()).hexdigest(), given)

    def _check(self, algorithm: str, rest: str, given: str) -> None:
        seed = self._seed
        to_sign = f"{algorithm}\n{seed.amz_date}\n{seed.scope}\n{self._previous}\n{rest}"
        computed = hmac.digest(seed.signing_key, to_sign.encode(), "sha256").hex()
        if not hmac.compare_digest(computed.encode(), given.encode()):
            raise SignatureMismatch("The signature of a chunk of the body does not match its content")
        self._previous = computed


class ChunkedDecoder:
    """Decodes a body. ``trailers``: the trailing fields, with lower-case names, once ``pieces`` has ended.

    ``verifier``: checks signatures; None for an anonymous request, because there is no key to check them
    with.
    """

    def __init__(
        self, source: AsyncIterator[bytes], framing: Framing, verifier: ChunkVerifier | None
    ) -> None:
        self.trailers: dict[str, str] = {}
        self._source = source
        self._framing = framing
        self._verifier = verifier
        self._buffer = bytearray()

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the decoded body. Raises MalformedBody, SignatureMismatch."""
        for number in itertools.count(1):
            if not number % _CHUNKS_AT_ONCE:
                # Many short chunks may have arrived together, and to decode them must not hold up the loop.
                await asyncio.sleep(0)
            size, given = _parse_chunk_line(await self._line())
            if self._framing.signed and not given:
                raise MalformedBody("A chunk of the body carries no signature")
            digest = hashlib.sha256()
            remaining = size
            while remaining:
                piece = await self._take(remaining)
                remaining -= len(piece)
                if self._verifier is not None:
                    digest.update(piece)
                yield piece
            if self._verifier is not None:
                self._verifier.check_chunk(digest.hexdigest(), given)
            if size == 0:
                break
            if await self._line():
                raise MalformedBody("A chunk of the body is longer than it says")
        await self._read_trailers()
        await self._expect_end()

    async def _read_trailers(self) -> None:
        """Read the trailing fields, and the empty line that ends the body."""
        while line := await self._line(end_allowed=True):
            name, separator, value = line.decode("utf-8", "replace").partition(":")
            name = name.strip().lower()
            if not separator or name in self.trailers or len(self.trailers) >= _MAX_TRAILERS:
                raise MalformedBody("The trailer of the body cannot be understood")
            self.trailers[name] = value.strip()
        given = self.trailers.pop(_TRAILER_SIGNATURE, "")
        if self._framing.trailing and self._verifier is not None:
            self._verifier.check_trailer(self.trailers, given)

    async def _expect_end(self) -> None:
        # Some clients send additional empty lines after the body.
        while not self._buffer.strip():
            self._buffer.clear()
            if not await self._more():
                return
        raise MalformedBody("The body goes on after its last chunk")

    async def _line(self, *, end_allowed: bool = False) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > _MAX_LINE_BYTES:
                raise MalformedBody("A chunk header of the body is too long")
            if not await self._more():
                if end_allowed and not self._buffer:
                    return b""
                raise MalformedBody("The chunked body ended early")
        line = bytes(self._buffer[:end])
        # Deleting at the front of a bytearray is cheap: it moves an offset and copies no bytes.
        del self._buffer[: end + 2]
        return line

    async def _take(self, limit: int) -> bytes:
        if not self._buffer and not await self._more():
            raise MalformedBody("The chunked body ended early")
        taken = bytes(self._buffer[:limit])
        del self._buffer[:limit]
        return taken

    async def _more(self) -> bool:
        piece = await anext(self._source, None)
        if piece is None:
            return False
        self._buffer += piece
        return True


def _parse_chunk_line(line: bytes) -> tuple[int, str]:
    match = _CHUNK.fullmatch(line)
    if match is None:
        raise MalformedBody("A chunk header of the body cannot be understood")
    return int(match[1], 16), (match[2] or b"").decode()
