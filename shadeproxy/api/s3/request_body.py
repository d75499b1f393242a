"""The body of a request, as its bytes arrive on a client's connection.

Laws: each byte that arrives belongs to the body or to the next request, never to both. The connection gives
the body its bytes in the order in which they arrive. While many bytes wait for the reader of the body, none
are read from the client.
"""

import asyncio
import re
from collections import deque
from typing import Protocol

from shadeproxy.api.s3.head import TOKEN, Head
from shadeproxy.core.errors import BodyIncomplete

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_MOST_WAITING_BYTES = 256 * 1024
# The line with the size of a chunk. Zeros may stand before the size, and any text in an extension.
_SIZE = re.compile(rb"0*([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t -~\x80-\xff]*)?\r\n")
_TRAILER = re.compile(rb"%b:[\t -~\x80-\xff]*\r\n" % TOKEN.encode())
_MOST_LINE_BYTES = 16 * 1024
_MOST_TRAILER_BYTES = 64 * 1024
_MOST_LINES = 256
"""Most lines of a chunked body that are taken in one turn of the event loop, because one read may have 87,000
of them. A chunk has two.
"""


class Coding(Protocol):
    """The coding by which a body is sent. ``is_over``: True once the whole body was taken. ``is_broken``:
    True if the bytes do not follow the coding. The end of the body is never found then.
    """

    is_over: bool
    is_broken: bool

    def take(self, data: bytes, content: list[bytes]) -> int:
        """Take bytes that have arrived, and append what they hold to ``content``. Return how many were taken:
        all up to the end of the body, or fewer if the rest is for a later turn of the event loop.
        """
        ...


class LengthCoding:
    """The coding of a body whose length is known. ``left_bytes``: bytes that are still to come."""

    is_broken = False

    def __init__(self, left_bytes: int) -> None:
        self.is_over = not left_bytes
        self._left_bytes = left_bytes

    def take(self, data: bytes, content: list[bytes]) -> int:
        """Take bytes that have arrived. Return how many of them belong to the body."""
        count = min(len(data), self._left_bytes)
        if count:
            content.append(data[:count])
            self._left_bytes -= count
            self.is_over = not self._left_bytes
        return count


class ChunkedCoding:
    """The chunked transfer coding (RFC 9112 section 7.1). Trailing fields are dropped."""

    def __init__(self) -> None:
        self.is_over = self.is_broken = False
        self._left_bytes = 0
        """Bytes of the arriving chunk that are still to come."""
        self._line = b""
        """The bytes of an incomplete line."""
        self._ends_chunk = False
        """True if the next line is the line end behind a chunk."""
        self._trailer_bytes: int | None = None
        """Bytes of the trailing fields so far; None before them."""

    def take(self, data: bytes, content: list[bytes]) -> int:
        """Take bytes that have arrived, of at most _MOST_LINES lines. Return how many."""
        at, lines = 0, 0
        while at < len(data) and not self.is_over:
            if self.is_broken:
                return len(data)
            if self._left_bytes:
                piece = data[at : at + self._left_bytes]
                content.append(piece)
                self._left_bytes -= len(piece)
                at += len(piece)
                continue
            if lines == _MOST_LINES:
                return at
            end = data.find(b"\n", at) + 1 or len(data)
            self._line += data[at:end]
            at, lines = end, lines + 1
            if self._line.endswith(b"\n"):
                line, self._line = self._line, b""
                self._take_line(line)
            elif len(self._line) > _MOST_LINE_BYTES:
                self.is_broken = True
        return at

    def _take_line(self, line: bytes) -> None:
        if self._ends_chunk:
            self._ends_chunk, self.is_broken = False, line != b"\r\n"
        elif self._trailer_bytes is not None:
            self._trailer_bytes += len(line)
            self.is_over = line == b"\r\n"
            is_field = self.is_over or _TRAILER.fullmatch(line) is not None
            self.is_broken = not is_field or self._trailer_bytes > _MOST_TRAILER_BYTES
        elif (size := _SIZE.fullmatch(line)) is None:
            self.is_broken = True
        elif count := int(size[1], 16):
            self._left_bytes, self._ends_chunk = count, True
        else:
            self._trailer_bytes = 0


