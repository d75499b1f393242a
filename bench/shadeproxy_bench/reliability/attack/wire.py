"""``Wire``: one connection of an attacking client, which decides how its bytes are cut into segments, and how
the connection ends.
"""

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple, Self

_READ_BYTES = 1 << 18
_OPEN_S = 20.0
_SEND_S = 20.0


class Address(NamedTuple):
    """The address of a proxy. ``trusted``: the PEM file of its authority; "" for plain HTTP."""

    host: str
    port: int
    trusted: str = ""

    @property
    def authority(self) -> str:
        return f"{self.host}:{self.port}"


class Ending(StrEnum):
    """The end of a connection, as its client sees it. ``CUT``: TLS ended without its closing alert."""

    OPEN = "open"
    CLOSED = "closed"
    CUT = "cut"
    RESET = "reset"


class Received(NamedTuple):
    """The bytes that a client received, and how the connection ended."""

    data: bytes
    ending: Ending


class Wire:
    """A connection over TCP or TLS. Each call of ``send`` makes a segment of its own, and a TLS record of its
    own, as far as the kernel allows.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        self.ending = Ending.OPEN
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = (
            None if context is None else context.wrap_bio(self._in, self._out, server_hostname="127.0.0.1")
        )

    @classmethod
    async def open(cls, address: Address, *, buffer_bytes: int = 0) -> Self:
        """Connect to ``address``. ``buffer_bytes``: size of the kernel's buffer for received bytes; 0: the
        default.
        """
        sock = await connect(address, buffer_bytes=buffer_bytes)
        try:
            wire = cls(sock, _context(address.trusted) if address.trusted else None)
            async with asyncio.timeout(_OPEN_S):
                await wire._shake_hands()
        except BaseException:
            sock.close()
            raise
        return wire

    @property
    def port(self) -> int:
        """The client's own port."""
        return int(self._sock.getsockname()[1])

    async def _shake_hands(self) -> None:
        while self._tls is not None:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._pull():
                    raise ConnectionResetError("the connection ended in the TLS handshake") from None
                continue
            await self._flush()
            return

    async def send(self, data: bytes) -> None:
        """Send ``data``. Raises ConnectionError if the connection has ended, or TimeoutError if the proxy
        takes nothing.
        """
        async with asyncio.timeout(_SEND_S):
            if self._tls is None:
                await self._loop.sock_sendall(self._sock, data)
            else:
                try:
                    self._tls.write(data)
                except ssl.SSLError as error:
                    raise ConnectionResetError(str(error)) from None
                await self._flush()

    async def send_raw(self, data: bytes) -> None:
        """Send ``data`` below TLS."""
        await self._loop.sock_sendall(self._sock, data)

    async def send_all(self, segments: Sequence[bytes], pause_s: float) -> bool:
        """Send ``segments``, with a pause after each but the last. Return False if the connection ended
        before.
        """
        try:
            for segment in segments[:-1]:
                await self.send(segment)
                await asyncio.sleep(pause_s)
            await self.send(segments[-1])
        except (ConnectionError, TimeoutError):
            return False
        return True

    async def _flush(self) -> None:
        if data := self._out.read():
            await self._loop.sock_sendall(self._sock, data)

    async def _pull(self) -> bool:
        data = await self._loop.sock_recv(self._sock, _READ_BYTES)
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()
        return bool(data)

    async def receive(self, wait_s: float) -> bytes | None:
        """Return bytes that have arrived; b"" at the end of the connection, which ``ending`` describes; None
        if nothing arrived within ``wait_s``.
        """
        if self.ending is not Ending.OPEN:
            return b""
        try:
            async with asyncio.timeout(wait_s):
                data = await self._receive()
        except TimeoutError:
            return None
        except ssl.SSLEOFError:
            self.ending = Ending.CUT
            return b""
        except (ConnectionError, ssl.SSLError):
            self.ending = Ending.RESET
            return b""
        if not data:
            self.ending = Ending.CLOSED
        return data

    async def _receive(self) -> bytes:
        if self._tls is None:
            return await self._loop.sock_recv(self._sock, _READ_BYTES)
        while True:
            try:
                return self._tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                await self._flush()
                await self._pull()

    async def read_until(
        self, enough: Callable[[bytes], bool], *, silent_s: float, limit_s: float
    ) -> Received:
        """Read until ``enough`` says so, the connection ends, nothing comes for ``silent_s``, or ``limit_s``
        is over.
        """
        received = bytearray()
        until_s = self._loop.time() + limit_s
        while not enough(bytes(received)) and (left_s := until_s - self._loop.time()) > 0:
            data = await self.receive(min(silent_s, left_s))
            if not data:
                break
            received += data
        return Received(bytes(received), self.ending)

    def half_close(self) -> None:
        """Close the sending side alone."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Reset the connection."""
        with suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def close(self) -> None:
        self._sock.close()


async def connect(address: Address, *, buffer_bytes: int = 0) -> socket.socket:
    """Return a connected TCP socket, without TLS."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        async with asyncio.timeout(_OPEN_S):
            await asyncio.get_running_loop().sock_connect(sock, (address.host, address.port))
    except BaseException:
        sock.close()
        raise
    return sock


@lru_cache(maxsize=4)
def _context(trusted: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=trusted)
