"""The fast lane's writer of a connection. It writes through the transport, or sends a file by sendfile.

Laws: bytes leave in the order in which they are given. A file is sent only while no bytes wait in the
transport, and the transport is used only while no bytes of a file wait (``busy``). Only bytes that a
``SendfileSlice`` allows leave by sendfile (tiers/sendfile.py); all others are copied. After a wait, bytes of
a page on a disk are sent only if they are still in the page cache, where they were checked. Otherwise they
are first loaded and checked again, off the event loop.
"""

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from shadeproxy.api.s3.response import break_off
from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.engine.base import PageHandle, SendfileSlice
from shadeproxy.engine.storage.disk_page import EDGE_BYTES
from shadeproxy.tiers.base import SendableFile

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

    __slots__ = ("writing_bytes",)

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self.writing_bytes = 0
        """Number of bytes that ``writelines`` passes to the transport now; 0 before and after."""

    def write(self, data: bytes) -> None:
        """Write ``data``: whole answers, or a part of one."""
        self.transport.write(data)

    def writelines(self, pieces: tuple[bytes | memoryview, ...]) -> None:
        """Write ``pieces`` in their order."""
        self.writing_bytes = sum(map(len, pieces))
        try:
            self.transport.writelines(pieces)
        finally:
            self.writing_bytes = 0

    def send(self, head: bytes, *slices: SendfileSlice) -> None:
        """Send ``head``, then the bytes of ``slices``."""
        self.transport.writelines((head, *(file_slice.pin() for file_slice in slices)))


class _Piece(NamedTuple):
    """Bytes ``[start, stop)`` of ``window`` that wait for the client. Of these, ``[first, last)`` may leave
    ``file`` by sendfile.

    ``pinned``: keeps the page, so that its bytes do not change before the kernel has taken all of them.
    ``handle``: the handle of a page on a disk, which may leave the page cache; otherwise None.
    """

    window: memoryview
    file: SendableFile | None
    start: int
    first: int
    last: int
    stop: int
    pinned: memoryview | None = None
    handle: PageHandle | None = None

    @property
    def is_resident(self) -> bool:
        """True if the bytes can be touched without waiting."""
        return self.handle is None or self.handle.tier.is_resident(self.handle.location)


