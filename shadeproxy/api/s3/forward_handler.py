"""Serves requests by forwarding them to the origin. A worker has no other handler; handler.py adds the reads
that the cache answers.

Law: the order of checks is fixed. The signature is accepted before the operation is determined, and the
client's rights are checked before the engine is called.
"""

from collections.abc import Awaitable
from typing import Required, TypedDict

from shadeproxy.api.s3.auth.authenticator import Authenticated, Authenticator
from shadeproxy.api.s3.authorizer import RequestAuthorizer
from shadeproxy.api.s3.cross_site import refuse_cross_site_write
from shadeproxy.api.s3.exchange import CLIENT_CLOSED, Call, EventLog, Exchange, RequestObserver
from shadeproxy.api.s3.forward import DELETES_BYTES, Forwarder, ForwardPath
from shadeproxy.api.s3.lane_read import EngineLaneRead
from shadeproxy.api.s3.port import RequestPort, Response
from shadeproxy.api.s3.relay_read import RelayRead
from shadeproxy.api.s3.request import S3Request, parse_request
from shadeproxy.api.s3.upload.plan import plan_body
from shadeproxy.core.clock import Clock
from shadeproxy.core.deadline import DEADLINE, DEFAULT_BOUNDS, Deadline, ReadBounds
from shadeproxy.core.errors import InvalidRequest, ShadeProxyError
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.pace import TurnLimiter
from shadeproxy.core.tracing import CLIENT, REQUEST_ID
from shadeproxy.engine.base import ReadsNow
from shadeproxy.telemetry.log import mask_text

TRAILED_BUDGET_BYTES = 128 * 1024 * 1024


class HandlerSettings(TypedDict, total=False):
    """The keyword arguments of ``ForwardHandler``, as a type (PEP 692)."""

    clock: Required[Clock]
    observer: Required[RequestObserver]
    log: Required[EventLog]
    base_domains: tuple[str, ...]
    trailed_budget_bytes: int
    verbose: bool
    bounds: ReadBounds
    instance: str


