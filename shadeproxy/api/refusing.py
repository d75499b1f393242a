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

    def _awaits_body(self) -> bool:
        """Return whether aiohttp has a request whose body may still be to come. After ``close`` it would drop
        the rest of it.
        """
        if (request := self._current_request) is not None:
            return not request.content.is_eof() and request.content.exception() is None
        waiter, handler = self._waiter, self._task_handler
        # It has taken a request, and begins to handle it some steps of the loop later.
        return (waiter is None or waiter.done()) and handler is not None and not handler.done()

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
