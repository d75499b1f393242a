"""One connection of a plain HTTP/1.1 server for measurements: one request after another, in order."""

import asyncio
from collections.abc import Awaitable, Callable

Fields = dict[str, str]
"""Header fields by lower-case name."""
Answer = Callable[[str, str, Fields, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""(method, target, fields, reader behind the head, writer for the answer)."""


async def serve_exchanges(reader: asyncio.StreamReader, out: asyncio.StreamWriter, answer: Answer) -> None:
    """Serve a connection until the client closes it."""
    try:
        while True:
            first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
            pairs = (line.partition(":") for line in lines)
            fields = {name.lower(): value.strip() for name, _, value in pairs}
            method, target, _ = first.split(" ", 2)
            await answer(method, target, fields, reader, out)
            await out.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        out.close()
