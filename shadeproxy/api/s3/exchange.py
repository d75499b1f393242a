"""One request and its answer: the facts known so far, and how an answer begins.

Rules: every answer carries x-amz-request-id and x-shade-cache. An answer that has begun is completed or
aborted, never replaced by an error.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Literal, NamedTuple, Protocol, TypeVar

from aiohttp import web

from shadeproxy.api.s3.auth.clients import ANONYMOUS, Identity
from shadeproxy.api.s3.errors import HOST_ID, ErrorAnswer, answer_error, internal_error
from shadeproxy.api.s3.operations import Operation
from shadeproxy.api.s3.port import Port, Response
from shadeproxy.api.s3.request import S3Request
from shadeproxy.api.s3.response import http_date
from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.core.tracing import CLIENT, next_request_id
from shadeproxy.core.types import JobContext, ObjectMeta, ObjectRef, Source, names_of
from shadeproxy.engine.base import ReadRequest

CLIENT_CLOSED = 499
"""Status in logs and counters for a request whose client went away (nginx's number)."""

OWN_FIELDS = frozenset({"x-amz-id-2", "x-amz-request-id", "date"})
"""Fields of every answer. The origin's own values replace the proxy's."""

_T = TypeVar("_T")


def with_own(
    headers: Iterable[tuple[str, str]], *, request_id: str, now_s: float, source: Source
) -> list[tuple[str, str]]:
    """Return ``headers`` with the fields of every answer, except those that the origin already set."""
    fields = list(headers)
    own = [("x-amz-id-2", HOST_ID), ("x-amz-request-id", request_id), ("Date", http_date(int(now_s)))]
    if not OWN_FIELDS.isdisjoint(map(str.lower, names_of(fields))):
        present = {name.lower() for name, _ in fields}
        own = [field for field in own if field[0].lower() not in present]
    fields += own
    fields.append(("x-shade-cache", source))
    return fields


class RequestObserver(Protocol):
    """Is called once for each request, when it has ended in any way. Must not block or raise.

    ``operation``: S3 name, or "Invalid" for a request refused before it had one. ``status``: as sent, or
    CLIENT_CLOSED. ``bytes_sent``: of the body. ``origin_request_id``: the origin's id in a forwarded answer,
    which replaces ours.
    """

    def on_request(
        self,
        *,
        operation: str,
        bucket: str,
        status: int,
        source: Source,
        bytes_sent: int,
        duration_s: float,
        job: JobContext | None,
        request_id: str,
        origin_request_id: str = "",
    ) -> None: ...


class Call(NamedTuple):
    """A request with its operation and client, once authenticated and authorised."""

    request: S3Request
    operation: Operation
    identity: Identity

    @property
    def ref(self) -> ObjectRef:
        """The object in the client's namespace; the bucket if there is no key."""
        return ObjectRef(self.request.bucket, self.request.key, self.identity.namespace)


class Asked(NamedTuple):
    """A read that the cache may answer. ``wanted``: the engine's request for ``call``. ``plain``: the read is
    defined by object, range and job alone. ``meta``: result of ``usable_now``.
    """

    call: Call
    wanted: ReadRequest
    keep_alive: bool
    plain: bool
    meta: ObjectMeta | None = None


Outcome = Asked | bool | Literal["later"] | None
"""True: written, and the connection continues. False: written, and it ends. Asked: bytes are missing, so
read it by ``PendingRead``. None: for aiohttp. LATER: for ``look``, in a turn of the pace. In the last three
cases nothing happened.
"""

LATER: Literal["later"] = "later"


class Exchange:
    """The state of one request, dropped with it."""

    def __init__(self, port: Port, *, now_s: float, http: web.BaseRequest | None = None) -> None:
        """Begin an exchange. ``http``: aiohttp's request, for code that must read its body."""
        self.port = port
        self._http = http
        self.request_id = next_request_id()
        self.now_s = now_s
        self.request: S3Request | None = None
        self.operation = "Invalid"
        self.origin_request_id = ""
        self.source = Source.BYPASS
        self.response: Response | None = None
        self.failure: str = ""
        """S3 error code of the answer, for the log."""
        self.cut: str = ""
        """Why an answer that had begun was not finished, or ""."""

    @property
    def http(self) -> web.BaseRequest:
        assert self._http is not None, "the fast lane takes no request with a body"
        return self._http

    def count_as(self, identity: Identity) -> None:
        """Charge this request to its client: by name if a signature proves it, else by address."""
        CLIENT.set(self.port.peer if identity.name == ANONYMOUS.name else identity.name)

    def start(self, status: int, headers: Iterable[tuple[str, str]]) -> Response:
        """Commit to the head. The origin's own request ids and date in ``headers`` are kept."""
        self.response = response = self.port.respond(status, self._with_own(headers))
        response.begin()
        return response

    def pass_on(self, status: int, headers: list[tuple[str, str]]) -> Response:
        """Commit like ``start``, with fields of the origin's answer to this very request."""
        self.origin_request_id = next((v for name, v in headers if name.lower() == "x-amz-request-id"), "")
        return self.start(status, headers)

    def refusal(self, answer: ErrorAnswer, *, close: bool = False) -> Response:
        """Return an error answer, not sent yet."""
        self.failure = answer.code
        fields = list(answer.headers)
        if answer.status not in {204, 304}:
            fields.append(("Content-Type", "application/xml"))
            if self.port.method != "HEAD":
                fields.append(("Content-Length", str(len(answer.body))))
        # An unread body ends the connection: otherwise the client would send bytes for nothing.
        close = close or self.port.unread
        return self.port.respond(answer.status, self._with_own(fields), body=answer.body, close=close)

    async def fail(self, error: ShadeProxyError) -> None:
        """Answer with ``error``, or abort an answer that has begun."""
        if self.response is not None:
            self.failure = type(error).__name__
            self.cut = str(error)
            self.response.abort()
            return
        await self._answer(answer_error(error, resource=self._resource(), request_id=self.request_id))

    async def fail_unexpectedly(self) -> None:
        """Answer 500 for an unexpected exception, or abort an answer that has begun."""
        if self.response is not None:
            self.failure = "InternalError"
            self.response.abort()
            return
        await self._answer(internal_error(resource=self._resource(), request_id=self.request_id))

    def abandon(self) -> None:
        """Mark the client as gone; a begun answer stays incomplete."""
        if self.response is None:
            self.response = self.port.respond(CLIENT_CLOSED, ())
        self.response.abort()

    def _with_own(self, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        return with_own(headers, request_id=self.request_id, now_s=self.now_s, source=self.source)

    async def _answer(self, answer: ErrorAnswer) -> None:
        self.response = self.refusal(answer)
        self.response.begin()
        await self.response.write_eof()

    def _resource(self) -> str:
        return self.request.raw_path if self.request else "/"


@asynccontextmanager
async def closing(pieces: AsyncIterator[_T]) -> AsyncIterator[AsyncIterator[_T]]:
    """Yield ``pieces`` and close it when the block ends, if it is a generator."""
    try:
        yield pieces
    finally:
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()
