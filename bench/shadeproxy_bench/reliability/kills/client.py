"""The clients' calls in a run of kills: they read and write objects over new connections, and compare every
byte.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from shadeproxy_bench.objects import Piece
from shadeproxy_bench.reliability.kills.origin import VERSION_FIELD, body_of_version, tag_of, version_of
from shadeproxy_bench.reliability.kit.origin import Fields, fields_of

RIGHT, CUT, REFUSED, BUSY, WRONG = "right", "cut", "connection refused", "503", "wrong"
WRITTEN, UPLOAD_CUT = "written", "upload cut"
_PIECE_BYTES = 1 << 18
_PIECES = 4
_MOST_PAUSE_S = 0.06


class End(NamedTuple):
    """The end of a read or of an upload.

    ``outcome``: how it ended. ``port``: the client's own port; 0 if it could not connect. ``version``: the
    version that a read returned.
    """

    outcome: str
    port: int
    what: str
    version: int = 0


async def read(address: tuple[str, int], piece: Piece) -> End:
    """Read an object, or a range of it, over a new connection. Return how the read ended."""
    version, right = 0, "200" if piece.range_field is None else "206"
    asked = "" if piece.range_field is None else f"Range: {_range_of(piece)}\r\n"

    async def ask(reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> str:
        nonlocal version
        out.write(f"GET {piece.path} HTTP/1.1\r\nHost: localhost\r\n{asked}\r\n".encode())
        status, fields = await _head(reader)
        if status == "503":
            return BUSY
        found = version_of(piece, fields.get("etag", tag_of(piece, 0)))
        if status != right or found is None:
            return WRONG
        version, body = found, body_of_version(piece, found)
        return await _compare(reader, body) if int(fields["content-length"]) == len(body) else WRONG

    end = await _converse(address, piece, ask, CUT)
    return end._replace(version=version)


def _range_of(piece: Piece) -> str | None:
    """Return the value of the header field Range. A part at the end is asked for as the last bytes."""
    ends = 0 < piece.length == piece.size_bytes - piece.offset
    return f"bytes=-{piece.length}" if ends else piece.range_field


async def write(address: tuple[str, int], piece: Piece, version: int, choices: random.Random) -> End:
    """Upload a version of an object over a new connection, in pieces with pauses between them. Return how the
    upload ended.
    """

    async def ask(reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> str:
        fields = f"Host: localhost\r\nContent-Length: {piece.size_bytes}\r\n{VERSION_FIELD}: {version}"
        out.write(f"PUT {piece.path} HTTP/1.1\r\n{fields}\r\n\r\n".encode())
        body = body_of_version(piece, version)
        step = -(-len(body) // _PIECES)
        for at in range(0, len(body), step):
            await asyncio.sleep(choices.random() * _MOST_PAUSE_S)
            out.write(body[at : at + step])
            await out.drain()
        status, _ = await _head(reader)
        return {"200": WRITTEN, "503": BUSY}.get(status, WRONG)

    return await _converse(address, piece, ask, UPLOAD_CUT)


async def _converse(
    address: tuple[str, int],
    piece: Piece,
    ask: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[str]],
    cut: str,
) -> End:
    """Run ``ask`` over a new connection. ``cut``: the outcome if the connection breaks off meanwhile."""
    what = f"{piece.path} {piece.range_field or ''}".rstrip()
    try:
        reader, out = await asyncio.open_connection(*address, limit=_PIECE_BYTES)
    except OSError:
        return End(REFUSED, 0, what)
    port: int = out.get_extra_info("sockname")[1]
    try:
        return End(await ask(reader, out), port, what)
    except (asyncio.IncompleteReadError, ConnectionError):
        return End(cut, port, what)
    finally:
        out.transport.abort()


async def _head(reader: asyncio.StreamReader) -> tuple[str, Fields]:
    """Return the status and the header fields of an answer. Raises IncompleteReadError if the head breaks
    off.
    """
    line, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
    return line.split(" ")[1], fields_of(lines)


async def _compare(reader: asyncio.StreamReader, body: memoryview) -> str:
    """Read the body of an answer, and return whether it is RIGHT or WRONG. Raises ConnectionError if it
    breaks off.
    """
    got = 0
    while got < len(body):
        data = await reader.read(_PIECE_BYTES)
        if not data:
            raise ConnectionResetError
        if data != body[got : got + len(data)]:
            return WRONG
        got += len(data)
    return RIGHT
