"""``S3Server``: makes a listener's connections (connection.py). If the request cache is compiled, received
bytes go to its compiled form first.
"""

import sys

from aiohttp import web

from shadeproxy.api.s3.compiled import compiled_protocol
from shadeproxy.api.s3.connection import S3Protocol
from shadeproxy.api.s3.connection_limit import ConnectionLimiter
from shadeproxy.api.s3.handler import S3Handler
from shadeproxy.api.s3.lane import FastLane
from shadeproxy.api.s3.response import KEEPALIVE_S
from shadeproxy.core.clock import SystemClock


class S3Server(web.Server):
    """The protocol factory for ``loop.create_server`` or ``web.ServerRunner``. Create it on the
    running loop.
    """

    def __init__(
        self,
        s3: S3Handler,
        fast: FastLane,
        *,
        keepalive_s: float = KEEPALIVE_S,
        limiter: ConnectionLimiter | None = None,
    ) -> None:
        """``limiter``: limits the connections of all listeners of the process together; None: no limit."""
        # If a client goes away, aiohttp cancels its handler. The handler then ends the client's read or its
        # request to the origin.
        super().__init__(s3, handler_cancellation=True)
        self._s3 = s3
        self._fast = fast
        self._keepalive_s = keepalive_s
        self._limiter = limiter or ConnectionLimiter(sys.maxsize, clock=SystemClock())
        self._protocol = S3Protocol if fast.hits is None else compiled_protocol(S3Protocol, fast.hits)

    def __call__(self) -> S3Protocol:
        return self._protocol(
            self, self._s3, self._fast, keepalive_s=self._keepalive_s, limiter=self._limiter
        )