class ForwardHandler(RequestAuthorizer):
    """Serves requests of all connections."""

    def __init__(
        self,
        reads: ReadsNow,
        path: ForwardPath,
        authenticator: Authenticator,
        *,
        clock: Clock,
        observer: RequestObserver,
        log: EventLog,
        base_domains: tuple[str, ...] = (),
        trailed_budget_bytes: int = TRAILED_BUDGET_BYTES,
        verbose: bool = True,
        bounds: ReadBounds = DEFAULT_BOUNDS,
        instance: str = "",
    ) -> None:
        """``path``: the way to the origin. ``base_domains``: host names of the proxy (``RequestAuthorizer``).

        ``trailed_budget_bytes``: memory for uploads that are held whole (see forward.py). ``verbose``: log
        each request for debugging.
        """
        super().__init__(
            reads,
            authenticator,
            observer=observer,
            log=log,
            base_domains=base_domains,
            verbose=verbose,
            instance=instance,
        )
        self._path = path
        self._clock = clock
        self.pace = TurnLimiter()
        """Limits how many requests, of all connections together, are served in one turn of the event loop."""
        self._bounds = bounds
        self._forwarder = Forwarder(path, trailed=Ledger(trailed_budget_bytes), deletes=Ledger(DELETES_BYTES))

    @property
    def held_bytes(self) -> int:
        """Bytes of uploads that are now held whole."""
        return self._forwarder.held_bytes

    async def serve(
        self,
        port: RequestPort,
        known: tuple[Call, Authenticated] | None = None,
        *,
        refused: InvalidRequest | None = None,
    ) -> Response:
        """Serve the request of ``port``, and return its answer. After a failure, send an error or break the
        answer off. Raises only CancelledError.

        ``known``: the call and its client, if the request is authorised already and must be forwarded.
        ``refused``: the reason to refuse it, if its head could not be parsed.
        """
        exchange = Exchange(port, now_s=self._clock.now_s(), incoming=port)
        await self._complete(exchange, self._serve(exchange, port, known, refused))
        assert exchange.response is not None, "an exchange that did not raise has an answer"
        return exchange.response

    async def _complete(
        self, exchange: Exchange, serving: Awaitable[None], begun: EngineLaneRead | RelayRead | None = None
    ) -> None:
        started_s = self._clock.monotonic_s() if begun is None else begun.started_s
        inside, whose = REQUEST_ID.set(exchange.request_id), CLIENT.set("")
        bounded = DEADLINE.set((begun and begun.deadline) or Deadline(self._clock, self._bounds))
        # The status to report if the task is cancelled, which happens when the client goes away.
        status = CLIENT_CLOSED
        try:
            await self._answer(exchange, serving)
            assert exchange.response is not None, "served without an answer"
            status = exchange.response.status
        except ConnectionError:
            # The client went away while the answer was written, so it can get no error answer.
            exchange.abandon()
        finally:
            self._report(exchange, status, self._clock.monotonic_s() - started_s)
            REQUEST_ID.reset(inside)
            CLIENT.reset(whose)
            DEADLINE.reset(bounded)

    async def _answer(self, exchange: Exchange, serving: Awaitable[None]) -> None:
        """Run ``serving``, and answer its errors. Raises only ConnectionError and CancelledError."""
        try:
            try:
                await serving
            except ShadeProxyError as error:
                await exchange.fail(error)
        except ConnectionError:
            raise
        except Exception:  # noqa: BLE001 - the outermost boundary: logged with its traceback, and answered
            self._log.exception("s3_request_failed", request_id=exchange.request_id)
            await exchange.fail_unexpectedly()

    async def _serve(
        self,
        exchange: Exchange,
        port: RequestPort,
        known: tuple[Call, Authenticated] | None,
        refused: InvalidRequest | None,
    ) -> None:
        if refused is not None:
            raise refused
        if (turn := self.pace.turn()) is not None:
            await turn
        if known is not None:
            call, authenticated = known
            exchange.request, exchange.operation = call.request, call.operation.name
            await self._forward(exchange, call, authenticated)
            return
        # Set this attribute before the request is checked, so that the report of a refused request has the
        # bucket and the path.
        exchange.request = request = parse_request(
            port.method, port.target, port.fields, base_domains=self._base_domains
        )
        await self._serve_parsed(exchange, request)

    async def _serve_parsed(self, exchange: Exchange, request: S3Request) -> None:
        """Authorise and answer a request. Raises ShadeProxyError."""
        call, authenticated = self._identify(request, exchange)
        await self._forward(exchange, call, authenticated)

    async def _forward(self, exchange: Exchange, call: Call, authenticated: Authenticated) -> None:
        exchange.count_as(call.identity)
        await refuse_cross_site_write(self._path, call, request_id=exchange.request_id)
        plan = plan_body(call.request, authenticated)
        await self._forwarder.serve(exchange, call, plan)

    def _report(self, exchange: Exchange, status: int, duration_s: float) -> None:
        response, request = exchange.response, exchange.request
        bytes_sent = response.bytes_sent if response else 0
        self._observer.on_request(
            operation=exchange.operation,
            bucket=request.bucket if request else "",
            status=status,
            source=exchange.source,
            bytes_sent=bytes_sent,
            bytes_received=exchange.bytes_received,
            duration_s=duration_s,
            job=request.job if request else None,
            request_id=exchange.request_id,
            origin_request_id=exchange.origin_request_id,
            relayed_to="" if exchange.relayed is None else exchange.relayed.node,
        )
        if exchange.cut:
            self.report_cut(
                f"{exchange.failure}: {exchange.cut}",
                request_id=exchange.request_id,
                operation=exchange.operation,
                path=request.raw_path if request else "",
                bytes_sent=bytes_sent,
            )
        if not self.verbose:
            return
        self._log.debug(
            "s3_request",
            request_id=exchange.request_id,
            operation=exchange.operation,
            method=exchange.port.method,
            path=request.raw_path if request else "",
            query=mask_text(request.query_string) if request else "",
            status=status,
            source=str(exchange.source),
            bytes_sent=bytes_sent,
            duration_s=round(duration_s, 6),
            error=exchange.failure,
        )
