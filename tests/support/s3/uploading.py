"""An S3 server that records writes, and whose answers follow a script."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from tests.support.s3.scripted import CUT, PAUSE, WAIT, ScriptedServer

_CHANGING = {"authorization", "host", "x-amz-date", "x-shade-proxy", "x-shade-request-id"}
PUT_ANSWER = b'HTTP/1.1 200 OK\r\nETag: "new"\r\nContent-Length: 0\r\n\r\n'


class Recorded(NamedTuple):
    """One request as the server received it. ``is_whole``: whether its body came to the end."""

    line: str
    fields: tuple[tuple[str, str], ...]
    body: bytes
    is_whole: bool


class RecordingServer(ScriptedServer):
    """Records requests that are no plain reads, and answers them with the steps of ``answers``.

    The keys of ``answers`` are method and target. GETs without an entry are answered as by a ScriptedServer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[Recorded] = []
        self.answers: dict[str, Sequence[bytes | str]] = {}
        self.arrived = asyncio.Event()
        """Set when the first bytes of a body have come."""
        self.open_now = self.most_open = 0
        """The number of requests that are under way now, and the highest number at one time."""

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        line, *rest = head[:-4].split("\r\n")
        method, target, _ = line.split(" ")
        pairs = [(name.lower(), value) for name, _, value in (one.partition(": ") for one in rest)]
        fields = dict(pairs)
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        try:
            body, is_whole = await self._body(reader, int(fields.get("content-length", 0)))
            if method not in {"GET", "HEAD"} or f"{method} {target}" in self.answers:
                kept = tuple(sorted(pair for pair in pairs if pair[0] not in _CHANGING))
                self.recorded.append(Recorded(line, kept, body, is_whole))
            steps = self.answers.get(f"{method} {target}") if is_whole else [CUT]
            for step in self._answer(method, target, fields) if steps is None else steps:
                if step == CUT:
                    return False
                if step == WAIT:
                    self.reached.set()
                    await self.go_on.wait()
                elif step == PAUSE:
                    await asyncio.sleep(0.004)
                else:
                    assert isinstance(step, bytes)
                    writer.write(step)
                    await writer.drain()
        finally:
            self.open_now -= 1
        return True

    async def _body(self, reader: asyncio.StreamReader, length: int) -> tuple[bytes, bool]:
        body = b""
        while len(body) < length:
            piece = await reader.read(length - len(body))
            if not piece:
                return body, False
            body += piece
            self.arrived.set()
        return body, True
