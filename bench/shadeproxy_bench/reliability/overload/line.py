"""One connection of a client that signs its requests. Each body is compared with the body that is computed
from the object's key.
"""

import asyncio
import time
from typing import NamedTuple

from shadeproxy.core.sigv4 import EMPTY_SHA256, UNSIGNED_PAYLOAD, Credentials
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.reliability.kit.origin import fields_of
from shadeproxy_bench.reliability.overload.told import CUT, HASTY, REFUSED, SLOW_DOWN, WRONG, Tally
from shadeproxy_bench.requests import head_of, signature_of

Address = tuple[str, int]
_LIMIT_BYTES = 1 << 18
_SLOW_DOWN_S = 1.0


class Answer(NamedTuple):
    """The head of an answer. ``fields``: header fields by lower-case name."""

    status: int
    fields: dict[str, str]

    @property
    def length(self) -> int:
        return int(self.fields.get("content-length", 0))


class Line:
    """A connection of one client to one address. When it is used after it was closed, it is opened again."""

    def __init__(self, address: Address, key: Credentials) -> None:
        self._address = address
        self._key = key
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None or self._streams[1].is_closing():
            self._streams = await asyncio.open_connection(*self._address, limit=_LIMIT_BYTES)
        return self._streams

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    def head(self, method: str, path: str, length: int | None = None) -> bytes:
        """Return a signed head of a request. ``length``: length of the body, whose bytes are not signed;
        None: the request has no body.
        """
        host = f"{self._address[0]}:{self._address[1]}"
        hashed = EMPTY_SHA256 if length is None else UNSIGNED_PAYLOAD
        signed = signature_of(method, path, host, payload_hash=hashed, credentials=self._key)
        size = [] if length is None else [("Content-Length", str(length))]
        return head_of(method, path, [("Host", host), *signed, *size])

    async def answer(self) -> Answer:
        """Read the head of the next answer."""
        reader, _ = await self.open()
        first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
        return Answer(int(first.split(" ")[1]), fields_of(lines))

    async def get(self, piece: Piece, tally: Tally) -> bool:
        """Read an object once, and count the outcome. After a 503, wait. Return whether the answer was
        right.
        """
        began_s = time.monotonic()
        try:
            reader, writer = await self.open()
            writer.write(self.head("GET", piece.path))
            answer = await self.answer()
            if answer.status == 200:
                if not await _is_body(reader, piece.body()):
                    tally.outcomes[WRONG] += 1
                    self.close()
                    return False
                tally.right(time.monotonic() - began_s)
                return True
            text = await reader.readexactly(answer.length)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            tally.outcomes[CUT] += 1
            self.close()
            return False
        tally.outcomes[outcome_of(answer, text)] += 1
        if answer.fields.get("connection", "").lower() == "close":
            self.close()
        if answer.status == 503:
            await asyncio.sleep(_SLOW_DOWN_S)
        return False


def outcome_of(answer: Answer, text: bytes) -> str:
    """Return the name under which an answer other than 200 is counted."""
    if answer.status == 503:
        return SLOW_DOWN if b"SlowDown" in text and answer.fields.get("retry-after") else HASTY
    return f"{REFUSED} {answer.status}"


async def _is_body(reader: asyncio.StreamReader, body: memoryview) -> bool:
    at = 0
    while at < len(body):
        piece = await reader.read(min(_LIMIT_BYTES, len(body) - at))
        if not piece:
            raise asyncio.IncompleteReadError(piece, len(body) - at)
        if piece != bytes(body[at : at + len(piece)]):
            return False
        at += len(piece)
    return True
