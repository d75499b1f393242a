"""S3 origins that stream bodies, for the long runs. Each connection answers its requests one after
another.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from shadeproxy_bench.listening import serve
from shadeproxy_bench.reliability.kit.origin import Fields, described, document, fields_of, head_of, span_of


class Exchange(NamedTuple):
    """A request, and the writer for its answer. Its head has been read, so ``reader`` yields its body
    next.
    """

    method: str
    target: str
    fields: Fields
    reader: asyncio.StreamReader
    out: asyncio.StreamWriter

    @property
    def length(self) -> int:
        """Length of the request's body in bytes."""
        return int(self.fields.get("content-length", 0))

    @property
    def port(self) -> int:
        """The client's port, at the other end of the connection."""
        return int(self.out.get_extra_info("peername")[1])


class StreamingOrigin:
    """All connections of one origin. ``piece_bytes``: size of the pieces in which bodies are read and
    written.
    """

    piece_bytes = 1 << 20

    async def answer(self, asked: Exchange) -> None:
        """Answer one request. Subclasses define this."""
        raise NotImplementedError

    async def serve_connection(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        """Serve a connection until the client closes it."""
        try:
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
                method, target, _ = first.split(" ", 2)
                await self.answer(Exchange(method, target, fields_of(lines), reader, out))
                await out.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            out.close()

    async def serve(self) -> None:
        """Print a free port of loopback, and serve there until cancelled."""

        def connection() -> asyncio.BaseProtocol:
            reader = asyncio.StreamReader(limit=self.piece_bytes // 2)
            return asyncio.StreamReaderProtocol(reader, self.serve_connection)

        await serve(connection)


async def pieces_of(asked: Exchange, piece_bytes: int) -> AsyncIterator[bytes]:
    """Yield the body of a request in pieces as they arrive. Raises ConnectionResetError if the body ends
    early.
    """
    left = asked.length
    while left:
        piece = await asked.reader.read(min(piece_bytes, left))
        if not piece:
            raise ConnectionResetError("the upload was given up")
        left -= len(piece)
        yield piece


def say(out: asyncio.StreamWriter, status: str, body: bytes = b"", more: Fields | None = None) -> None:
    """Write a whole answer, head and body."""
    out.write(head_of(status, len(body), more or {}) + body)


def refuse(out: asyncio.StreamWriter, status: str, code: str) -> None:
    """Write an error answer with its XML document."""
    say(out, status, document(f"<Error><Code>{code}</Code></Error>"), {"Content-Type": "application/xml"})


def begin_object(out: asyncio.StreamWriter, span: str | None, size_bytes: int, tag: str) -> tuple[int, int]:
    """Write the head of an answer with an object or a range of it. Return the bytes [start, stop) of the
    object that must follow.
    """
    start, stop = span_of(span, size_bytes)
    status, fields = described(start, stop, size_bytes, tag, ranged=span is not None)
    out.write(head_of(status, stop - start, fields))
    return start, stop
