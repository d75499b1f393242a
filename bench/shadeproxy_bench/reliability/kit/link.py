"""One keep-alive connection to the proxy on a blocking socket. Requests and answers are bytes.

Only the framing is judged here: a connection that ends inside an answer raises ``Cut``.
"""

import socket
import time
from typing import NamedTuple

import numpy as np

from shadeproxy_bench.reliability.kit.bodies import LARGEST_BYTES, MIB
from shadeproxy_bench.reliability.kit.origin import fields_of

_ROOM_BYTES = LARGEST_BYTES + 64 * 1024
_SILENCE_S = 60.0
_MOST_HEAD_BYTES = 32 * 1024


class Cut(Exception):
    """The connection ended, or the proxy was silent for too long, before the answer was complete."""


class Silent(Cut):
    """The proxy sent no byte of an answer, or took no byte of a request, for too long."""


class Pace(NamedTuple):
    """A pace of reading: receive ``chunk_bytes`` at most, pause for ``pause_s``, and repeat."""

    chunk_bytes: int = MIB
    pause_s: float = 0.0


FULL_SPEED = Pace()
_SHOWN_BYTES = 16


class Answer(NamedTuple):
    """An answer. ``fields``: header fields by lower-case name. Its body is the ``length`` bytes at ``start``
    of ``buffer``, which are valid until the next answer.
    """

    status: int
    fields: dict[str, str]
    buffer: bytearray
    start: int
    length: int

    def is_body(self, expected: memoryview) -> bool:
        return self.length == len(expected) and self.buffer.startswith(expected, self.start)

    def difference(self, expected: memoryview) -> str:
        """Return a text that says which bytes of the body differ from those of ``expected``, which has the
        same length.
        """
        body, wanted = np.frombuffer(self.document, np.uint8), np.frombuffer(expected, np.uint8)
        places = np.flatnonzero(body != wanted)
        first, last = int(places[0]), int(places[-1])
        seen = body[first : first + _SHOWN_BYTES].tobytes().hex()
        return f"{len(places)} bytes differ, from {first} to {last}; those at {first} are {seen}"

    @property
    def document(self) -> bytes:
        """A copy of the whole body."""
        return bytes(self.buffer[self.start : self.start + self.length])

    @property
    def text(self) -> str:
        return self.buffer[self.start : self.start + min(self.length, 400)].decode(errors="replace")


class Link:
    """A connection to the proxy. It is opened on first use, and again after ``close``. ``silence_s``: seconds
    without a byte after which Silent is raised.
    """

    def __init__(
        self, address: tuple[str, int], *, receive_bytes: int = 0, silence_s: float = _SILENCE_S
    ) -> None:
        self._address = address
        self._silence_s = silence_s
        self._receive_bytes = receive_bytes
        self._socket: socket.socket | None = None
        self._buffer = bytearray(_ROOM_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._stop = 0

    def send(self, request: bytes) -> None:
        """Send ``request``; connect first if there is no connection. Raises Cut, OSError."""
        if self._socket is None:
            self._socket = socket.socket()
            if self._receive_bytes:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_bytes)
            self._socket.settimeout(self._silence_s)
            self._socket.connect(self._address)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket.sendall(request)
        except TimeoutError as error:
            raise Silent(f"the request was not taken in {self._silence_s:g} s") from error
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Cut(f"the request could not be sent: {error}") from error

    def receive(self, *, without_body: bool = False, pace: Pace = FULL_SPEED) -> Answer:
        """Receive the next answer at ``pace``. Raises Cut."""
        rest = self._stop - self._start
        self._view[:rest] = bytes(self._view[self._start : self._stop])
        self._start, self._stop = 0, rest
        while (end := self._buffer.find(b"\r\n\r\n", 0, self._stop)) < 0:
            if self._stop > _MOST_HEAD_BYTES:
                raise Cut("the head of the answer has no end")
            self._take(pace)
        status, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        fields = fields_of(lines)
        bodiless = without_body or status[9:12] in {"204", "304"}
        length = 0 if bodiless else int(fields["content-length"])
        while self._stop < end + 4 + length:
            self._take(pace)
        self._start = end + 4 + length
        if fields.get("connection", "").lower() == "close":
            self.close()
        return Answer(int(status[9:12]), fields, self._buffer, end + 4, length)

    def taste(self, count: int) -> None:
        """Receive at most ``count`` bytes by one call. Leave the rest of the answer unread."""
        assert self._socket is not None
        self._socket.recv(count)

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._start = self._stop = 0

    def _take(self, pace: Pace) -> None:
        if self._socket is None:
            raise Cut("the proxy closed the connection before it answered all requests")
        try:
            room = self._view[self._stop : self._stop + pace.chunk_bytes]
            count = self._socket.recv_into(room)
        except TimeoutError as error:
            raise Silent(
                f"silent for {self._silence_s:g} s after {self._stop} bytes of the answer"
            ) from error
        except ConnectionResetError as error:
            raise Cut(f"{error} after {self._stop} bytes of the answer") from error
        if not count:
            raise Cut(f"the connection ended after {self._stop} bytes of the answer")
        self._stop += count
        if pace.pause_s:
            time.sleep(pace.pause_s)
