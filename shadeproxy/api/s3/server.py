"""The connections of the S3 listener: aiohttp's protocol, with S3 answers to what is not even HTTP.

Here is the place of the fast lane (design 6.3): it may look at the bytes of an idle connection before
aiohttp does. Nothing here knows operations or the engine.
"""

import asyncio

from aiohttp import web

from shadeproxy.api.s3.handler import S3Handler

MAX_LINE_BYTES = 32 * 1024
"""Request line: a key of 1,024 bytes in UTF-8 is 3,072 escaped, a presigned URL adds a session token."""

MAX_FIELD_BYTES = 16 * 1024
"""One header field: S3 takes 8 KiB of headers, 2 KiB of them user metadata; session tokens grow."""

_READ_BYTES = 256 * 1024
_LINGER_S = 5.0


class S3Protocol(web.RequestHandler):
    """One client connection."""

    __slots__ = ("_s3",)

    def __init__(self, server: web.Server, s3: S3Handler, *, keepalive_s: float) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=keepalive_s,
            access_log=None,  # type: ignore[arg-type] # aiohttp tests for None, its types do not say so
            # A gzip upload is stored as it is sent.
            auto_decompress=False,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_FIELD_BYTES,
            read_bufsize=_READ_BYTES,
            lingering_time=_LINGER_S,
        )
        self._s3 = s3

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What aiohttp asks for when parsing fails (400); S3Handler itself raises nothing."""
        if request.writer.output_size > 0 or status != 400:
            raise ConnectionResetError(message or "the connection cannot go on") from exc
        return self._s3.refuse_malformed(request)


class S3Server(web.Server):
    """Protocol factory for ``loop.create_server`` or ``web.ServerRunner``. Create it on the running loop."""

    def __init__(self, s3: S3Handler, *, keepalive_s: float = 75.0) -> None:
        # A client that goes away cancels its handler, and so leaves the engine and the origin.
        super().__init__(s3, handler_cancellation=True)
        self._s3 = s3
        self._keepalive_s = keepalive_s

    def __call__(self) -> S3Protocol:
        return S3Protocol(self, self._s3, keepalive_s=self._keepalive_s)
