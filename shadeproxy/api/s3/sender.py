"""The fast lane's writer of a connection. It writes through the transport, or sends a file by sendfile.

Laws: bytes leave in the order in which they are given. A file is sent only while no bytes wait in the
transport, and the transport is used only while no bytes of a file wait (``busy``). Only bytes that a
``SendfileSlice`` allows leave by sendfile (tiers/sendfile.py); all others are copied.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Callable

from shadeproxy.api.s3.response import break_off
from shadeproxy.engine.base import SendfileSlice

LEAST_BYTES = 16 * 1024
"""Slices with fewer bytes are copied, because that takes one system call instead of two or three."""

UNASKED, ENCRYPTED = -1, -2
"""Values of ``Sender.descriptor`` if there is no descriptor: before ``open``, and if bytes must go through
the transport.
"""

# MSG_MORE is not set. With it, the head would wait for the first pages and leave in one packet with them. The
# server then needed a fifth more time for an answer of 100 KB, and a seventh more for one of 1 MB
# (docs/measurements.md).
_FLAGS = int(socket.MSG_DONTWAIT)


class DirectWriter:
    """A transport, and a second socket for its connection. Send by that socket only while no bytes wait in
    the transport, so that bytes leave in order.
    """

    __slots__ = ("_direct", "descriptor", "transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self._direct: socket.socket | None = None
        self.descriptor = UNASKED
        """The socket's descriptor, after ``open``. ENCRYPTED if bytes must go through the transport."""

    def open(self) -> int:
        """Return ``descriptor``. The first call makes the second socket for the connection, which is needed
        because the transport's own socket has no ``send``.
        """
        if self.descriptor == UNASKED:
            own = self.transport.get_extra_info("socket")
            if own is None or self.transport.get_extra_info("sslcontext") is not None:
                self.descriptor = ENCRYPTED
                return ENCRYPTED
            try:
                self._direct = socket.socket(fileno=os.dup(own.fileno()))
            except OSError:
                return UNASKED  # The process has no descriptor left. Bytes then go through the transport.
            self._direct.setblocking(False)
            self.descriptor = self._direct.fileno()
        return self.descriptor

    def close(self) -> None:
        """Close the second socket, because the connection has ended. Idempotent."""
        if self._direct is not None:
            self._direct.close()
            self._direct, self.descriptor = None, UNASKED


class Copying(DirectWriter):
    """Writes through a transport, which copies bytes that the client does not take at once."""

    __slots__ = ()

    def write(self, data: bytes) -> None:
        """Write ``data``: whole answers, or a part of one."""
        self.transport.write(data)

    def writelines(self, pieces: tuple[bytes | memoryview, ...]) -> None:
        """Write ``pieces`` in their order."""
        self.transport.writelines(pieces)

    def send(self, head: bytes, *slices: SendfileSlice) -> None:
        """Send ``head``, then the bytes of ``slices``."""
        self.transport.writelines((head, *(file_slice.pin() for file_slice in slices)))


