"""Connections whose listener tells in its own form of error what aiohttp refuses before there is a request.

Law: nothing is answered here but bytes that are no HTTP; an answer that has begun is cut, not followed by
another one.
"""

from aiohttp import web


class RefusingHandler(web.RequestHandler):
    """One client connection."""

    __slots__ = ()

    def refuse_malformed(self, request: web.BaseRequest, reason: str) -> web.StreamResponse:
        """The answer to what is no HTTP, of which aiohttp says ``reason``."""
        raise NotImplementedError

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What aiohttp asks for when parsing fails (400); what it serves raises nothing."""
        if request.writer.output_size > 0 or status != 400:
            raise ConnectionResetError(message or "the connection cannot go on") from exc
        return self.refuse_malformed(request, message or "")
