"""Client connections that answer bytes which are not HTTP in the form of their listener. aiohttp would answer
such bytes by itself, with a text of its own.

Law: only bytes that are not HTTP are answered here. If an answer has begun before, it is broken off, and no
other answer follows it.
"""

from aiohttp import web


class RefusingHandler(web.RequestHandler):
    """One client connection. Subclasses write the error answer to bytes that are not HTTP."""

    __slots__ = ()

    def _awaits_body(self) -> bool:
        """Return True if aiohttp has a request whose body may still be to come. After ``close``, aiohttp
        would drop the rest of that body.
        """
        if (request := self._current_request) is not None:
            return not request.content.is_eof() and request.content.exception() is None
        waiter, handler = self._waiter, self._task_handler
        # True if aiohttp has parsed a request whose handler has not begun yet: that takes some steps of the
        # loop.
        return (waiter is None or waiter.done()) and handler is not None and not handler.done()

    def refuse_malformed(self, request: web.BaseRequest, reason: str) -> web.StreamResponse:
        """Return the answer to bytes that are not HTTP. ``reason``: aiohttp's text about them."""
        raise NotImplementedError

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer bytes that cannot be parsed with status 400. aiohttp also calls this if a handler raises an
        error, but the handlers of these listeners raise none.
        """
        if request.writer.output_size > 0 or status != 400:
            raise ConnectionResetError(message or "the connection cannot go on") from exc
        return self.refuse_malformed(request, message or "")
