"""The S3 request handler: parses, authenticates, authorises, then reads or forwards. Reads no configuration.

Law: the order of checks is fixed. The operation is determined only after the signature was accepted, and the
engine is called only after the client's rights were checked.
"""

from collections.abc import Awaitable, Iterable

from aiohttp import web

from shadeproxy.api.s3.auth.authenticator import Authenticator
from shadeproxy.api.s3.authorizer import RequestAuthorizer
from shadeproxy.api.s3.cross_site import refuse_cross_site_write
from shadeproxy.api.s3.errors import answer_error
from shadeproxy.api.s3.exchange import (
    CLIENT_CLOSED,
    Asked,
    Call,
    EventLog,
    Exchange,
    RequestObserver,
    client_of,
)
from shadeproxy.api.s3.forward import Forwarder
from shadeproxy.api.s3.lane_read import BeginsReads, EngineLaneRead, LaneOutlet
from shadeproxy.api.s3.port import AiohttpPort, Port
from shadeproxy.api.s3.post import PostUploads, form_boundary
from shadeproxy.api.s3.read import read_request, serve_get, serve_head
from shadeproxy.api.s3.request import parse_request
from shadeproxy.api.s3.response import WireResponse
from shadeproxy.api.s3.upload.plan import plan_body
from shadeproxy.core.clock import Clock
from shadeproxy.core.deadline import DEADLINE, DEFAULT_BOUNDS, Deadline, ReadBounds
from shadeproxy.core.errors import InvalidRequest, ShadeProxyError, Unidentified
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.pace import TurnLimiter
from shadeproxy.core.tracing import CLIENT, REQUEST_ID, next_request_id
from shadeproxy.core.types import Headers
from shadeproxy.engine.base import ReadPath, ReadRequest
from shadeproxy.telemetry.log import mask_text

TRAILED_BUDGET_BYTES = 128 * 1024 * 1024


