"""A small HTTP/1.1 client for asyncio. It keeps connections open, and never repeats a request."""

import asyncio
import random
from collections.abc import Sequence
from typing import Final, NamedTuple

from shadeproxy_bench.reliability.cluster.network import Connect, Streams, connect_on_loopback
from shadeproxy_bench.reliability.kit.origin import Fields, fields_of

HUNG_S: Final = 45.0
"""Seconds after which a request without a complete answer counts as hung. With short leases, even the longest
fault is far shorter. A run adds ``HUNG_LEASES`` leases, because an answer may take longer with long leases. A
link is cut for up to ten leases, and TCP then repeats a lost packet late. The product waits 60 s for the
answer to a relayed write.
"""
HUNG_LEASES: Final = 10
REFUSED, CUT, HUNG = "connection refused", "cut", "hung"
_MOST_PAUSE_S = 0.3


class Answer(NamedTuple):
    """An answer to a request. If no answer came, ``status`` is 0, and ``failure`` says why."""

    status: int
    fields: Fields
    body: bytes
    failure: str = ""


class Connections:
    """The open connections of one client, one for each port. The client sends one request after another."""

    def __init__(
        self, choices: random.Random, connect: Connect = connect_on_loopback, hung_s: float = HUNG_S
    ) -> None:
        self._kept: dict[int, Streams] = {}
        self._choices = choices
        self._connect = connect
        self._hung_s = hung_s

    async def ask(
        self,
        port: int,
        method: str,
        target: str,
        fields: Fields | None = None,
        body: bytes = b"",
        *,
        pauses: int = 0,
    ) -> Answer:
        """Make a request, and return the answer. ``pauses``: number of pauses in the upload of the body."""
        lines = [f"{method} {target} HTTP/1.1", f"Host: 127.0.0.1:{port}"]
        lines += [f"{name}: {value}" for name, value in (fields or {}).items()]
        if body or method in {"PUT", "POST"}:
            lines.append(f"Content-Length: {len(body)}")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode()
        try:
            async with asyncio.timeout(self._hung_s):
                return await self._exchange(port, method, [head, *_pieces(body, pauses)])
        except TimeoutError:
            self._forget(port)
            return Answer(0, {}, b"", HUNG)
        except ConnectionRefusedError:
            return Answer(0, {}, b"", REFUSED)
        except (asyncio.IncompleteReadError, OSError):
            self._forget(port)
            return Answer(0, {}, b"", CUT)

    def close(self) -> None:
        for port in list(self._kept):
            self._forget(port)

    async def _exchange(self, port: int, method: str, pieces: Sequence[bytes]) -> Answer:
        reader, out = await self._connection(port)
        for place, piece in enumerate(pieces):
            if place > 1:
                await asyncio.sleep(self._choices.random() * _MOST_PAUSE_S)
            out.write(piece)
            await out.drain()
        line, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
        status, fields = int(line.split(" ")[1]), fields_of(lines)
        bodiless = method == "HEAD" or status in {204, 304}
        body = b"" if bodiless else await _body(reader, fields)
        if fields.get("connection", "").lower() == "close":
            self._forget(port)
        return Answer(status, fields, body)

    async def _connection(self, port: int) -> Streams:
        kept = self._kept.get(port)
        if kept is not None and (kept[0].at_eof() or kept[1].is_closing()):
            self._forget(port)
        if port not in self._kept:
            self._kept[port] = await self._connect(port)
        return self._kept[port]

    def _forget(self, port: int) -> None:
        kept = self._kept.pop(port, None)
        if kept is not None:
            kept[1].transport.abort()


def _pieces(body: bytes, pauses: int) -> list[bytes]:
    step = max(1, -(-len(body) // (pauses + 1)))
    return [body[at : at + step] for at in range(0, len(body), step)]


async def _body(reader: asyncio.StreamReader, fields: Fields) -> bytes:
    if "content-length" in fields:
        return await reader.readexactly(int(fields["content-length"]))
    body = bytearray()
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        body += (await reader.readexactly(size + 2))[:-2]
        if not size:
            return bytes(body)
