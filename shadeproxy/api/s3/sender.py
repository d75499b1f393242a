"""The fast lane's writer to a connection: through its transport, or straight from a file.

Laws: bytes leave in the order given. The file is used only while nothing waits in the transport, and the
transport only while nothing of a file waits (``busy``). Only the bytes of a file that a
``SendfileSlice`` allows leave by sendfile (tiers/lending.py); the rest is copied.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Callable

from shadeproxy.api.s3.response import reset_on_close
from shadeproxy.engine.base import SendfileSlice

LEAST_BYTES = 16 * 1024
"""Fewer bytes are copied: that takes one system call instead of two or three."""

UNASKED, ENCRYPTED = -1, -2
"""``Sender.descriptor`` if there is none."""

# Without MSG_MORE: if the head waits to leave in one packet with the first pages, 100 KB cost the server a
# fifth more and 1 MB a seventh more, as nginx costs more with tcp_nopush (docs/measurements.md).
_FLAGS = int(socket.MSG_DONTWAIT)


class Copying:
    """Writes through a transport, which keeps bytes that the client does not take now."""

    __slots__ = ("_transport",)

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        """Write whole answers, or parts of one."""
        self._transport.write(data)

    def writelines(self, pieces: tuple[bytes | memoryview, ...]) -> None:
        """Write like ``write``."""
        self._transport.writelines(pieces)

    def send(self, head: bytes, *loans: SendfileSlice) -> None:
        """Send ``head``, then the bytes of ``loans``."""
        self._transport.writelines((head, *(loan.pin() for loan in loans)))


class Sender:
    """The writer of one transport. ``on_idle`` is called when a file that had to wait for the client is sent.
    ``on_cut`` is called with the reason when an answer could not be finished although its client is there.
    """

    __slots__ = (
        "_direct", "_keep", "_loan", "_on_cut", "_on_idle", "_position", "_rest", "_sent", "_waiters",
        "descriptor", "transport",
    )  # fmt: skip

    def __init__(
        self, transport: asyncio.Transport, on_idle: Callable[[], None], on_cut: Callable[[str], None]
    ) -> None:
        self.transport = transport
        self._on_idle = on_idle
        self._on_cut = on_cut
        self._direct: socket.socket | None = None
        self.descriptor = UNASKED
        """Descriptor of the socket, after ``open``; ENCRYPTED if bytes must go through the transport."""
        self._loan: SendfileSlice | None = None
        self._rest: tuple[SendfileSlice, ...] = ()
        self._keep: list[memoryview] = []
        self._position = self._sent = 0
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def busy(self) -> bool:
        """True if a file is being sent faster than the client takes it."""
        return self._loan is not None

    @property
    def sent(self) -> int:
        """Bytes of files that were sent; it grows while the client takes them."""
        return self._sent

    def write(self, data: bytes) -> None:
        """Write through the transport, which keeps bytes that the client does not take now."""
        self.transport.write(data)

    def writelines(self, pieces: tuple[bytes | memoryview, ...]) -> None:
        """Write like ``write``."""
        self.transport.writelines(pieces)

    def send(self, head: bytes, *loans: SendfileSlice) -> None:
        """Send ``head``, then the bytes of ``loans``, at least one. Not while ``busy``."""
        loan, rest = loans[0], loans[1:]
        self.open()
        direct, first = self._direct, loan.first
        if direct is None or loan.last - first < LEAST_BYTES or self.transport.get_write_buffer_size():
            self.transport.writelines((head, *(one.pin() for one in loans)))
            return
        lead = head if first == loan.start else b"".join((head, loan.ticket.window[loan.start : first]))
        try:
            sent = direct.send(lead, _FLAGS)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._cut(error)
            return
        self.go_on(lead[sent:], first, loan, *rest)

    def go_on(self, lead: bytes, position: int, loan: SendfileSlice, *rest: SendfileSlice) -> None:
        """Send the rest of an answer that was begun; needs a ``descriptor``. The rest is ``lead`` (of the
        head and copied bytes), then ``loan`` from ``position`` of its file on, then ``rest``.
        """
        direct = self._direct
        assert direct is not None, "who has a descriptor has a socket"
        if lead:
            tail = loan.pin()[position - loan.start :]
            self.transport.writelines((lead, tail, *(one.pin() for one in rest)))
            return
        self._sent += max(position - loan.first, 0)
        self._loan, self._rest, self._position = loan, rest, position
        self._send_on(direct, loan)
        if rest:
            self._send_rest(direct)
        if self._loan is not None:
            # The pages must stay unchanged until the kernel has taken the rest of them.
            self._keep = [one.pin() for one in (self._loan, *self._rest)]
            asyncio.get_running_loop().add_writer(direct.fileno(), self._continue, direct)

    def open(self) -> int:
        """Return ``descriptor``, of a socket object of our own: the transport's has no send."""
        if self.descriptor == UNASKED:
            own = self.transport.get_extra_info("socket")
            if own is None or self.transport.get_extra_info("sslcontext") is not None:
                self.descriptor = ENCRYPTED
                return ENCRYPTED
            try:
                self._direct = socket.socket(fileno=os.dup(own.fileno()))
            except OSError:
                return UNASKED  # out of descriptors: the transport needs none
            self._direct.setblocking(False)
            self.descriptor = self._direct.fileno()
        return self.descriptor

    async def idle(self) -> None:
        """Wait until not ``busy``."""
        if self._loan is not None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def close(self) -> None:
        """Close at the end of the connection; idempotent."""
        if self._direct is not None:
            if self._keep:
                asyncio.get_running_loop().remove_writer(self._direct.fileno())
            self._direct.close()
            self._direct, self.descriptor = None, UNASKED
        self._end()

    # ------------------------------------------------------------------ inside

    def _send_on(self, direct: socket.socket, loan: SendfileSlice) -> None:
        """Send a slice from its position on, as much as possible from the file, until it is sent or the
        client's buffers are full.
        """
        begin = position = self._position
        ticket, file, _, first, last, stop = loan
        try:
            while position < first < last:
                position += direct.send(ticket.window[position:first], _FLAGS)
            while file is not None and first <= position < last:
                count = os.sendfile(direct.fileno(), file.descriptor, position, last - position)
                if not count:
                    raise OSError(errno.EIO, "the segment file ends before the record does")  # noqa: TRY301
                position += count
            while position < stop:
                position += direct.send(ticket.window[position:stop], _FLAGS)
        except BlockingIOError:
            pass
        except OSError as error:
            self._cut(error)
            position, self._rest = stop, ()
        self._sent += position - begin
        self._position = position
        if position == stop:
            self._loan = None

    def _send_rest(self, direct: socket.socket) -> None:
        """Send the following slices, as far as the client takes them."""
        while self._loan is None and self._rest:
            loan, self._rest = self._rest[0], self._rest[1:]
            self._loan, self._position = loan, loan.start
            self._send_on(direct, loan)

    def _continue(self, direct: socket.socket) -> None:
        if self._loan is not None:
            self._send_on(direct, self._loan)
        self._send_rest(direct)
        if self._loan is None:
            asyncio.get_running_loop().remove_writer(direct.fileno())
            self._end()
            self._on_idle()

    def _cut(self, error: OSError) -> None:
        """Reset after a client's reset or an unreadable file: neither may look like an end."""
        if not isinstance(error, ConnectionError):
            self._on_cut(str(error))
        reset_on_close(self.transport)

    def _end(self) -> None:
        self._loan, self._rest, self._keep = None, (), []
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
