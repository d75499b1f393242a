"""A lean HTTP client on raw sockets and epoll that compares every body it reads, byte for byte.

Laws: connections are keep-alive, with one request at a time. Every answer must be 200 or 206 with exactly the
requested bytes, framed by Content-Length; otherwise ``BenchError`` ends the run. The client is this strict
because a fast wrong answer is the worst result of a cache.
"""

import select
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Self

from shadeproxy_bench.faults import BenchError

Exchange = tuple[bytes, memoryview]
"""A request as bytes, and the body that is expected in its answer."""

_HEAD_BYTES = 16 * 1024
_PATIENCE_S = 30.0


@dataclass(slots=True)
class Reading:
    """The result of ``read``. ``sources``: number of answers by their x-shade-cache ("": answers without the
    field).
    """

    requests: int = 0
    bytes: int = 0
    wall_s: float = 0.0
    sources: Counter[str] = field(default_factory=Counter)


class _Link:
    """One connection, and the answer that is arriving on it."""

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext | None) -> None:
        self.socket = socket.create_connection(address, timeout=_PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=address[0])
        self.expected = memoryview(b"")
        self.request = b""
        self._received = self._body_start = 0
        self._buffer = bytearray(_HEAD_BYTES)
        self._view = memoryview(self._buffer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.socket.close()

    def send(self, exchange: Exchange) -> None:
        self.request, self.expected = exchange
        self._received = self._body_start = 0
        self._room(len(self.expected))
        self.socket.sendall(self.request)

    def receive(self, heard: Callable[[str], None]) -> bool:
        """Take the bytes that have arrived. Return whether the answer is complete and right. ``heard`` is
        called with the answer's x-shade-cache.
        """
        while not self._receive(heard):
            # epoll reports bytes that wait in the kernel, but no bytes that TLS has decrypted already.
            if not (isinstance(self.socket, ssl.SSLSocket) and self.socket.pending()):
                return False
        return True

    def _receive(self, heard: Callable[[str], None]) -> bool:
        count = self.socket.recv_into(self._view[self._received :])
        if not count:
            raise self._wrong("the server closed the connection")
        self._received += count
        if not self._body_start and not self._take_head(heard):
            return False
        missing = self._body_start + len(self.expected) - self._received
        if missing > 0:
            return False
        if missing < 0:
            raise self._wrong("more bytes came than were announced")
        if not self._buffer.startswith(self.expected, self._body_start):
            raise self._wrong("wrong bytes")
        return True

    def _take_head(self, heard: Callable[[str], None]) -> bool:
        end = self._buffer.find(b"\r\n\r\n", 0, self._received)
        if end < 0:
            if self._received >= _HEAD_BYTES:
                raise self._wrong("the head of the answer has no end")
            return False
        head = bytes(self._buffer[:end])
        if head[9:12] not in {b"200", b"206"}:
            status = head.partition(b"\r\n")[0].decode("latin-1")
            raise self._wrong(f"it answered {status!r}")
        lowered = head.lower()
        length = _field(lowered, b"content-length")
        if length != b"%d" % len(self.expected):
            raise self._wrong(
                f"Content-Length {length.decode('latin-1') or 'none'}, not {len(self.expected)}"
            )
        heard(_field(lowered, b"x-shade-cache").decode("latin-1"))
        self._body_start = end + 4
        return True

    def _room(self, body_bytes: int) -> None:
        if len(self._buffer) < body_bytes + _HEAD_BYTES:
            self._buffer = bytearray(body_bytes + _HEAD_BYTES)
            self._view = memoryview(self._buffer)

    def _wrong(self, what: str) -> BenchError:
        line = self.request.partition(b"\r\n")[0].decode("latin-1")
        return BenchError(f"{line}: {what}")


def read(
    address: tuple[str, int],
    exchanges: Iterable[Exchange],
    *,
    connections: int,
    seconds: float = 0.0,
    told: Callable[[str], None] | None = None,
    trusted: str = "",
) -> Reading:
    """Read ``exchanges`` over ``connections`` connections. All exchanges are read, or with ``seconds`` only
    those that begin in that time.

    ``told`` is called with the x-shade-cache of each answer, in the order of arrival. ``trusted``: the PEM
    file of the authority of a server that is read over TLS. Raises BenchError for any wrong answer.
    """
    tls = ssl.create_default_context(cafile=trusted) if trusted else None
    waiting = _until(seconds, exchanges) if seconds else iter(exchanges)
    with ExitStack() as stack:
        try:
            links = [stack.enter_context(_Link(address, tls)) for _ in range(connections)]
            return _read(links, waiting, stack.enter_context(select.epoll()), told)
        except OSError as error:
            raise BenchError(f"{address[0]}:{address[1]} broke off: {error}") from error


def _read(
    links: list[_Link],
    waiting: Iterator[Exchange],
    epoll: select.epoll,
    told: Callable[[str], None] | None,
) -> Reading:
    reading, started = Reading(), time.perf_counter()

    def heard(source: str) -> None:
        reading.sources[source] += 1
        if told is not None:
            told(source)

    busy: dict[int, _Link] = {}
    for link, exchange in zip(links, waiting, strict=False):
        link.send(exchange)
        busy[link.socket.fileno()] = link
        epoll.register(link.socket, select.EPOLLIN)
    while busy:
        events = epoll.poll(_PATIENCE_S)
        if not events:
            raise BenchError(f"nothing came for {_PATIENCE_S:.0f} s")
        for number, _ in events:
            link = busy[number]
            if not link.receive(heard):
                continue
            reading.requests += 1
            reading.bytes += len(link.expected)
            following = next(waiting, None)
            if following is None:
                epoll.unregister(number)
                del busy[number]
            else:
                link.send(following)
    reading.wall_s = time.perf_counter() - started
    return reading


def _until(seconds: float, exchanges: Iterable[Exchange]) -> Iterator[Exchange]:
    deadline = time.perf_counter() + seconds
    for exchange in exchanges:
        if time.perf_counter() >= deadline:
            return
        yield exchange


def _field(lowered_head: bytes, name: bytes) -> bytes:
    """Return the value of a header field; b"" if the head lacks the field. The head is in lower case."""
    start = lowered_head.find(b"\r\n" + name + b":")
    if start < 0:
        return b""
    start += len(name) + 3
    end = lowered_head.find(b"\r\n", start)
    return lowered_head[start : end if end >= 0 else None].strip()
