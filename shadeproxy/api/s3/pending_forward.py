"""A request for whose answer a connection waits, and that a task answers.

Laws: a connection has at most one pending request, and serves no other request meanwhile. If the answer is
complete before the body, the rest of the body is dropped for some seconds. If the connection ended at once,
the kernel would reset it, and the client could lose the answer.
"""

import asyncio
import weakref
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import Protocol

from shadeproxy.api.s3.auth.authenticator import Authenticated
from shadeproxy.api.s3.exchange import Call
from shadeproxy.api.s3.forward_handler import ForwardHandler
from shadeproxy.api.s3.head import Head
from shadeproxy.api.s3.port import Outlet, RequestPort
from shadeproxy.api.s3.request_body import BodyConnection, ClientBody
from shadeproxy.api.s3.response import break_off, unsent_bytes
from shadeproxy.core.errors import InvalidRequest
from shadeproxy.core.tracing import CONNECTION

LINGER_S = 5.0
"""Seconds for which the rest of a body is dropped after the answer."""


class ForwardingConnection(Outlet, BodyConnection, Protocol):
    """The methods of a connection that its forwarded request calls."""

    def read_over(self, *, keep: bool) -> None:
        """Note that the pending request has ended. Then serve the next request, or end the connection if not
        ``keep``.
        """
        ...


class PendingForward:
    """One request of ``connection``, which ``handler`` serves. ``body``: takes the bytes that follow the
    head. ``known``, ``refused``: see ``ForwardHandler.serve``.
    """

    __slots__ = ("__weakref__", "_connection", "_handler", "_head", "_known", "_refused", "_task", "body")

    def __init__(
        self,
        connection: ForwardingConnection,
        handler: ForwardHandler,
        head: Head,
        known: tuple[Call, Authenticated] | None = None,
        *,
        refused: InvalidRequest | None = None,
    ) -> None:
        self.body = ClientBody(head, connection)
        self._connection = connection
        self._handler = handler
        self._head = head
        self._known = known
        self._refused = refused
        # A new context, because the caller may run in that of another request.
        self._task = asyncio.get_running_loop().create_task(self._run(), context=Context())
        # A task that is cancelled before its first step runs no line of ``_run``.
        self._task.add_done_callback(self._ended)

    @property
    def may_be_followed(self) -> bool:
        """True if the client may send more behind this request: it has not asked for the end of the
        connection, or the request was not understood.
        """
        return self._head.keep_alive or self._refused is not None

    def look(self) -> None:
        """Do nothing: the task itself waits until the client takes more bytes."""

    def cancel(self) -> None:
        """End the request, because the client has gone or the time for a shutdown is over. Later calls do
        nothing.
        """
        self._task.cancel()

    def call_at_end(self, function: Callable[["PendingForward"], None]) -> None:
        """Call ``function`` when the request has ended."""
        self._task.add_done_callback(lambda _task: function(self))

    async def over(self) -> None:
        """Wait until the request has ended."""
        await asyncio.wait({self._task})

    async def _run(self) -> bool:
        """Serve the request. Return True if the connection continues."""
        CONNECTION.set(weakref.ref(self))
        try:
            port = RequestPort(self._connection, self._head, self.body)
            response = await self._handler.serve(port, self._known, refused=self._refused)
            if not self.body.is_read:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LINGER_S):
                        await self.body.drop()
            return bool(response.keep_alive) and self.body.is_over
        except asyncio.CancelledError as error:
            # The task keeps this error, and this object keeps the task. So drop the frames of the traceback,
            # which would keep the memory of the page that was passed on until the collector runs.
            raise error.with_traceback(None) from None

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the client has not taken yet, see ``ClientConnection``."""
        return unsent_bytes(self._connection.transport)

    def cut(self) -> None:
        """Reset the connection, see ``ClientConnection``."""
        if self._connection.transport is not None:
            break_off(self._connection.transport)

    def _ended(self, task: asyncio.Task[bool]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            facts = {"message": "a request ended by an error that was not answered", "exception": error}
            asyncio.get_running_loop().call_exception_handler(facts)
        self._connection.read_over(keep=not task.cancelled() and error is None and task.result())
