"""The authorisation in a worker: it answers only clients that share the proxy's upstream.

Law: for a client with an upstream of its own, the origin decides each read, and only the coordinator knows
the verdicts. So a worker does not answer such a client. It does not remember the client's requests either:
they would match objects that are remembered for other clients.
"""

from typing import Unpack

from shadeproxy.api.s3.auth.authenticator import Authenticator
from shadeproxy.api.s3.authorizer import RequestAuthorizer
from shadeproxy.api.s3.exchange import Call
from shadeproxy.api.s3.forward import ForwardPath
from shadeproxy.api.s3.forward_handler import HandlerSettings
from shadeproxy.api.s3.otel_handler import OtelForwarding, OtelRequests
from shadeproxy.core.types import SHARED
from shadeproxy.engine.base import ReadsNow
from shadeproxy.telemetry.otel import OtelTracer


class SharedReadsAuthorizer(RequestAuthorizer):
    """Authorises requests in a worker. Only clients that share the proxy's upstream may read the
    cache there.
    """

    def reads_cache(self, call: Call) -> bool:
        """Return whether the cache may answer this call in this process. If not, the call is relayed."""
        return self.may_remember(call) and super().reads_cache(call)

    def may_remember(self, call: Call) -> bool:
        return call.identity.upstream == SHARED


class OtelForwardHandler(OtelForwarding):
    """A worker's ``ForwardHandler`` whose requests have otel spans."""

    def __init__(
        self,
        reads: ReadsNow,
        path: ForwardPath,
        authenticator: Authenticator,
        *,
        tracer: OtelTracer,
        **options: Unpack[HandlerSettings],
    ) -> None:
        """Make the handler. ``options``: as for ForwardHandler."""
        self._spans = OtelRequests(tracer, options["observer"])
        options["observer"] = self._spans
        super().__init__(reads, path, authenticator, **options)
