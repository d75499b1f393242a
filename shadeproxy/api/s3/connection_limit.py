"""``ConnectionLimiter``: limits the open client connections, and answers clients above the limit.

Law: clients never take the last file descriptors. A process without a free descriptor cannot answer the
probes of its supervisor, ask the origin, or make a segment. So one connection too many would fail all
clients. This module counts connections and knows no operation.
"""

import asyncio
import mmap
import sys
from collections.abc import Callable
from typing import cast

from shadeproxy.api.s3.errors import answer_error
from shadeproxy.api.s3.exchange import with_own
from shadeproxy.api.s3.response import LINGER_S, close_later, connection_fields, render_head
from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import Overloaded, ShadeProxyError
from shadeproxy.core.tracing import next_request_id
from shadeproxy.core.types import Source
from shadeproxy.telemetry.requests import RequestCounts

_MOST_LINGERING = 32


ROW_BYTES = 16
"""Bytes of a row of counts: two i64, the open connections of a process and those that it has refused."""


def rows_of(memory: bytearray | mmap.mmap) -> "memoryview[int]":
    """Return ``memory`` as rows of counts."""
    return memoryview(memory).cast("q")


class ConnectionLimiter:
    """Limits connections to ``most``, over all listeners that share this object, and over all processes that
    share ``rows``.

    ``counts``: counts the refusals that this object sends. ``rows``: the counts of all processes, of which
    this one changes the row ``row``. ``own_most``: how many of the connections this process may have.
    """

    def __init__(
        self,
        most: int,
        *,
        clock: Clock,
        counts: RequestCounts | None = None,
        rows: "memoryview[int] | None" = None,
        row: int = 0,
        own_most: int = sys.maxsize,
    ) -> None:
        self.most = most
        self._rows = rows_of(bytearray(ROW_BYTES)) if rows is None else rows
        self._at = 2 * row
        self._own_most = own_most
        self._clock = clock
        self._lingering = 0
        self._counts = RequestCounts() if counts is None else counts

    @property
    def inside(self) -> int:
        """Number of open connections in all processes."""
        return sum(self._rows[::2])

    @property
    def refused(self) -> int:
        """Number of connections that all processes have refused."""
        return sum(self._rows[1::2])

    @property
    def _is_full(self) -> bool:
        return self._rows[self._at] >= self._own_most or self.inside >= self.most

    def enter(self) -> bool:
        """Count a connection unless a limit is reached. Return True if it was counted; the caller must then
        call ``leave`` when it ends.
        """
        if self._is_full:
            self._rows[self._at + 1] += 1
            return False
        self._rows[self._at] += 1
        return True

    def leave(self) -> None:
        """Count one connection less, because it has ended."""
        self._rows[self._at] -= 1

    def reserve(self) -> Callable[[], None] | None:
        """Count a connection whose TLS handshake begins. Return the function to call when the handshake has
        failed, or just before ``enter``. Return None if the connection must be closed now, because no more
        are allowed, and enough others already wait for their refusal. Those that wait for it are not counted.
        """
        if not self._is_full:
            self._rows[self._at] += 1
            return self.leave
        if self._lingering < _MOST_LINGERING:
            self._lingering += 1
            return self._lingered
        self._rows[self._at + 1] += 1
        return None

    def turn_away(self, transport: asyncio.BaseTransport) -> None:
        """Refuse a connection above the limit: answer 503 SlowDown without reading a request, and close. The
        caller must drop the bytes of the client.
        """
        out = cast(asyncio.Transport, transport)
        most = min(self.most, self._own_most)
        too_many = f"all {most} connections that clients may have are open; retry later"
        out.write(self._answer(Overloaded(too_many)))
        if self._lingering >= _MOST_LINGERING:
            out.close()
            return
        self._lingering += 1
        close_later(out)
        asyncio.get_running_loop().call_later(LINGER_S, self._lingered)

    def _lingered(self) -> None:
        self._lingering -= 1

    def _answer(self, error: ShadeProxyError) -> bytes:
        request_id = next_request_id()
        refusal = answer_error(error, resource="/", request_id=request_id)
        self._counts.group("Invalid", refusal.status, Source.BYPASS).observe(0.0)
        fields = [
            *refusal.headers,
            ("Content-Type", "application/xml"),
            ("Content-Length", str(len(refusal.body))),
        ]
        own = with_own(fields, request_id=request_id, now_s=self._clock.now_s(), source=Source.BYPASS)
        sent, _, _ = connection_fields(own, has_body=True, keep=False, http_11=True)
        return render_head(refusal.status, sent) + refusal.body
