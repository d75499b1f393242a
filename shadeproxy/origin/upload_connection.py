"""One HTTP/1.1 connection to an origin, for requests that may have a body.

The body is sent piece by piece, as fast as the server takes it. If the server refuses the request meanwhile,
the rest of the body is not sent, and the connection is not used again. But if it answers success, the body is
sent to its end: only then the write can have succeeded. The server has the pool's ``read_s`` to take each
piece, and again to answer after the last one. The time spent waiting for the next piece does not count.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable

from shadeproxy.core.deadline import DEFAULT_BOUNDS, ReadBounds
from shadeproxy.core.errors import BodyIncomplete, BodyMismatch
from shadeproxy.origin.connection import Connection
from shadeproxy.origin.http1 import Head
from shadeproxy.origin.interim import MOST_INTERIM

_JOINED_BYTES = 64 << 10
"""The longest first piece that is sent with the head, in one write."""
_REFUSED = 300
"""The least status of an answer that is no success."""


class BodyFailed(Exception):
    """The body of a request raised ``error``, so that the request was not sent whole."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class UploadConnection(Connection):
    """One connection. ``send`` takes the place of ``ask``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        lost: Callable[[Connection], None],
        bounds: ReadBounds = DEFAULT_BOUNDS,
    ) -> None:
        super().__init__(loop, lost, bounds)
        self._is_full = False  # True if the transport holds as many bytes as it may.
        self._works_long = False
        self._asked_s = self.since_s
        self._pulling: asyncio.Timeout | None = None  # It ends the wait for the body's next piece.

    async def send(
        self,
        request: bytes,
        first: bytes = b"",
        rest: AsyncIterator[bytes] | None = None,
        size: int | None = 0,
        *,
        bodiless: bool = False,
        works_long: bool = False,
    ) -> Head:
        """Send a request with the head ``request``, and return the head of the answer. Call it only while
        ``reusable``.

        ``first`` and ``rest`` are the body, which has ``size`` bytes; None: it ends with ``rest``.
        ``bodiless``: the request is a HEAD. ``works_long``: the server may work for long, if it sends a byte
        now and then.

        Raises BodyFailed, Dead, Broken, BadAnswer, OSError.
        """
        if size is not None and len(first) > size:
            raise BodyFailed(BodyMismatch("The body is longer than announced"))
        joined = first if len(first) <= _JOINED_BYTES else b""
        self.start(request + joined)
        self.bodiless, self._works_long, self._asked_s = bodiless, works_long, self.since_s
        try:
            is_sent = rest is None or await self._send_body(first, len(joined), rest, size)
            while self._head is None or not (is_sent or self._is_refused()):
                await self._arrival()
        except BaseException:
            # An answer may have ended the exchange already. But the server still waits for the body's rest,
            # and would take the next request for it.
            self.abort()
            raise
        if not is_sent or self._is_full or self._ended:
            # The server may not have got the whole body. So it would not find the next request.
            self.reusable, self._head = False, self._head._replace(keep_alive=False)
        # A 204 is the usual answer to a DELETE. It needs no rest, unlike the answer to a HEAD (pool.py). A
        # 304, which only an odd GET with a body can get here, has none either.
        self.bodiless = bodiless
        return self._head

    # ------------------------------------------------------------------ called by the transport and the pool

    @property
    def patience_s(self) -> float:
        return math.inf if self._works_long else super().patience_s

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # The transport asks for more bytes only when the kernel has taken all. So no end of a body that the
        # server has answered too early waits in the transport, where the end of the connection drops it.
        # A TLS transport is full with as many bytes as the limit, any other one only with more. The limit is
        # that of the TLS layer: some bytes may still wait below it.
        is_tls = transport.get_extra_info("sslcontext") is not None
        self._transport.set_write_buffer_limits(high=int(is_tls), low=0)

    def buffer_updated(self, count: int) -> None:
        if self._works_long:
            self.since_s = self._loop.time()
        super().buffer_updated(count)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        super()._wake()

    # ------------------------------------------------------------------ inside

    async def _send_body(
        self, first: bytes, written: int, rest: AsyncIterator[bytes], size: int | None
    ) -> bool:
        """Send the body, of which ``written`` bytes are sent. Return False if the request was refused, or the
        connection lost, before its end.
        """
        left, piece = (math.inf if size is None else size) - len(first), first[written:]
        await self._write(piece)
        if not left or self._is_refused():
            return not left
        try:
            async with asyncio.timeout(None) as limit:
                while True:
                    self._pulling = limit
                    pulled = await _next(rest)
                    self._pulling = None
                    if self._is_refused():
                        return False
                    if pulled is None:
                        break
                    left -= len(pulled)
                    if left < 0:
                        raise BodyFailed(BodyMismatch("The body is longer than announced"))
                    await self._write(pulled)
                    if not left or self._is_refused():
                        return not left
        except TimeoutError:
            if not limit.expired():
                raise
            return False
        finally:
            self._pulling = None
        if size is not None:
            raise BodyFailed(BodyIncomplete("The body is shorter than announced"))
        return True

    def _is_refused(self) -> bool:
        return self._head is not None and self._head.status >= _REFUSED

    async def _write(self, piece: bytes) -> None:
        """Send a piece of the body. Return when the kernel (the TLS layer, if there is one) has taken it, or
        the request was refused.
        """
        if piece and not self._is_closed:
            self._transport.write(piece)
        while (self._is_full or self._is_closed) and not self._is_refused():
            await self._arrival()

    @property
    def _is_closed(self) -> bool:
        # uvloop raises RuntimeError if bytes are written to a transport that has been closed.
        return self._ended or self._transport.is_closing()

    def _wake(self) -> None:
        super()._wake()
        if self._pulling is not None and (self._ended or self.failure is not None or self._is_refused()):
            self._pulling.reschedule(self._loop.time())
            self._pulling = None

    def _most_interim(self) -> float:
        """Return how many interim answers are accepted: one more for each second, because a server may send
        them while it works for minutes.
        """
        return MOST_INTERIM + self._loop.time() - self._asked_s


async def _next(body: AsyncIterator[bytes]) -> bytes | None:
    try:
        return await anext(body, None)
    except Exception as error:
        raise BodyFailed(error) from error
