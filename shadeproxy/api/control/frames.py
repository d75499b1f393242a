"""Writes a batch answer: many frames are gathered into few HTTP chunks, without copying bodies.

Laws: the writer gathers a limited number of bytes, and passes them to the transport. It gathers more only
after the caller has read most of these, so a slow caller makes the proxy hold little memory. An answer that
cannot be completed is broken off, never ended. This module writes the chunked encoding itself, so that many
frames take one chunk, one write and one drain. aiohttp would need a chunk, a write and a drain for each
piece.
"""

import asyncio
import socket
import struct
from collections.abc import Sequence

import msgspec
from aiohttp import web

from shadeproxy.api.control.bodies import BATCH
from shadeproxy.api.control.errors import ErrorBody
from shadeproxy.api.s3.response import KEEPALIVE_S, unsent_bytes
from shadeproxy.core.errors import ClientTooSlow
from shadeproxy.core.tracing import ORIGIN_FIELD
from shadeproxy.core.types import Source

HEADER = struct.Struct("<IHBBQ")
"""The header of a frame: u32 index, u16 status, u8 source, u8 zero, u64 length of the content after the
header.
"""

END_INDEX = 0xFFFF_FFFF
SOURCE_NUMBERS = {
    Source.RAM: 0,
    Source.DISK: 1,
    Source.ORIGIN: 2,
    Source.COALESCED: 3,
    Source.BYPASS: 4,
}

# Bytes to gather before one write. They share the fixed cost of the write. For comparison: the kernel's
# buffer of a socket has about 200 KiB.
_GROUP_BYTES = 512 * 1024
# Frames to gather before one write. A frame usually has two buffers, its header and its content, and the
# kernel accepts at most 1,024 buffers in one call.
_GROUP_FRAMES = 256

# A transport that holds at most this many bytes accepts more without waiting.
_LITTLE_BYTES = 16 * 1024

# Size of the send buffer of a Unix socket. A full Unix socket accepts more bytes only after three quarters of
# its buffer were read. So with the usual buffer of 208 KiB, sender and reader wait for each other, and 100 KB
# take 55 us. With a buffer of this size, both work at the same time, and 100 KB take 32 us.
_NEAR_BUFFER_BYTES = 1 << 20


class FrameWriter:
    """Writes one batch answer. ``add``, ``begin``, ``extend`` and ``refuse`` gather frames. ``flush`` sends
    them.
    """

    def __init__(self, request: web.Request, request_id: str) -> None:
        self.response = web.StreamResponse(headers={"Content-Type": BATCH, ORIGIN_FIELD: request_id})
        self.response.enable_chunked_encoding()
        self._request = request
        self._parts: list[bytes | memoryview] = [b""]
        self._gathered_bytes = 0
        self._frames = 0
        self._frames_sent = 0

    @property
    def full(self) -> bool:
        """True if so much is gathered that ``flush`` should be called."""
        return self._gathered_bytes >= _GROUP_BYTES or self._frames - self._frames_sent >= _GROUP_FRAMES

    async def start(self) -> None:
        """Enlarge the send buffer if the connection is a Unix socket, and send the head of the answer."""
        transport = self._request.transport
        near = None if transport is None else transport.get_extra_info("socket")
        if near is not None and near.family == socket.AF_UNIX:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _NEAR_BUFFER_BYTES)
        await self.response.prepare(self._request)

    def add(self, index: int, source: Source, length: int, pieces: Sequence[memoryview]) -> None:
        """Gather a complete frame with status 200. ``length``: bytes of all ``pieces`` together."""
        self._parts.append(HEADER.pack(index, 200, SOURCE_NUMBERS[source], 0, length))
        self._parts += pieces
        self._gathered_bytes += HEADER.size + length
        self._frames += 1

    def begin(self, index: int, source: Source, length: int) -> None:
        """Gather the header of a frame with status 200. ``extend`` must then add its ``length`` bytes."""
        self.add(index, source, length, ())
        self._gathered_bytes -= length

    def extend(self, piece: memoryview) -> None:
        """Gather more bytes of the frame that ``begin`` has started."""
        self._parts.append(piece)
        self._gathered_bytes += len(piece)

    def refuse(self, index: int, status: int, error: ErrorBody) -> None:
        """Gather a frame that says why an item has no bytes."""
        body = msgspec.json.encode(error)
        self._parts += (HEADER.pack(index, status, SOURCE_NUMBERS[Source.BYPASS], 0, len(body)), body)
        self._gathered_bytes += HEADER.size + len(body)
        self._frames += 1

    async def flush(self) -> None:
        """Send the gathered frames, and wait until the caller has taken most of their bytes.

        Raises ConnectionError if the caller has gone, ClientTooSlow if it reads no more.
        """
        self._write()
        await self._taken()
        # Let other tasks run: a caller that reads as fast as this proxy sends would otherwise delay other
        # callers.
        await asyncio.sleep(0)

    async def end(self) -> None:
        """Send the last frame, and end the answer. Raises as ``flush``."""
        self._parts.append(HEADER.pack(END_INDEX, 0, 0, 0, self._frames))
        self._gathered_bytes += HEADER.size
        self._write()
        await self._taken()
        await self.response.write_eof()

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the caller has not taken yet, see ``ClientConnection``."""
        return unsent_bytes(self._request.transport)

    def cut(self) -> None:
        """Reset the connection, so that the caller sees that the answer broke off."""
        if self._request.transport is not None:
            self._request.transport.abort()

    async def _taken(self) -> None:
        """Wait until the transport accepts more bytes. Raises ClientTooSlow if the caller reads nothing for
        KEEPALIVE_S seconds, because such a caller holds fetched bytes and connections to the origin that
        other calls need.
        """
        waiting_bytes = self._waiting_bytes()
        if waiting_bytes <= _LITTLE_BYTES:
            return
        # The drain runs in a task, so that a timeout does not cancel it: a cancelled drain cannot be awaited
        # again.
        drain = asyncio.create_task(self._request.writer.drain())
        try:
            while not (await asyncio.wait({drain}, timeout=KEEPALIVE_S))[0]:
                before, waiting_bytes = waiting_bytes, self._waiting_bytes()
                if waiting_bytes >= before:
                    raise ClientTooSlow(f"the caller took nothing for {KEEPALIVE_S:g} s")
            await drain
        finally:
            drain.cancel()
            await asyncio.gather(drain, return_exceptions=True)

    def _waiting_bytes(self) -> int:
        transport = self._request.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def _write(self) -> None:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the caller is gone")
        if self._gathered_bytes:
            parts, self._parts = self._parts, [b""]
            parts[0] = b"%x\r\n" % self._gathered_bytes
            parts.append(b"\r\n")
            self._gathered_bytes = 0
            self._frames_sent = self._frames
            transport.writelines(parts)
