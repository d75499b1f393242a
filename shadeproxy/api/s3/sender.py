"""The writing side of a connection for the fast lane: through its transport, or straight from a file.

Laws: bytes leave in the order in which they were given; the file is only used while nothing of the transport
waits, and the transport only when nothing of the file does (``busy``); of a file only what a loan allows is
sent without a copy (tiers/lending.py), the rest is copied.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Callable

from shadeproxy.api.s3.response import reset_on_close
from shadeproxy.engine.base import Loan

LEAST_BYTES = 16 * 1024
"""Fewer are copied: that takes one system call instead of two or three."""

UNASKED, ENCRYPTED = -1, -2
"""``Sender.descriptor`` where there is none."""

# Without MSG_MORE: a head that waits to leave in one packet with the first pages makes 100 KB a fifth and
# 1 MB a seventh dearer for the server, as nginx is dearer with tcp_nopush (docs/measurements.md).
_FLAGS = int(socket.MSG_DONTWAIT)


class Copying:
    """Writes through a transport, which keeps what the client does not take now."""

    __slots__ = ("_transport",)

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        """Whole answers, or parts of one."""
        self._transport.write(data)

    def writelines(self, pieces: tuple[bytes | memoryview, ...]) -> None:
        """As ``write``."""
        self._transport.writelines(pieces)

    def send(self, head: bytes, *loans: Loan) -> None:
        """``head``, then the bytes of ``loans``."""
        self._transport.writelines((head, *(loan.pin() for loan in loans)))


class Sender:
    """For one transport. ``on_idle``: called when a file that had to wait for the client is sent. ``on_cut``:
    called with the reason when an answer could not be finished although its client is there.
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
        """Of the socket, once ``open`` was asked; ENCRYPTED where bytes cannot go past the transport."""
        self._loan: Loan | None = None
        self._rest: tuple[Loan, ...] = ()
        self._keep: list[memoryview] = []
        self._position = self._sent = 0
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def busy(self) -> bool:
        """Whether a file is being sent that the client does not take fast enough."""
        return self._loan is not None

    @property
    def sent(self) -> int:
        """Bytes of files that were sent: it grows while the client takes them."""
        return self._sent

    def write(self, data: bytes) -> None:
        """Through the transport, which keeps what the client does not take now."""
        self.transport.write(data)

    def writelines(self, pieces: tuple[bytes | memoryview, ...]) -> None:
        """As ``write``."""
        self.transport.writelines(pieces)

    def send(self, head: bytes, *loans: Loan) -> None:
        """``head``, then the bytes of ``loans``, at least one. Not while ``busy``."""
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

    def go_on(self, lead: bytes, position: int, loan: Loan, *rest: Loan) -> None:
        """What is left of an answer that was begun: ``lead``, of the head and of what is copied, then
        ``loan`` from ``position`` of its file on, then ``rest``. For who has a ``descriptor``.
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
            # The pages must stay as they are until the kernel has taken the rest of them.
            self._keep = [one.pin() for one in (self._loan, *self._rest)]
            asyncio.get_running_loop().add_writer(direct.fileno(), self._continue, direct)

    def open(self) -> int:
        """``descriptor``, of a socket object of our own: the transport's has no send."""
        if self.descriptor == UNASKED:
            own = self.transport.get_extra_info("socket")
            if own is None or self.transport.get_extra_info("sslcontext") is not None:
                self.descriptor = ENCRYPTED
                return ENCRYPTED
            try:
                self._direct = socket.socket(fileno=os.dup(own.fileno()))
            except OSError:
                return UNASKED  # out of descriptors: the transport's own way needs none
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
        """The connection is over; idempotent."""
        if self._direct is not None:
            if self._keep:
                asyncio.get_running_loop().remove_writer(self._direct.fileno())
            self._direct.close()
            self._direct, self.descriptor = None, UNASKED
        self._end()

    # ------------------------------------------------------------------ inside

    def _send_on(self, direct: socket.socket, loan: Loan) -> None:
        """Send a loan from where it stands, as much of it as may be from the file, until it is sent or the
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
        """The loans that follow, as far as the client takes them."""
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
        """Reset by the client, or a file that cannot be read: either way it must not look like an end."""
        if not isinstance(error, ConnectionError):
            self._on_cut(str(error))
        reset_on_close(self.transport)

    def _end(self) -> None:
        self._loan, self._rest, self._keep = None, (), []
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