class BodyConnection(Protocol):
    """The methods of a client's connection that the body of its request calls."""

    @property
    def transport(self) -> asyncio.Transport | None:
        """The client's transport; None after the connection has ended."""
        ...

    def body_full(self, *, full: bool) -> None:
        """Stop reading from the client if ``full``, because many bytes wait for the reader of the body; else
        resume.
        """
        ...

    def body_over(self, rest: bytes) -> None:
        """Note that the whole body has arrived. ``rest``: bytes behind it, which belong to the next
        request.
        """
        ...


class ClientBody:
    """The body that follows ``head`` on ``connection``. It is read once."""

    def __init__(self, head: Head, connection: BodyConnection) -> None:
        self.is_over = head.body_bytes == 0
        """True if the whole body has arrived."""
        self._connection = connection
        self._coding: Coding = ChunkedCoding() if head.body_bytes is None else LengthCoding(head.body_bytes)
        self.expects_go, self._is_empty = head.awaits_go, head.body_bytes == 0
        """``expects_go``: True until the interim answer is sent, if the client expects one."""
        self._pieces: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._untaken = b""
        """Bytes that have arrived, and that the coding takes in a later turn of the event loop."""
        self._is_full = self._is_dropped = False
        self._arrival: asyncio.Future[None] | None = None

    @property
    def is_read(self) -> bool:
        """True if the reader has got the whole body."""
        return self.is_over and not self._pieces

    @property
    def awaits_go(self) -> bool:
        """True if the client waits for an interim answer before it sends the body. The body may be empty:
        without this answer, botocore waits for ever for the answer to its next upload on the connection.
        """
        return self.expects_go and (self._is_empty or not self.is_read)

    def take(self, data: bytes) -> None:
        """Take bytes that have arrived. Call it until ``is_over``."""
        if self._untaken:
            self._untaken += data
            return
        content: list[bytes] = []
        count = self._coding.take(data, content)
        self.is_over = self._coding.is_over
        if content and not self._is_dropped:
            piece = content[0] if len(content) == 1 else b"".join(content)
            self._pieces.append(piece)
            self._waiting_bytes += len(piece)
        if self.is_over:
            self._connection.body_over(data[count:])
        else:
            if count < len(data):
                self._untaken = data[count:]
                asyncio.get_running_loop().call_soon(self._take_on)
            if not self._is_full and (self._untaken or self._waiting_bytes >= _MOST_WAITING_BYTES):
                self._is_full = True
                self._connection.body_full(full=True)
        if self._arrival is not None and (self._pieces or self.is_over or self._coding.is_broken):
            if not self._arrival.done():
                self._arrival.set_result(None)
            self._arrival = None

    def _take_on(self) -> None:
        data, self._untaken = self._untaken, b""
        self.take(data)
        self._read_on()

    async def invite(self) -> None:
        """Send the interim answer for which the client waits."""
        self.expects_go, transport = False, self._connection.transport
        if transport is not None and not transport.is_closing():
            transport.write(CONTINUE)

    def next_now(self) -> bytes | None:
        """Return the next bytes of the body; b"" at its end; None if they have not arrived. Raises
        BodyIncomplete if the body ends early, or its transfer coding is broken.
        """
        if self._pieces:
            piece = self._pieces.popleft()
            self._waiting_bytes -= len(piece)
            if self._is_full:
                self._read_on()
            return piece
        if self._coding.is_broken:
            raise BodyIncomplete("The body ended early, or its transfer coding is broken")
        return b"" if self.is_over else None

    async def next(self) -> bytes:
        """Wait for the next bytes of the body, and return them as ``next_now`` does."""
        while (piece := self.next_now()) is None:
            await self._wait()
        return piece

    async def drop(self) -> None:
        """Drop all bytes of the body, until its end has arrived. Read on from the client. A body that is
        broken has no end.
        """
        self._is_dropped, self._waiting_bytes = True, 0
        self._pieces.clear()
        self._read_on()
        while not (self.is_over or self._coding.is_broken):
            await self._wait()

    async def _wait(self) -> None:
        self._arrival = asyncio.get_running_loop().create_future()
        await self._arrival

    def _read_on(self) -> None:
        """Resume reading from the client once no bytes wait here."""
        if self._is_full and not (self._pieces or self._untaken):
            self._is_full = False
            self._connection.body_full(full=False)
