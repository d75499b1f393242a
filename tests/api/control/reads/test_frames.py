"""Batch frames on a Unix socket: how far the proxy may send ahead of a caller that has not read yet."""

import asyncio
import fcntl
import socket
import struct
import termios
from pathlib import Path

import pytest
from aiohttp import web

from shadeproxy.api.control.frames import FrameWriter
from shadeproxy.core.types import Source

BODY = memoryview(bytes(range(250)) * 8)
COUNT = 500
DEFAULT_BYTES = int(Path("/proc/sys/net/core/wmem_default").read_text())


def waiting_bytes(near: socket.socket) -> int:
    """Return the number of bytes that were sent to the caller, and that the caller has not read yet."""
    raw = fcntl.ioctl(near, termios.FIONREAD, bytes(4))
    return int(struct.unpack("i", raw)[0])


@pytest.mark.skipif(
    int(Path("/proc/sys/net/core/wmem_max").read_text()) < DEFAULT_BYTES, reason="no bigger buffer allowed"
)
async def test_more_than_the_usual_buffer_is_sent_before_the_caller_reads(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        frames = FrameWriter(request, "0")
        await frames.start()
        for index in range(COUNT):
            frames.add(index, Source.RAM, len(BODY), [BODY])
            if frames.full:
                await frames.flush()
        await frames.end()
        return frames.response

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    path = tmp_path / "near.sock"
    await web.UnixSite(runner, path).start()
    try:
        with socket.socket(socket.AF_UNIX) as near:
            near.connect(str(path))
            near.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            async with asyncio.timeout(20):
                # A buffer of the default size may hold one piece more than its size, but not half as much
                # again.
                while waiting_bytes(near) <= 1.5 * DEFAULT_BYTES:
                    await asyncio.sleep(0.01)
    finally:
        await runner.cleanup()
