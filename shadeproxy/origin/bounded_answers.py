"""Connections of aiohttp with bounds on what a server sends: interim answers, heads, and framing of bodies.

aiohttp accepts any number of interim answers, and bounds each line of a head but not their sum. The bounds
here are those of the project's own connections (connection.py, http1.py). Bytes are parsed in slices, so that
a flood within one read of the socket ends the connection early. Bytes after the end of an answer are not
parsed, and end the connection.
"""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.streams import StreamReader

from shadeproxy.origin.http1 import MOST_HEAD_BYTES
from shadeproxy.origin.interim import MOST_INTERIM

_SLICE_BYTES = 4 << 10

BEGIN: ContextVar[Callable[[], None] | None] = ContextVar("begin", default=None)
"""Called when a connection begins to send a request of this task."""


class NoAnswer(aiohttp.ClientError):
    """An error for bytes of a server that are no answer to a request."""


class BoundedAnswers(ResponseHandler):
    """One connection. An answer beyond the bounds raises NoAnswer, and ends the connection.

    One more interim answer is allowed for each second since the request, because a server may send them while
    it works for minutes.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._body: StreamReader | None = None
        self._interim = 0
        self._asked_s = 0.0
        self._left = b""  # Bytes that arrived, but were not parsed yet.
        self._contentless = 0  # Bytes since the last interim answer, head or byte of a body.

    def set_response_params(self, **params: Any) -> None:
        """Begin an exchange. aiohttp calls it before it sends a request."""
        self._body, self._interim, self._contentless, self._left = None, 0, 0, b""
        self._asked_s = self._loop.time()
        if (begin := BEGIN.get()) is not None:
            begin()
        super().set_response_params(**params)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Take in a parsed head, and the reader of its body. aiohttp calls it for each answer."""
        message, body = data
        self._contentless = 0
        if self._body is not None:
            return  # ``data_received`` ends the connection.
        if 100 <= message.code < 200 and message.code != 101:
            self._interim += 1
        else:
            self._body = body
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        """Parse the bytes that have arrived, until the reader of the body pauses. aiohttp calls this without
        bytes when that reader goes on.
        """
        before = self._content_bytes
        self._parse_all(self._left + data)
        if len(data) > 2 * (self._content_bytes - before) + _SLICE_BYTES and self.is_connected():
            # A body that is mostly framing takes time to parse, but never fills the buffer of its reader. So
            # let other tasks run before more of it arrives.
            assert self.transport is not None, "it is connected"
            self.transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self.transport is not None and self.is_connected() and not self._reading_paused:
            self.transport.resume_reading()

    @property
    def _content_bytes(self) -> int:
        return 0 if self._body is None else self._body.total_bytes

    def _parse_all(self, data: bytes) -> None:
        self._left, at = b"", 0
        while True:
            piece = data[at : at + _SLICE_BYTES]
            if piece and self._body is not None and self._body.is_eof():
                self._end()  # These bytes are no part of an answer.
                return
            self._parse(piece)
            at += len(piece)
            if at >= len(data) or not self.is_connected():
                return
            if self._reading_paused:
                self._left = data[at:]
                return

    def _parse(self, piece: bytes) -> None:
        self._contentless += len(piece)
        before = self._content_bytes
        super().data_received(piece)
        if self._content_bytes > before:
            self._contentless = 0
        if self._interim > MOST_INTERIM + self._loop.time() - self._asked_s:
            self._refuse(NoAnswer("interim answers without end"))
        elif self._contentless > MOST_HEAD_BYTES:
            self._refuse(NoAnswer("a head, or the framing of a body, without end"))
        elif (error := self.exception()) is not None and self._body is not None:
            # aiohttp does not tell the reader of the body, which would wait for ever.
            self._refuse(error)

    def _refuse(self, error: BaseException) -> None:
        if self._body is not None and not self._body.is_eof():
            self._body.set_exception(NoAnswer(str(error)))
        self.set_exception(error)
        self._end()

    def _end(self) -> None:
        self.force_close()
        if self.transport is not None:
            self.transport.abort()


class BoundedConnector(aiohttp.TCPConnector):
    """A connector whose connections are BoundedAnswers. It skips an idle connection on which bytes have
    arrived, which aiohttp would take for the answer to the next request.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = partial(BoundedAnswers, self._loop)  # type: ignore[assignment]

    async def _get(self, key: Any, traces: Any) -> Any:
        while (connection := await super()._get(key, traces)) is not None:
            protocol = connection.protocol
            if protocol is not None and not protocol.should_close:
                return connection
            connection.close()
        return None
