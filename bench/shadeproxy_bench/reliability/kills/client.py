"""A client of the kills: it reads objects over new connections, and compares every byte."""

import asyncio
from typing import NamedTuple

from shadeproxy_bench.objects import Piece
from shadeproxy_bench.reliability.kit.origin import fields_of

RIGHT, CUT, REFUSED, BUSY, WRONG = "right", "cut", "connection refused", "503", "wrong"
_PIECE_BYTES = 1 << 18


class End(NamedTuple):
    """The end of a read. ``port``: the client's own, 0 if it did not connect."""

    outcome: str
    port: int
    what: str


async def read(address: tuple[str, int], piece: Piece) -> End:
    """Read an object over a new connection."""
    try:
        reader, out = await asyncio.open_connection(*address, limit=_PIECE_BYTES)
    except OSError:
        return End(REFUSED, 0, piece.path)
    port: int = out.get_extra_info("sockname")[1]
    try:
        out.write(f"GET {piece.path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return End(await _judge(reader, piece), port, piece.path)
    except (asyncio.IncompleteReadError, ConnectionError):
        return End(CUT, port, piece.path)
    finally:
        out.transport.abort()


async def _judge(reader: asyncio.StreamReader, piece: Piece) -> str:
    """Return the outcome of an answer. Raises IncompleteReadError and ConnectionError where it breaks off."""
    line, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
    if line.split(" ")[1] == "503":
        return BUSY
    body, got = piece.body(), 0
    if line.split(" ")[1] != "200" or int(fields_of(lines)["content-length"]) != len(body):
        return WRONG
    while got < len(body):
        data = await reader.read(_PIECE_BYTES)
        if not data:
            raise ConnectionResetError
        if data != body[got : got + len(data)]:
            return WRONG
        got += len(data)
    return RIGHT