class Sender(DirectWriter):
    """The writer of one connection. ``on_idle``: called when a file that had to wait for the client has been
    sent. ``on_cut``: called with the reason when an answer breaks off although its client is still connected.
    """

    __slots__ = (
        "_load",
        "_on_cut",
        "_on_idle",
        "_pieces",
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
        self.waiting: _Piece | None = None
        """The piece whose bytes wait until the client takes more of them; None unless ``busy``."""
        self._pieces: deque[_Piece] = deque()  # The pieces that follow it.
        self._load: asyncio.Task[None] | None = None
        self._sent = 0
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def busy(self) -> bool:
        """True if bytes of a file wait until the client takes more of them."""
        return self.waiting is not None

    @property
    def is_loading(self) -> bool:
        """True while the bytes that must be sent next are read from a disk."""
        return self._load is not None

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
        while ``busy``, or with a page on a disk if ``open`` has returned no descriptor.
        """
        file_slice, rest = slices[0], slices[1:]
        self.open()
        direct, first = self._direct, file_slice.first
        waiting_bytes = self.transport.get_write_buffer_size()
        # A page on a disk must not wait in the transport, which would touch it at any time.
        if direct is None or (
            not file_slice.handle.can_wait and (waiting_bytes or file_slice.last - first < LEAST_BYTES)
        ):
            self.transport.writelines((head, *(one.pin() for one in slices)))
            return
        lead = (
            head
            if first == file_slice.start
            else b"".join((head, file_slice.handle.window[file_slice.start : first]))
        )
        sent = 0
        if not waiting_bytes:
            try:
                sent = direct.send(lead, _FLAGS)
            except BlockingIOError:
                pass
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
        if lead and not file_slice.handle.can_wait:
            tail = file_slice.pin()[position - file_slice.start :]
            self.transport.writelines((lead, tail, *(one.pin() for one in rest)))
            return
        self._sent += max(position - file_slice.first, 0)
        slices = [file_slice, *rest]
        if lead:
            self.transport.write(lead)
        while slices and not lead:
            handle, file, _, first, last, stop = slices[0]
            position = self._push(direct, _Piece(handle.window, file, position, first, last, stop))
            if position < 0:
                return
            if position < stop:
                break
            del slices[0]
            position = slices[0].start if slices else 0
        for one in slices:
            self._pieces += _pieces_of(one, position if one is slices[0] else one.start)
        if slices:
            self.waiting = self._pieces.popleft()
            asyncio.get_running_loop().add_writer(direct.fileno(), self._continue, direct)

    async def idle(self) -> None:
        """Wait until no bytes of a file wait (``busy`` is False)."""
        if self.waiting is not None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def close(self) -> None:
        """Close the second socket, because the connection has ended. Idempotent."""
        if self._direct is not None and self.waiting is not None:
            asyncio.get_running_loop().remove_writer(self._direct.fileno())
        if self._load is not None:
            self._load.cancel()
            self._load = None
        super().close()
        self._end()

    # ------------------------------------------------------------------ inside

    def _push(self, direct: socket.socket, piece: _Piece) -> int:
        """Send the bytes of ``piece`` as far as the client takes them now. Return the position of the first
        byte that was not sent; -1 if the connection was reset because of an error.
        """
        window, file, position, first, last, stop = piece[:6]
        try:
            while position < first < last:
                position += direct.send(window[position:first], _FLAGS)
            while file is not None and first <= position < last:
                count = os.sendfile(direct.fileno(), file.descriptor, position, last - position)
                if not count:
                    raise OSError(errno.EIO, "the segment file ends before the record does")  # noqa: TRY301
                position += count
            while position < stop:
                position += direct.send(window[position:stop], _FLAGS)
        except BlockingIOError:
            pass
        except OSError as error:
            self._cut(error)
            return -1
        finally:
            self._sent += position - piece.start
        return position

    def _push_waiting(self, direct: socket.socket, piece: _Piece) -> bool:
        """Send the waiting piece. Return True if the client has taken all of it."""
        position = self._push(direct, piece)
        if 0 <= position < piece.stop:
            self.waiting = piece._replace(start=position)
            return False
        if position < 0:
            self._pieces.clear()
        self.waiting = self._pieces.popleft() if self._pieces else None
        return True

    def _continue(self, direct: socket.socket) -> None:
        if self.transport.get_write_buffer_size():
            return  # The head leaves first. The transport sends it as soon as the client takes more.
        while (piece := self.waiting) is not None:
            if not piece.is_resident:
                loop = asyncio.get_running_loop()
                loop.remove_writer(direct.fileno())
                self._load = loop.create_task(self._load_again(direct, piece))
                return
            if not self._push_waiting(direct, piece):
                return
        asyncio.get_running_loop().remove_writer(direct.fileno())
        self._end()
        self._on_idle()

    async def _load_again(self, direct: socket.socket, piece: _Piece) -> None:
        """Load the page of the waiting piece and check it. Then go on."""
        assert piece.handle is not None, "only a page on a disk leaves memory"
        assert piece.handle.load_again is not None, "it has a handle of such a page"
        try:
            await piece.handle.load_again(piece.handle)
        except ShadeProxyError as error:
            self._load = None
            self._cut(error)
            self._end()
            return
        self._load = None
        # The piece is sent without another look, so that the answer goes on even if the kernel drops the page
        # after each load.
        self._push_waiting(direct, piece)
        asyncio.get_running_loop().add_writer(direct.fileno(), self._continue, direct)

    def _cut(self, error: OSError | ShadeProxyError) -> None:
        """Reset the connection after an error of the client's socket or of the file, so that the answer does
        not look complete.
        """
        if not isinstance(error, ConnectionError):
            self._on_cut(str(error))
        break_off(self.transport)

    def _end(self) -> None:
        self.waiting = None
        self._pieces.clear()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _pieces_of(file_slice: SendfileSlice, position: int) -> list[_Piece]:
    """Return the bytes of a slice from ``position`` on, for a wait. Raises TierError.

    Of a page on a disk, the first and the last bytes are copied (``EDGE_BYTES``), because after the wait
    ``is_resident`` says nothing about blocks that the page shares with others.
    """
    handle, file, _, first, last, stop = file_slice
    window = handle.window
    pinned = handle.tier.pin_window(handle.location, handle.start, handle.stop)
    if not handle.can_wait:
        return [_Piece(window, file, position, first, last, stop, pinned)]
    begin = min(position + EDGE_BYTES, stop)
    end = max(begin, stop - EDGE_BYTES)
    first = max(first, begin)
    middle = _Piece(window, file, begin, first, max(first, min(last, end)), end, pinned, handle)
    edges = [memoryview(bytes(window[start:till])) for start, till in ((position, begin), (end, stop))]
    head, tail = [_Piece(edge, None, 0, 0, 0, len(edge)) for edge in edges]
    return [piece for piece in (head, middle, tail) if piece.start < piece.stop]
