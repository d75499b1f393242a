"""A program that runs a proxy and its clients in one process.

It writes to ``waste`` which objects are left for the garbage collector.
"""

import asyncio
import gc
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import FrameType

import uvloop

import shadeproxy
from shadeproxy.app.proxy import Proxy
from shadeproxy.config import Settings

# The whole path of the package, because a folder above it may have the package's name.
PRODUCT = f"{Path(shadeproxy.__file__).parent}/"
BODY = bytes(range(256)) * 1200
HEAD = b'HTTP/1.1 200 OK\r\nContent-Length: %d\r\nETag: "e"\r\n\r\n' % len(BODY)
MISSING = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


async def origin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with whole bodies. For some keys, send half of a body, and then end the connection or stay
    silent.
    """
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            request = await reader.readuntil(b"\r\n\r\n")
            if b"missing" in request:
                writer.write(MISSING)
                continue
            half = b"cut" in request or b"silent" in request
            writer.write(HEAD + (BODY[: len(BODY) // 2] if half else BODY))
            await writer.drain()
            if b"cut" in request:
                break
    writer.close()


async def ask(address: str, key: str, *, take: int) -> None:
    """Send a GET, and leave when ``take`` bytes of the body have come."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET /data/{key} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(take)
    writer.transport.abort()


async def use(address: str, turn: int) -> None:
    for key, take in (
        (f"whole-{turn}", len(BODY)),
        (f"whole-{turn}", len(BODY)),
        (f"whole-{turn}", 1000),
        (f"left-{turn}", 1000),
        (f"silent-{turn}", 1000),
        (f"cut-{turn}", len(BODY)),
        (f"missing-{turn}", 0),
    ):
        await ask(address, key, take=take)


def name_of(thing: object) -> str:
    """Return the name of a frame or of an object if it is of the product, else ""."""
    if isinstance(thing, FrameType):
        code = thing.f_code
        return f"frame {code.co_qualname}" if code.co_filename.startswith(PRODUCT) else ""
    kind = type(thing)
    return kind.__qualname__ if kind.__module__.startswith("shadeproxy") else ""


async def main(directory: str) -> None:
    server = await asyncio.start_server(origin, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = [
        "s3.listen=127.0.0.1:0",
        "control.listen=127.0.0.1:0",
        f"origin.endpoint=http://127.0.0.1:{port}",
        "origin.credentials.source=anonymous",
        "origin.retry.attempts=1",
        f"cache.ram.path={directory}/ram",
        "cache.ram.capacity=64 MiB",
        "cache.disk.capacity=0",
        f"state.path={directory}/state",
    ]
    proxy = Proxy(Settings.load(None, settings))
    await proxy.start()
    await use(proxy.s3_address, 0)
    await asyncio.sleep(0.1)
    gc.collect()
    gc.disable()
    for turn in range(1, 6):
        await use(proxy.s3_address, turn)
    await asyncio.sleep(0.1)
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    names = Counter(name for name in map(name_of, gc.garbage) if name)
    gc.set_debug(0)
    gc.garbage.clear()
    server.close()
    await proxy.stop()
    (Path(directory) / "waste").write_text(
        "".join(f"{count} {name}\n" for name, count in names.most_common())
    )


uvloop.run(main(sys.argv[1]))
