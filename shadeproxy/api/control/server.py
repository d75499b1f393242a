"""Connections of the control listener. They turn errors that aiohttp would answer by itself into error
answers of the control API, and reset clients that do nothing.

Laws: every error answer is the JSON of errors.py. aiohttp refuses bytes that are not HTTP before it makes a
request of them, and refuses an unknown ``Expect`` before it calls any middleware. Both are handled here. As
on the S3 listener, a client holds a connection no longer than ``KEEPALIVE_S`` to twice that time if it sends
no request, sends no more of its body, or takes nothing of its answer. Connections beyond ``_OWN`` count as
those of S3 clients do, and are at most half of them, so that no clients take the last descriptors. This
module does not know the single calls of the API.
"""

import asyncio
from typing import Any, cast

import structlog
from aiohttp import web

from shadeproxy.api.control.errors import answer_error, translate_errors
from shadeproxy.api.s3.connection_limit import ConnectionLimiter
from shadeproxy.api.s3.response import KEEPALIVE_S, break_off
from shadeproxy.core.errors import InvalidRequest

_log = structlog.get_logger("shadeproxy.control")
_MOST_REASON = 160
_OWN = 32
"""Connections for which the proxy keeps descriptors: those of probes, and of commands."""
_HINT = "send HTTP/1.1 to http://, not https://; lines have up to 8190 bytes, heads up to 128 fields"


class ControlRunner(web.AppRunner):
    """An AppRunner whose connections answer errors in the form of the control API. ``keepalive_s``: seconds
    between two checks of a connection.
    """

    def __init__(
        self, app: web.Application, *, shutdown_timeout: float = 60.0, keepalive_s: float = KEEPALIVE_S
    ) -> None:
        super().__init__(app, shutdown_timeout=shutdown_timeout)
        self.keepalive_s = keepalive_s
        self.limiter: ConnectionLimiter | None = None
        """Limits connections, together with those of S3 clients."""

    async def _make_server(self) -> web.Server:
        return _ControlServer(await super()._make_server(), self)


class _ControlServer(web.Server):
    """Serves requests on connections of the class ``_ControlProtocol``."""

    def __init__(self, made: web.Server, runner: ControlRunner) -> None:
        serve = made.request_handler
        self.keepalive_s = runner.keepalive_s
        self._runner = runner
        self._inside = 0
        self._limited = 0
        """Number of connections that the limiter counts."""

        async def handle(request: Any) -> web.StreamResponse:
            return await translate_errors(request, serve)

        super().__init__(handle, request_factory=made.request_factory)

    def enter(self) -> bool:
        """Count a connection unless there are too many. Return True if it was counted; ``leave`` must then be
        called when it ends.
        """
        limiter = self._runner.limiter
        if limiter is not None and self._inside - self._limited >= _OWN:
            if self._limited >= limiter.most // 2 or not limiter.enter():
                return False
            self._limited += 1
        self._inside += 1
        return True

    def leave(self) -> None:
        """Count one connection less, because it has ended."""
        self._inside -= 1
        if self._limited and self._runner.limiter is not None:
            self._limited -= 1
            self._runner.limiter.leave()

    def __call__(self) -> web.RequestHandler:
        return _ControlProtocol(
            self,
            loop=asyncio.get_running_loop(),
            access_log=None,
            # If this were True, aiohttp would unpack bodies on the event loop, without a limit.
            auto_decompress=False,
        )


class _ControlProtocol(web.RequestHandler):
    __slots__ = ("_before", "_server", "_timer")

    def __init__(self, server: _ControlServer, **options: Any) -> None:
        super().__init__(server, **options)
        self._server = server
        self._before: tuple[int, ...] | None = None
        """The result of ``_progress`` at the last check."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not self._server.enter():
            self._force_close = True  # Bytes that come nevertheless are dropped.
            break_off(cast(asyncio.Transport, transport))
            return
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._timer is None:
            return  # It was refused.
        self._timer.cancel()
        self._server.leave()
        super().connection_lost(exc)

    def _watch(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._server.keepalive_s, self._look)

    def _look(self) -> None:
        """Reset the connection if the proxy waits for its client, which has done nothing since the last
        check.
        """
        if self.transport is None:
            return
        progress = self._progress(self.transport.get_write_buffer_size())
        if not self._request_count or (progress is not None and progress == self._before):
            _log.debug("client cut off", requests=self._request_count)
            break_off(self.transport)
            return
        self._before = progress
        self._watch()

    def _progress(self, waiting_bytes: int) -> tuple[int, ...] | None:
        """Return numbers that change when the client does something; None if the proxy does not wait for
        it.
        """
        request, count = self._current_request, self._request_count
        if request is None:
            return (count, waiting_bytes) if waiting_bytes else None
        if waiting_bytes:
            return count, waiting_bytes, request.writer.output_size
        body = request.content
        return None if body.is_eof() or self._reading_paused else (count, body.total_bytes)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer bytes that are not HTTP with an error in the form of the control API. If an answer has begun
        before, break it off. aiohttp also calls this if a handler raises an error, but the handlers of this
        listener raise none.
        """
        if request.writer.output_size > 0 or status != 400:
            raise ConnectionResetError(message or "the connection cannot go on") from exc
        # Use only the first line of the reason, because the others repeat the received bytes.
        reason = (message or "").partition("\n")[0].rstrip(":")[:_MOST_REASON]
        reason = reason.encode("ascii", "backslashreplace").decode()
        _log.debug("not HTTP", reason=reason)
        answer = answer_error(InvalidRequest(f"the request is not valid HTTP/1.1: {reason}", hint=_HINT))
        answer.force_close()
        return answer
