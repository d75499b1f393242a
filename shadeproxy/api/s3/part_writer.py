"""``PartWriter``: a client's TLS connection, which takes long answers in parts.

TLS encrypts all bytes that it is given at once, and keeps the memory for as many encrypted bytes until the
connection ends. So law: the TLS layer is given more bytes only while few encrypted bytes wait for the client.
"""

import asyncio
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any, cast

from shadeproxy.api.s3.response import KEEPALIVE_S, WRITE_BYTES
from shadeproxy.core.sockets import unacknowledged_bytes

CLOSE_S = 2 * KEEPALIVE_S
"""Most seconds between the close of a TLS connection and its end. In this time the client must take the last
bytes, and answer the end of TLS. An idle client may never answer.
"""


GOODBYE_S = 30.0
"""Seconds after which a closed connection is ended although its client, which has all bytes, does not answer
the end of TLS.
"""


class PartWriter(asyncio.Transport):
    """Writes to the TLS transport ``inner``. The protocol must call ``go_on`` when the client has taken bytes
    (``resume_writing``), and may then be paused at once again.
    """

    def __init__(self, inner: asyncio.Transport) -> None:
        super().__init__()
        inner.set_write_buffer_limits(high=WRITE_BYTES)
        self._inner = inner
        self._rest: deque[memoryview] = deque()
        self._rest_bytes = 0
        self.kept_bytes = 0
        """Length of all data of which a part is kept."""
        self._closes = False  # True if the connection is closed when the rest was written.
        # These methods do nothing of their own. Each call of a hit would cost a frame more.
        vars(self).update((name, getattr(inner, name)) for name in _PASSED_ON)

    def write(self, data: Any) -> None:
        """Write ``data``, or keep it until the client has taken enough of the bytes before."""
        if len(data) <= WRITE_BYTES and not self._rest:
            self._inner.write(data)
        else:
            self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Write ``list_of_data`` as ``write`` does."""
        list_of_data = tuple(list_of_data)
        if not self._rest and sum(map(len, list_of_data)) <= WRITE_BYTES:
            self._inner.writelines(list_of_data)
            return
        for data in list_of_data:
            self._rest.append(memoryview(data))
            self._rest_bytes += len(data)
            self.kept_bytes += len(data)
        self.go_on()

    def go_on(self) -> None:
        """Write more of the kept bytes, as long as the client takes them."""
        while self._rest and self._inner.get_write_buffer_size() < WRITE_BYTES:
            self._write_part()
        self._end()

    def write_rest(self) -> None:
        """Write all kept bytes, because TLS takes none any more when the client has ended its side."""
        while self._rest:
            self._write_part()
        self._end()

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait, without those that TLS has given to TCP."""
        return self._rest_bytes + self._inner.get_write_buffer_size()

    def is_closing(self) -> bool:
        return self._closes or self._inner.is_closing()

    def close(self) -> None:
        """Close the connection once all bytes were written."""
        self._closes = True
        self._end()

    def abort(self) -> None:
        self._rest.clear()
        self._rest_bytes = self.kept_bytes = 0
        self._inner.abort()

    def _write_part(self) -> None:
        """Write up to ``WRITE_BYTES``."""
        parts, room = [], WRITE_BYTES
        while self._rest and room:
            piece = self._rest.popleft()
            parts.append(piece[:room])
            if len(piece) > room:
                self._rest.appendleft(piece[room:])
            room -= len(parts[-1])
        self._rest_bytes -= WRITE_BYTES - room
        if not self._rest:
            self.kept_bytes = 0
        self._inner.writelines(parts)

    def _end(self) -> None:
        if self._closes and not self._rest and not self._inner.is_closing():
            self._inner.close()
            _end_later(weakref.ref(self))

    def end_if_sent(self) -> bool:
        """End the connection if its client has all bytes. Return False if it has not."""
        if is_unsent(self):
            return False
        self._inner.abort()
        return True


def _end_later(closed: weakref.ref[PartWriter]) -> None:
    """End the connection of ``closed`` in GOODBYE_S seconds, or later if its client takes longer. Only a weak
    reference waits, because a connection that has ended must not keep its memory.
    """

    def look() -> None:
        writer = closed()
        if writer is not None and not writer.end_if_sent():
            _end_later(closed)

    asyncio.get_running_loop().call_later(GOODBYE_S, look)


_PASSED_ON = ("get_extra_info", "get_protocol", "pause_reading", "resume_reading", "can_write_eof")


def client_transport(transport: asyncio.BaseTransport) -> asyncio.Transport:
    """Return the transport by which a client's connection writes its answers."""
    # A cast, because uvloop's own transport classes are no subclasses of asyncio's.
    made = cast("asyncio.Transport", transport)
    return made if made.get_extra_info("sslcontext") is None else PartWriter(made)


def is_unsent(transport: asyncio.Transport) -> bool:
    """Return True if the end of this process could lose bytes that the client has not taken."""
    if transport.get_write_buffer_size():
        return True
    sock = transport.get_extra_info("socket")
    if transport.get_extra_info("sslcontext") is None or sock is None or sock.fileno() < 0:
        return False
    # TLS gives its bytes to a transport of its own, whose buffer nothing shows. It is empty if the kernel has
    # no bytes left to send.
    return unacknowledged_bytes(sock) > 0
