"""The handler of the listener for the other nodes of a cluster, which send it reads and writes of objects
that this node owns.

Laws: a request is answered here or refused, never sent to a third node. A refusal has the field
``x-shade-refused``. By this field, the node that sent the request knows that the answer is not the origin's,
and does not pass the answer on to its client. If an answer breaks off, the connection ends by a FIN.
"""

from collections.abc import Awaitable, Callable
from typing import Unpack

from shadeproxy.api.s3.auth.peers import PeerAuthenticator, not_of_cluster
from shadeproxy.api.s3.exchange import Asked, Call, Exchange, read_request
from shadeproxy.api.s3.forward_handler import HandlerSettings
from shadeproxy.api.s3.handler import BegunRead, S3Handler
from shadeproxy.api.s3.lane_read import BeginsReads
from shadeproxy.api.s3.operations import Touches
from shadeproxy.api.s3.plain_miss import MissOutlet
from shadeproxy.api.s3.request import S3Request
from shadeproxy.core.errors import AuthError, Misdirected, ShuttingDown
from shadeproxy.core.tracing import RELAYED
from shadeproxy.engine.base import ReadPath
from shadeproxy.engine.ownership import Ownership, Standing

# A node asks for this node's statistics (node_stats.py) by a GET of "/". To S3 this request means
# ListBuckets, which nodes never send each other.
_STATS = "ListBuckets"
_READS = frozenset({"GetObject", "HeadObject"})
_WRITES = frozenset({Touches.OBJECT, Touches.LISTED})


class PeerHandler(S3Handler):
    """The handler of one node. It uses the engine that also serves the node's clients. ``ownership``: tells
    which objects this node owns according to its own view.
    """

    breaks_off_with_fin = True

    def __init__(
        self,
        engine: ReadPath,
        authenticator: PeerAuthenticator,
        *,
        ownership: Ownership,
        begins: BeginsReads | None = None,
        stats: Callable[[], bytes] = lambda: b"{}",
        interim_every_s: float = 0.0,
        **options: Unpack[HandlerSettings],
    ) -> None:
        """``begins``, ``options``: see S3Handler. ``stats``: returns this node's statistics as JSON.
        ``interim_every_s``: seconds between interim answers (``S3Handler.interim_every_s``).
        """
        super().__init__(engine, authenticator, begins=begins, **options)
        self.interim_every_s = interim_every_s
        self._ownership = ownership
        self._stats = stats

    def begin_read(self, outlet: MissOutlet, asked: Asked) -> BegunRead | None:
        """Begin a read as S3Handler does, and mark it as relayed by another node."""
        was = RELAYED.set(True)
        try:
            return super().begin_read(outlet, asked)
        finally:
            RELAYED.reset(was)

    async def _answer(self, exchange: Exchange, serving: Awaitable[None]) -> None:
        was = RELAYED.set(True)
        try:
            await super()._answer(exchange, _noting_refusal(exchange, serving))
        finally:
            RELAYED.reset(was)

    async def _serve_parsed(self, exchange: Exchange, request: S3Request) -> None:
        call, authenticated = self._identify(request, exchange)
        if call.operation.name == _STATS:
            await self._tell_stats(exchange)
            return
        self._check_place(call)
        if self.reads_cache(call):
            await self._read(exchange, call, read_request(call))
        else:
            await self._forward(exchange, call, authenticated)

    async def _tell_stats(self, exchange: Exchange) -> None:
        body = self._stats()
        fields = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        await exchange.start(200, fields).write_eof(body)

    def _check_place(self, call: Call) -> None:
        """Raise Misdirected if, by this node's view, another node must serve the call. Raise NotOfCluster for
        an operation that nodes do not send each other. The engine checks the keys of a DeleteObjects later,
        when its body has been read.
        """
        ref, operation = call.ref, call.operation
        if operation.name in _READS:
            elsewhere = self._ownership.standing(ref) is Standing.FOREIGN
        elif operation.touches in _WRITES:
            elsewhere = operation.touches is Touches.OBJECT and not self._ownership.writes_here(ref)
        else:
            raise not_of_cluster(f"{operation.name} is executed by the proxy that the client called")
        if elsewhere:
            raise Misdirected(f"Another node serves {ref}, by the view of this one")


async def _noting_refusal(exchange: Exchange, serving: Awaitable[None]) -> None:
    try:
        await serving
    except (AuthError, Misdirected, ShuttingDown) as error:
        exchange.refused = type(error).__name__
        raise
