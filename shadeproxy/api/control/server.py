"""Connections of the control listener. They turn errors that aiohttp would answer by itself into error
answers of the control API.

Law: every error answer is the JSON of errors.py. aiohttp refuses bytes that are not HTTP before it makes a
request of them, and refuses an unknown ``Expect`` before it calls any middleware. Both are handled here. This
module does not know the single calls of the API.
"""

import asyncio
from typing import Any

import structlog
from aiohttp import web

from shadeproxy.api.control.errors import answer_error, translate_errors
from shadeproxy.core.errors import InvalidRequest

_log = structlog.get_logger("shadeproxy.control")
_MOST_REASON = 160
_HINT = "send HTTP/1.1 to http://, not https://; lines have up to 8190 bytes, heads up to 128 fields"


class ControlRunner(web.AppRunner):
    """An AppRunner whose connections answer errors in the form of the control API."""

    async def _make_server(self) -> web.Server:
        return _ControlServer(await super()._make_server())


class _ControlServer(web.Server):
    """Serves requests on connections of the class ``_ControlProtocol``."""

    def __init__(self, made: web.Server) -> None:
        serve = made.request_handler

        async def handle(request: Any) -> web.StreamResponse:
            return await translate_errors(request, serve)

        super().__init__(handle, request_factory=made.request_factory)

    def __call__(self) -> web.RequestHandler:
        return _ControlProtocol(
            self,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type] # aiohttp tests for None, its types do not say so
            # If this were True, aiohttp would unpack bodies on the event loop, without a limit.
            auto_decompress=False,
        )


class _ControlProtocol(web.RequestHandler):
    __slots__ = ()

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