class Sender(DirectWriter):
    """The writer of one connection. ``on_idle``: called when a file that had to wait for the client has been
    sent. ``on_cut``: called with the reason when an answer breaks off although its client is still connected.
    """

    __slots__ = (
        "_keep",
        "_on_cut",
        "_on_idle",
        "_position",
        "_rest",
        "_sent",
        "_waiters",
        "waiting",
    )  # fmt: skip

    def __init__(
        self, transport: asyncio.Transport, on_idle: Callable[[], None], on_cut: Callable[[str], None]
    ) -> None:
        super().__init__(transport)
        self._on_idle = on_idle
        self._on_cut = on_cut
        self.waiting: SendfileSlice | None = None
        """The slice whose bytes wait until the client takes more of them; None unless ``busy``."""
        self._rest: tuple[SendfileSlice, ...] = ()
        self._keep: list[memoryview] = []
        self._position = self._sent = 0
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def busy(self) -> bool:
        """True if bytes of a file wait until the client takes more of them."""
        return self.waiting is not None

    @property
    def sent(self) -> int:
        """Bytes sent from files so far. The number grows as long as the client takes them."""
        return self._sent

    def write(self, data: bytes) -> None:
        """Write through the transport, which copies bytes that the client does not take at once."""
        self.transport.write(data)

    def writelines(self, pieces: tuple[bytes | memoryview, ...]) -> None:
        """Write ``pieces`` in their order."""
        self.transport.writelines(pieces)

    def send(self, head: bytes, *slices: SendfileSlice) -> None:
        """Send ``head``, then the bytes of ``slices``, of which there must be at least one. Do not call this
        while ``busy``.
        """
        file_slice, rest = slices[0], slices[1:]
        self.open()
        direct, first = self._direct, file_slice.first
        if direct is None or file_slice.last - first < LEAST_BYTES or self.transport.get_write_buffer_size():
            self.transport.writelines((head, *(one.pin() for one in slices)))
            return
        lead = (
            head
            if first == file_slice.start
            else b"".join((head, file_slice.handle.window[file_slice.start : first]))
        )
        try:
            sent = direct.send(lead, _FLAGS)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._cut(error)
            return
        self.go_on(lead[sent:], first, file_slice, *rest)

    def go_on(self, lead: bytes, position: int, file_slice: SendfileSlice, *rest: SendfileSlice) -> None:
        """Send the rest of an answer that another sender has begun. Call ``open`` before; it must have
        returned a descriptor.

        The rest is ``lead`` (bytes of the head and copied bytes), then ``file_slice`` from ``position`` in
        its file, then ``rest``.
        """
        direct = self._direct
        assert direct is not None, "a sender with a descriptor has a socket"
        if lead:
            tail = file_slice.pin()[position - file_slice.start :]
            self.transport.writelines((lead, tail, *(one.pin() for one in rest)))
            return
        self._sent += max(position - file_slice.first, 0)
        self.waiting, self._rest, self._position = file_slice, rest, position
        self._send_on(direct, file_slice)
        if rest:
            self._send_rest(direct)
        if self.waiting is not None:
            # Keep the pages pinned, because their bytes must not change before the kernel has taken all of
            # them.
            self._keep = [one.pin() for one in (self.waiting, *self._rest)]
            asyncio.get_running_loop().add_writer(direct.fileno(), self._continue, direct)

    async def idle(self) -> None:
        """Wait until no bytes of a file wait (``busy`` is False)."""
        if self.waiting is not None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def close(self) -> None:
        """Close the second socket, because the connection has ended. Idempotent."""
        if self._direct is not None and self._keep:
            asyncio.get_running_loop().remove_writer(self._direct.fileno())
        super().close()
        self._end()

    # ------------------------------------------------------------------ inside

    def _send_on(self, direct: socket.socket, file_slice: SendfileSlice) -> None:
        """Send a slice from ``_position`` on, until all of it is sent or the client takes no more. Bytes that
        may leave by sendfile do so.
        """
        begin = position = self._position
        handle, file, _, first, last, stop = file_slice
        try:
            while position < first < last:
                position += direct.send(handle.window[position:first], _FLAGS)
            while file is not None and first <= position < last:
                count = os.sendfile(direct.fileno(), file.descriptor, position, last - position)
                if not count:
                    raise OSError(errno.EIO, "the segment file ends before the record does")  # noqa: TRY301
                position += count
            while position < stop:
                position += direct.send(handle.window[position:stop], _FLAGS)
        except BlockingIOError:
            pass
        except OSError as error:
            self._cut(error)
            position, self._rest = stop, ()
        self._sent += position - begin
        self._position = position
        if position == stop:
            self.waiting = None

    def _send_rest(self, direct: socket.socket) -> None:
        """Send the slices after the first, as far as the client takes bytes now."""
        while self.waiting is None and self._rest:
            file_slice, self._rest = self._rest[0], self._rest[1:]
            self.waiting, self._position = file_slice, file_slice.start
            self._send_on(direct, file_slice)

    def _continue(self, direct: socket.socket) -> None:
        if self.waiting is not None:
            self._send_on(direct, self.waiting)
        self._send_rest(direct)
        if self.waiting is None:
            asyncio.get_running_loop().remove_writer(direct.fileno())
            self._end()
            self._on_idle()

    def _cut(self, error: OSError) -> None:
        """Reset the connection after an error of the client's socket or of the file, so that the answer does
        not look complete.
        """
        if not isinstance(error, ConnectionError):
            self._on_cut(str(error))
        break_off(self.transport)

    def _end(self) -> None:
        self.waiting, self._rest, self._keep = None, (), []
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
