"""The connections of batch and locate calls: HTTP/1.1 POSTs whose answers are received straight into the
caller's memory.

urllib3 returns bodies as new ``bytes`` objects and calls ``poll`` before each read. For samples of 100 KB,
that costs more time than copying them. This module therefore speaks HTTP itself, with a small read-ahead and
``recv_into``, and accepts only answers with Content-Length or chunks. It prefers the proxy's Unix socket to
TCP if this process can open the socket.

Laws: a Channel carries one call at a time. A body is exactly as long as its framing says, or an error is
raised. A Channel that raised an error is closed and never used again. Nothing is retried here.
"""

import re
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shadeproxy_sdk.address import in_url
from shadeproxy_sdk.errors import BadAnswer, Broken, Silent, Unreachable

MAX_CONNECT_S = 5.0
READ_AHEAD_BYTES = 16384
"""Size of the read-ahead. The header of a frame and a sample of up to this size arrive in one system call. Of
a bigger sample, up to this many bytes are copied twice.
"""
_MOST_HEADER_LINES = 100
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})(?:[ \t]*;.*)?")
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3})(?: .*)?")


class Address(NamedTuple):
    """Address of the control listener: of its TCP port, and of its Unix ``socket`` if /v1/info names one."""

    host: str
    port: int
    tls: bool
    path: str
    socket: str | None = None


