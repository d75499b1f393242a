"""Chooses the requests that a worker itself forwards to the origin, and serves them.

Law: before the worker reads a request's body, it decides whether to forward the request. It forwards a
request that is authorised, whose client shares the proxy's upstream, and that the cache may not answer. Every
other request is relayed to the coordinator.
"""

import asyncio

from shadeproxy.api.s3.authorizer import RequestAuthorizer
from shadeproxy.api.s3.forward_handler import ForwardHandler
from shadeproxy.api.s3.head import Head
from shadeproxy.api.s3.pending_forward import ForwardingConnection, PendingForward
from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.core.types import SHARED


class WorkerForwarder:
    """Lets ``handler`` serve the requests that this process forwards. ``authorizer`` decides which requests
    these are.
    """

    def __init__(self, handler: ForwardHandler, authorizer: RequestAuthorizer) -> None:
        self._handler = handler
        self._authorizer = authorizer
        self._pending: set[PendingForward] = set()

    def begin(self, head: Head, connection: ForwardingConnection) -> PendingForward | None:
        """Begin to serve the request with the head ``head``, of a client's ``connection``. Return None, with
        nothing done, if the request must be relayed.
        """
        try:
            known = self._authorizer.identify(head.method, head.target, head.fields)
        except ShadeProxyError:
            return None  # The request is relayed: the coordinator finds the same error and answers it.
        if known[0].identity.upstream != SHARED or self._authorizer.reads_cache(known[0]):
            return None
        pending = PendingForward(connection, self._handler, head, known)
        self._pending.add(pending)
        pending.call_at_end(self._pending.discard)
        return pending

    async def aclose(self) -> None:
        """End the requests that are still under way."""
        pending = list(self._pending)
        for one in pending:
            one.cancel()
        await asyncio.gather(*(one.over() for one in pending))
