"""An HTTP server whose answers a test prepares."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def answering(*answers: str | None) -> AsyncIterator[tuple[str, list[tuple[str, bytes]]]]:
    """Run a server that reads each request whole, and sends the next of ``answers``. For an answer of None,
    it closes the connection after the head.

    Yield the server's URL, and a list of the heads and bodies that it has received.
    """
    asked, left = list[tuple[str, bytes]](), list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while left:
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            answer = left.pop(0)
            length = re.search(r"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
            body = await reader.readexactly(int(length[1])) if answer is not None and length else b""
            asked.append((head, body))
            if answer is None:
                break
            writer.write(answer.encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()


def error(status, code="", extra=""):
    """Return an answer of an S3 server. If a code is given, the body is an error document with this code."""
    body = f"<Error><Code>{code}</Code><Message>text</Message></Error>" if code else ""
    return f"HTTP/1.1 {status} X\r\n{extra}Content-Length: {len(body)}\r\n\r\n{body}"
