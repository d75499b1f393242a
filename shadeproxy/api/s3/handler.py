"""The S3 request handler: parses, authenticates and authorises a request, then reads from the cache or
forwards to the origin. It reads no configuration.

Law: the order of the checks is that of forward_handler.py.
"""

from typing import Unpack

from shadeproxy.api.s3.auth.authenticator import Authenticator
from shadeproxy.api.s3.exchange import Asked, Call, Exchange, client_of, read_request
from shadeproxy.api.s3.forward_handler import ForwardHandler, HandlerSettings
from shadeproxy.api.s3.lane_read import BeginsReads, EngineLaneRead
from shadeproxy.api.s3.plain_miss import MissOutlet, PlainMiss, PlainMisses
from shadeproxy.api.s3.port import Port
from shadeproxy.api.s3.post import PostUploads, form_boundary
from shadeproxy.api.s3.read import serve_get, serve_head
from shadeproxy.api.s3.relay_read import RELAYED_BUDGET_BYTES, RelayRead
from shadeproxy.api.s3.request import S3Request
from shadeproxy.cluster.peer_reads import BEGUN, PeerReads
from shadeproxy.cluster.peers import Peer
from shadeproxy.core.deadline import DEADLINE, Deadline
from shadeproxy.core.errors import Unidentified
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.tracing import CLIENT, REQUEST_ID, next_request_id
from shadeproxy.engine.base import ReadPath, ReadRequest

BegunRead = EngineLaneRead | RelayRead | PlainMiss
"""A read that is answered by callbacks, without a task."""


class S3Handler(ForwardHandler):
    """The handler of a process that has an engine. It answers reads through the engine, and forwards all
    other requests.
    """

    interim_every_s = 0.0
    """Seconds between two interim answers to a read whose first byte has not come yet; 0.0: there are none.
    Other nodes of a cluster need interim answers, because they wait only for a node that gives signs of life.
    Some clients do not expect interim answers.
    """
    breaks_off_with_fin = False
    """True if an answer that breaks off ends by a FIN, as a complete answer does, and not by a TCP reset. TCP
    repeats a FIN that the network has lost, but never a reset. The receiver must itself notice that the body
    is too short. Other nodes do so; some clients would take the short body for the whole.
    """

    def __init__(
        self,
        engine: ReadPath,
        authenticator: Authenticator,
        *,
        begins: BeginsReads | None = None,
        relays: PeerReads | None = None,
        plain: PlainMisses | None = None,
        **options: Unpack[HandlerSettings],
    ) -> None:
        """``begins``: the engine, if it can read by callbacks. ``relays``: reads of objects that other nodes
        of a cluster cache; None without a cluster. ``plain``: the parts of ``begins`` and of the origin that
        plain misses use; None: every miss is a general read. ``options``: see ForwardHandler.
        """
        super().__init__(engine, engine, authenticator, **options)
        self._engine = engine
        self._begins = begins
        self._relays = relays
        self._plain = plain
        self._relayed = Ledger(RELAYED_BUDGET_BYTES)
        self._posts = PostUploads(engine, authenticator)

    def begin_read(self, outlet: MissOutlet, asked: Asked) -> BegunRead | None:
        """Begin to answer, by callbacks, a read that the cache or another node may answer. Return None, with
        nothing done, if ``serve_read`` must be called instead.
        """
        if asked.peer is not None:
            return self._begin_relayed(outlet, asked, asked.peer)
        call, engine, found = asked.call, self._begins, asked.found
        if engine is None or found is None or self.verbose or call.request.method != "GET":
            return None
        if self._plain is not None and self._plain.may_be(asked):
            miss = PlainMiss(self._plain, self, outlet, asked)
            if miss.begin():
                return miss
        request_id = next_request_id()
        inside, whose = REQUEST_ID.set(request_id), CLIENT.set(client_of(outlet, call.identity))
        bounded = DEADLINE.set(Deadline(self._clock, self._bounds))
        try:
            begun = engine.begin(asked.wanted, found)
        except Exception:  # noqa: BLE001 - nothing was sent: the task meets the error again, and answers it
            begun = None
        finally:
            REQUEST_ID.reset(inside)
            CLIENT.reset(whose)
            DEADLINE.reset(bounded)
        if begun is None:
            return None
        return EngineLaneRead(
            outlet,
            self,
            engine,
            asked,
            clock=self._clock,
            reading=begun[0],
            flight=begun[1],
            request_id=request_id,
        )

    def _begin_relayed(self, outlet: MissOutlet, asked: Asked, peer: Peer) -> RelayRead | None:
        if self._relays is None or self.verbose:
            return None
        read = RelayRead(
            outlet,
            self,
            self._relays,
            asked,
            peer,
            clock=self._clock,
            held=self._relayed,
            bounds=self._bounds,
        )
        return read if read.start() else None

    async def serve_read(
        self, port: Port, asked: Asked, begun: EngineLaneRead | RelayRead | None = None
    ) -> bool:
        """Answer, in a task, a read that the cache or another node may answer. Return True if the connection
        continues. ``begun``: a read by callbacks that this task must continue.
        """
        call, wanted = asked.call, asked.wanted
        exchange = Exchange(port, now_s=self._clock.now_s())
        exchange.request, exchange.operation = call.request, call.operation.name
        if begun is not None:
            exchange.request_id = begun.request_id
        if isinstance(begun, EngineLaneRead):
            serving = self._read(exchange, call, wanted, begun)
        elif asked.peer is None:
            serving = self._read(exchange, call, wanted)
        else:
            serving = self._relay(exchange, call, begun)
        await self._complete(exchange, serving, begun)
        return exchange.response is not None and bool(exchange.response.keep_alive)

    async def _serve_parsed(self, exchange: Exchange, request: S3Request) -> None:
        if (boundary := form_boundary(request)) is not None:
            await self._posts.serve(exchange, request, boundary)
            return
        call, authenticated = self._identify(request, exchange)
        if self.reads_cache(call):
            await self._read(exchange, call, read_request(call))
        else:
            await self._forward(exchange, call, authenticated)

    async def _relay(self, exchange: Exchange, call: Call, begun: RelayRead | None) -> None:
        """Answer a read with the answer of another node of the cluster."""
        exchange.count_as(call.identity)
        BEGUN.set(answer := None if begun is None else begun.take())
        try:
            await self._forwarder.serve_read(exchange, call)
        finally:
            # If the object has moved to another node meanwhile, or this node stops, the answer that was begun
            # was not used. So close it.
            if answer is not None:
                answer.close()

    async def _read(
        self, exchange: Exchange, call: Call, wanted: ReadRequest, begun: EngineLaneRead | None = None
    ) -> None:
        exchange.count_as(call.identity)
        try:
            if call.request.method == "HEAD":
                await serve_head(self._engine, exchange, call, wanted)
            else:
                opening = self._engine.open(wanted) if begun is None else begun.resume()
                await serve_get(opening, exchange, call, wanted)
        except Unidentified:
            if exchange.response is not None:
                raise
            await self._forwarder.serve_read(exchange, call)
