"""Client connections that answer bytes which are not HTTP in the form of their listener. aiohttp would answer
such bytes by itself, with a text of its own.

Law: only bytes that are not HTTP are answered here. If an answer has begun before, it is broken off, and no
other answer follows it.
"""

from collections.abc import Callable

from aiohttp import web

# aiohttp accepts the next request two steps of the event loop after an answer. Allow for a few more steps.
_STEPS_TO_IDLE = 8
_LOOK_AGAIN_S = 0.01


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

    def call_when_idle(self, call: Callable[[], None], steps: int = _STEPS_TO_IDLE) -> None:
        """Call ``call`` once aiohttp can take the next request: now, in one of the next ``steps`` steps of
        the loop, or later. If the connection ends before, never call it.
        """
        if self.transport is None or self.transport.is_closing():
            return
        if self._waiter is not None and not self._waiter.done() and not self._messages:
            call()
        elif steps:
            self._loop.call_soon(self.call_when_idle, call, steps - 1)
        else:
            # aiohttp still has its request, or reads the rest of a body that its handler did not read.
            self._loop.call_later(_LOOK_AGAIN_S, self.call_when_idle, call, 0)

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
