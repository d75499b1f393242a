"""Connections that word an error answer themselves when aiohttp raises the error before it makes a request.

Law: only bytes that are not HTTP are answered here. An answer that has begun is cut off, not followed by
another answer.
"""

from aiohttp import web


class RefusingHandler(web.RequestHandler):
    """One client connection. Subclasses say how errors are answered that aiohttp raises before there is a
    request.
    """

    __slots__ = ()

    def refuse_malformed(self, request: web.BaseRequest, reason: str) -> web.StreamResponse:
        """Return the answer to bytes that are not HTTP. ``reason``: aiohttp's text."""
        raise NotImplementedError

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer when parsing fails (400). aiohttp calls this; the handlers that it serves raise nothing."""
        if request.writer.output_size > 0 or status != 400:
            raise ConnectionResetError(message or "the connection cannot go on") from exc
        return self.refuse_malformed(request, message or "")