class Channel:
    """One connection to the control listener. ``timeout_s`` bounds connecting; the timeout of ``send`` bounds
    each wait for bytes. Raises Unreachable.
    """

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.fresh = True
        self.reusable = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self._ahead = bytearray(READ_AHEAD_BYTES)
        self._view = memoryview(self._ahead)
        self._start = self._stop = 0
        self._unread = memoryview(b"")
        self._left = 0
        self._chunked = False
        self._whole = True
        self._timeout_s = 0.0
        try:
            self._socket, self._prefix = _connect(address, min(timeout_s, MAX_CONNECT_S))
        except TimeoutError:
            raise Silent(f"no connection within {min(timeout_s, MAX_CONNECT_S):g} s") from None
        except OSError as error:
            raise Unreachable((error.strerror or str(error)).lower()) from None
        # TLS sockets accept no flags, because TLS records are decrypted piece by piece. Windows has no
        # recvmsg_into. In both cases, use no flags.
        is_plain = not isinstance(self._socket, ssl.SSLSocket)
        self._flags = socket.MSG_WAITALL if is_plain and hasattr(self._socket, "recvmsg_into") else 0
        self._host = f"{in_url(address.host)}:{address.port}"

    def send(self, path: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> None:
        """Send a POST. Call ``begin`` next. Raises Unreachable, and Broken as ``begin`` does."""
        self.reusable = False
        lines = [f"POST {self._prefix}{path} HTTP/1.1", f"host: {self._host}", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        try:
            self._bound(timeout_s)
            self._socket.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        except OSError as error:
            raise self._lost(error) from None

    def begin(self) -> None:
        """Wait for the answer, and read its head into ``status`` and ``headers``.

        Raises Unreachable, and Broken if the connection has ended, as an idle one does when its server
        restarts.
        """
        try:
            self._read_head()
        except OSError as error:
            raise self._lost(error) from None

    def read_into(self, view: memoryview, follow_bytes: int = 0) -> None:
        """Fill ``view`` with the next bytes of the body. ``follow_bytes``: how many more bytes of the answer
        certainly follow; they are read ahead in the same system call.

        Raises Unreachable, Broken if the connection ended, and BadAnswer if the body ended too early.
        """
        while view:
            if not self._left:
                self._next_chunk()
                if self._whole:
                    raise BadAnswer("the answer ended too early")
            piece = view[: self._left]
            self._receive(piece, follow_bytes)
            self._left -= len(piece)
            view = view[len(piece) :]

    @property
    def at_hand_bytes(self) -> int:
        """Most bytes that one call of ``read_some`` may ask for now; 0 if it may not be called."""
        return self._left if self._flags and not self._unread else 0

    def read_some(self, views: Sequence[memoryview], follow_bytes: int) -> int:
        """Fill ``views``, one after another, with the next bytes of the body, in one system call. Together
        they may have at most ``at_hand_bytes``. Return the number of bytes that came. ``follow_bytes``: as in
        ``read_into``.

        Raises the same errors as ``read_into``.
        """
        first, wanted = views[0], sum(map(len, views))
        ready = min(self._stop - self._start, len(first))
        if ready:
            first[:ready] = self._view[self._start : self._start + ready]
            self._start += ready
        if self._start == self._stop and ready < wanted:
            try:
                buffers = [first[ready:], *views[1:], self._view[:follow_bytes]]
                received = self._socket.recvmsg_into(buffers, 0, self._flags)[0]
                if not received and not ready:
                    raise Broken("connection broken: closed by the server")
            except OSError as error:
                if not ready:
                    raise self._lost(error) from None
                received = 0  # Return the bytes that were read ahead; the next read meets the error again.
            self._start, self._stop = 0, max(0, ready + received - wanted)
            ready = min(ready + received, wanted)
        self._left -= ready
        return ready

    def unread(self, data: bytes) -> None:
        """Put back the last bytes that ``read_some`` returned, so that the next read returns them again."""
        self._unread = memoryview(data)
        self._left += len(data)

    def read(self, most_bytes: int) -> bytes:
        """Return the rest of the body. Raises Broken, and BadAnswer if it is longer than ``most_bytes``."""
        parts: list[bytearray] = []
        total = 0
        while True:
            if not self._left:
                self._next_chunk()
                if self._whole:
                    self.reusable = self.headers.get("connection", "").lower() != "close"
                    return b"".join(parts)
            total += self._left
            if total > most_bytes:
                raise BadAnswer(f"an answer of more than {most_bytes} bytes is not ShadeProxy's")
            parts.append(bytearray(self._left))
            self._receive(memoryview(parts[-1]))
            self._left = 0

    def finish(self) -> None:
        """Check that the body ends here, so that the connection can be used again. Raises Broken,
        BadAnswer.
        """
        self.read(0)

    def is_quiet(self) -> bool:
        """Return whether nothing came since the last answer ended. Bytes that came belong to no call, so the
        next call must not take them for its answer. Of TLS connections, only bytes that were read ahead are
        known.
        """
        if self._start != self._stop:
            return False
        if not self._flags:
            return True
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    # ------------------------------------------------------------------ HTTP

    def _read_head(self) -> None:
        match = _STATUS_LINE.fullmatch(self._line())
        if match is None:
            raise BadAnswer("the server there does not speak HTTP/1.1")
        self.status = int(match[1])
        self.headers = {}
        for _ in range(_MOST_HEADER_LINES):
            line = self._line()
            if not line:
                break
            name, _, value = line.decode("latin-1").partition(":")
            self.headers[name.strip().lower()] = value.strip()
        else:
            raise BadAnswer("the answer's head does not end")
        self._chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        length = self.headers.get("content-length", "")
        if not self._chunked and not length.isdecimal():
            raise BadAnswer("the answer has neither Content-Length nor chunks, so its end cannot be checked")
        self._left = 0 if self._chunked else int(length)
        self._whole = False

    def _next_chunk(self) -> None:
        """Read the size of the next chunk, or note that the body is complete."""
        if self._whole:
            return
        if not self._chunked:
            self._whole = True
            return
        try:
            # Each chunk but the first begins after the line end of the previous chunk. That line end is read
            # as an empty line.
            size = _CHUNK_SIZE.fullmatch(self._line() or self._line())
            if size is None:
                raise Broken("the answer's chunks are damaged")
            self._left = int(size[1], 16)
            if not self._left:
                while self._line():
                    pass
                self._whole = True
        except OSError as error:
            raise self._lost(error) from None

    # ------------------------------------------------------------------ bytes

    def _line(self) -> bytes:
        """Return the next line of the answer without its end. Raises OSError, Unreachable."""
        searched = self._start
        while (end := self._ahead.find(b"\r\n", searched, self._stop)) < 0:
            searched = max(self._start, self._stop - 1)
            if self._start:
                kept = self._ahead[self._start : self._stop]
                self._ahead[: len(kept)] = kept
                searched -= self._start
                self._start, self._stop = 0, len(kept)
            if self._stop == READ_AHEAD_BYTES:
                raise BadAnswer("the server there does not speak HTTP/1.1")
            self._fill()
        line = bytes(self._ahead[self._start : end])
        self._start = end + 2
        return line

    def _fill(self) -> None:
        received = self._socket.recv_into(self._view[self._stop :])
        if not received:
            raise ConnectionResetError("closed by the server")
        self._stop += received

    def _receive(self, view: memoryview, follow_bytes: int = 0) -> None:
        """Fill ``view``: first with bytes that were put back or read ahead, then from the socket."""
        try:
            while view:
                ready = min(self._stop - self._start, len(view))
                if self._unread:
                    ready = min(len(self._unread), len(view))
                    view[:ready] = self._unread[:ready]
                    self._unread = self._unread[ready:]
                elif ready:
                    view[:ready] = self._view[self._start : self._start + ready]
                    self._start += ready
                elif len(view) >= READ_AHEAD_BYTES:
                    ready = self._receive_big(view, follow_bytes)
                else:
                    self._start = self._stop = 0
                    self._fill()
                view = view[ready:]
        except OSError as error:
            raise self._lost(error) from None

    def _receive_big(self, view: memoryview, follow_bytes: int) -> int:
        """Fill ``view`` straight from the socket. The read-ahead must be empty before the call. Return the
        number of bytes filled. Raises OSError.
        """
        if self._flags and follow_bytes:
            buffers = [view, self._view[:follow_bytes]]
            received = self._socket.recvmsg_into(buffers, 0, self._flags)[0]
            self._start, self._stop = 0, max(0, received - len(view))
        else:
            received = self._socket.recv_into(view, len(view), self._flags)
        if not received:
            raise ConnectionResetError("closed by the server")
        return min(received, len(view))

    def _lost(self, error: OSError) -> Unreachable:
        if isinstance(error, BlockingIOError | ssl.SSLWantReadError | ssl.SSLWantWriteError):
            return Silent(f"no answer within {self._timeout_s:g} s")
        return Broken(f"connection broken: {error.strerror or error}")

    def _bound(self, timeout_s: float) -> None:
        """Let the kernel bound each wait for bytes to ``timeout_s`` seconds. Python's own timeout would call
        ``poll`` before every read.
        """
        if timeout_s == self._timeout_s:
            return
        self._timeout_s = timeout_s
        seconds, fraction = divmod(max(timeout_s, 1e-3), 1.0)
        limit = (
            struct.pack("@L", int(timeout_s * 1000))
            if sys.platform == "win32"
            else struct.pack("@ll", int(seconds), int(fraction * 1e6))
        )
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


class Channels:
    """A pool of the idle ``Channel`` objects of this process. Thread-safe."""

    def __init__(self) -> None:
        self._idle: list[Channel] = []
        self._lock = threading.Lock()

    def take(self, address: Address, timeout_s: float) -> Channel:
        """Return an idle Channel, or a new one to ``address``. Raises Unreachable."""
        while True:
            with self._lock:
                if not self._idle:
                    break
                channel = self._idle.pop()
            if channel.is_quiet():
                channel.fresh = False
                return channel
            channel.close()
        return Channel(address, timeout_s)

    def give(self, channel: Channel) -> None:
        """Take back a Channel after its call. Close it if it cannot be used again."""
        if channel.reusable:
            with self._lock:
                self._idle.append(channel)
        else:
            channel.close()

    def close(self) -> None:
        """Close the idle Channels."""
        with self._lock:
            idle, self._idle = self._idle, []
        for channel in idle:
            channel.close()


def _connect(address: Address, timeout_s: float) -> tuple[socket.socket, str]:
    """Return a connected, blocking socket, and the prefix that request paths need on it. Raises OSError."""
    if address.socket is not None and hasattr(socket, "AF_UNIX"):
        near = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            near.settimeout(timeout_s)
            near.connect(address.socket)
        except OSError:
            near.close()  # The path is of another host, or closed to this process: use TCP.
        else:
            near.settimeout(None)
            return near, ""
    far = socket.create_connection((address.host, address.port), timeout_s)
    try:
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.tls:
            far = ssl.create_default_context().wrap_socket(far, server_hostname=address.host)
        far.settimeout(None)
    except OSError:
        far.close()
        raise
    return far, address.path