class S3Handler(RequestAuthorizer):
    """Callable for ``aiohttp.web.Server``. One object serves all connections."""

    def __init__(
        self,
        engine: ReadPath,
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
        begins: BeginsReads | None = None,
    ) -> None:
        """``base_domains``: lower-case names that serve virtual-host addressing. ``begins``: the engine, if
        it can read by callbacks.

        ``trailed_budget_bytes``: memory for uploads that are held whole (see forward.py). ``verbose``: log
        each request for debugging.
        """
        super().__init__(
            engine,
            authenticator,
            observer=observer,
            log=log,
            base_domains=base_domains,
            verbose=verbose,
            instance=instance,
        )
        self._engine = engine
        self._clock = clock
        self.pace = TurnLimiter()
        """Shared by all connections, because in one turn of the loop each client may send a request."""
        self._bounds = bounds
        self._begins = begins
        self._posts = PostUploads(engine, authenticator)
        self._forwarder = Forwarder(engine, trailed=Ledger(trailed_budget_bytes))

    @property
    def held_bytes(self) -> int:
        """Bytes of uploads that are now held whole."""
        return self._forwarder.held_bytes

    async def __call__(self, http: web.BaseRequest) -> web.StreamResponse:
        """Serve one request. Raises only CancelledError: every failure is answered or aborted."""
        exchange = Exchange(AiohttpPort(http), now_s=self._clock.now_s(), http=http)
        await self._complete(exchange, self._serve(exchange))
        assert isinstance(exchange.response, WireResponse), "an exchange that did not raise has an answer"
        return exchange.response

    def begin_read(self, outlet: LaneOutlet, asked: Asked) -> EngineLaneRead | None:
        """Begin a call that ``reads_cache`` without a task; None, with nothing done: call ``serve_read``."""
        call, engine = asked.call, self._begins
        if engine is None or self.verbose or call.request.method != "GET":
            return None
        request_id = next_request_id()
        inside, whose = REQUEST_ID.set(request_id), CLIENT.set(client_of(outlet, call.identity))
        bounded = DEADLINE.set(Deadline(self._clock, self._bounds))
        try:
            begun = engine.begin(asked.wanted, asked.meta)
        except Exception:  # noqa: BLE001 - nothing was sent: the task meets it again, and answers it
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

    async def serve_read(self, port: Port, asked: Asked, begun: EngineLaneRead | None = None) -> bool:
        """Serve a call that ``reads_cache``, in its turn of the loop, like ``__call__``; return whether the
        connection continues. ``begun``: go on with that read.
        """
        call, wanted, _, _, _ = asked
        exchange = Exchange(port, now_s=self._clock.now_s())
        exchange.request, exchange.operation = call.request, call.operation.name
        if begun is not None:
            exchange.request_id = begun.request_id
        await self._complete(exchange, self._read(exchange, call, wanted, begun), begun)
        return exchange.response is not None and bool(exchange.response.keep_alive)

    def refuse_malformed(self, http: web.BaseRequest) -> web.StreamResponse:
        """Answer bytes that are not an HTTP request, and end the connection."""
        exchange = Exchange(AiohttpPort(http), now_s=self._clock.now_s(), http=http)
        error = InvalidRequest("The request is not valid HTTP/1.1, or its header is too long")
        answer = answer_error(error, resource="/", request_id=exchange.request_id)
        response = exchange.refusal(answer, close=True)
        self._report(exchange, response.status, 0.0)
        assert isinstance(response, WireResponse)
        return response

    async def _complete(
        self, exchange: Exchange, serving: Awaitable[None], begun: EngineLaneRead | None = None
    ) -> None:
        started_s = self._clock.monotonic_s() if begun is None else begun.started_s
        inside, whose = REQUEST_ID.set(exchange.request_id), CLIENT.set("")
        bounded = DEADLINE.set((begun and begun.deadline) or Deadline(self._clock, self._bounds))
        # This is the status if the task is cancelled, which happens when the client goes away.
        status = CLIENT_CLOSED
        try:
            await self._answer(exchange, serving)
            assert exchange.response is not None, "served without an answer"
            status = exchange.response.status
        except ConnectionError:
            # The client went away during a write, so no answer is possible.
            exchange.abandon()
        finally:
            self._report(exchange, status, self._clock.monotonic_s() - started_s)
            REQUEST_ID.reset(inside)
            CLIENT.reset(whose)
            DEADLINE.reset(bounded)

    async def _answer(self, exchange: Exchange, serving: Awaitable[None]) -> None:
        """Run ``serving`` and answer every error. Raises ConnectionError and CancelledError."""
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

    async def _serve(self, exchange: Exchange) -> None:
        http = exchange.http
        if (turn := self.pace.turn()) is not None:
            await turn
        # Parse it here, so that a refused request is reported with the parts that were parsed.
        exchange.request = request = parse_request(
            http.method, http.raw_path, _decoded(http.raw_headers), base_domains=self._base_domains
        )
        if (boundary := form_boundary(request)) is not None:
            await self._posts.serve(exchange, request, boundary)
            return
        call, authenticated = self._identify(request, exchange)
        if self.reads_cache(call):
            await self._read(exchange, call, read_request(call))
            return
        exchange.count_as(call.identity)
        await refuse_cross_site_write(self._engine, call, request_id=exchange.request_id)
        plan = plan_body(call.request, authenticated)
        await self._forwarder.serve(exchange, call, plan)

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

    def _report(self, exchange: Exchange, status: int, duration_s: float) -> None:
        response, request = exchange.response, exchange.request
        bytes_sent = response.bytes_sent if response else 0
        self._observer.on_request(
            operation=exchange.operation,
            bucket=request.bucket if request else "",
            status=status,
            source=exchange.source,
            bytes_sent=bytes_sent,
            duration_s=duration_s,
            job=request.job if request else None,
            request_id=exchange.request_id,
            origin_request_id=exchange.origin_request_id,
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


def _decoded(raw_headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    return tuple(
        (name.decode("latin-1"), value.decode("utf-8", "surrogateescape")) for name, value in raw_headers
    )
