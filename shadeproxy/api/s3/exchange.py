"""One request and its answer: the fields that every answer has, error answers, and the report at the end.

Laws: every answer carries x-amz-request-id and x-shade-cache. An answer that has begun is completed or
aborted, never replaced by an error.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Literal, NamedTuple, NotRequired, Protocol, TypedDict, TypeVar, Unpack

from shadeproxy.api.s3.auth.clients import ANONYMOUS, Identity
from shadeproxy.api.s3.errors import HOST_ID, ErrorAnswer, answer_error, internal_error
from shadeproxy.api.s3.operations import Operation
from shadeproxy.api.s3.port import HasPeer, Port, RequestPort, Response
from shadeproxy.api.s3.request import S3Request
from shadeproxy.api.s3.response import (
    NO_BODY_STATUSES,
    connection_fields,
    http_date,
    render_head,
    status_line,
)
from shadeproxy.api.s3.semantics import Answer, conditions_of
from shadeproxy.cluster.peers import Peer
from shadeproxy.core import heads
from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.core.ranges import parse_range
from shadeproxy.core.tracing import CLIENT, NODE_FIELD, REFUSED_FIELD, next_request_id
from shadeproxy.core.types import JobContext, ObjectMeta, ObjectRef, Source, first_value, names_of
from shadeproxy.engine.base import Grant, NothingKnown, ReadRequest
from shadeproxy.origin.base import Relayed
from shadeproxy.telemetry.log import mask_text

CLIENT_CLOSED = 499
"""Status in logs and counters for a request whose client went away. nginx uses the same number."""

OWN_FIELDS = frozenset({"x-amz-id-2", "x-amz-request-id", "date"})
"""Fields that the proxy adds to every answer. In a forwarded answer the origin's own values are
kept instead.
"""

_T = TypeVar("_T")


def with_own(
    headers: Iterable[tuple[str, str]], *, request_id: str, now_s: float, source: Source
) -> list[tuple[str, str]]:
    """Return ``headers`` and the fields that every answer has. Values that the origin has set are kept."""
    fields = list(headers)
    own = [("x-amz-id-2", HOST_ID), ("x-amz-request-id", request_id), ("Date", http_date(int(now_s)))]
    if not OWN_FIELDS.isdisjoint(map(str.lower, names_of(fields))):
        present = {name.lower() for name, _ in fields}
        own = [field for field in own if field[0].lower() not in present]
    fields += own
    fields.append(("x-shade-cache", source))
    return fields


def fast_head(
    answer: Answer, *, method: str, request_id: str, now_s: float, source: Source, keep: bool
) -> bytes:
    """Return the head of ``answer`` as the fast lane sends it. ``keep``: the connection stays open
    after it.
    """
    if heads.COMPILED and keep:
        usual = heads.render(
            status_line(answer.status),
            answer.headers,
            id2=HOST_ID,
            request_id=request_id,
            date=http_date(int(now_s)),
            source=source,
        )
        if usual is not None:
            return usual
    fields = with_own(answer.headers, request_id=request_id, now_s=now_s, source=source)
    # The last answer of a connection, and one whose body has no Content-Length, need more fields.
    if not keep or "content-length" not in map(str.lower, names_of(answer.headers)):
        has_body = method != "HEAD" and answer.status not in NO_BODY_STATUSES
        fields, _, _ = connection_fields(fields, has_body=has_body, keep=keep, http_11=True)
    return render_head(answer.status, fields)


class EndedRequest(TypedDict):
    """The keyword arguments of ``RequestObserver.on_request``, as a type (PEP 692).

    ``operation``: the S3 name, or "Invalid" for a request that was refused before its operation was known.
    ``status``: the status as sent, or CLIENT_CLOSED. ``bytes_sent``: bytes of the answer's body.
    ``bytes_received``: bytes of the request's body, without the framing of aws-chunked.
    ``origin_request_id``: the origin's id in a forwarded answer; the client gets it instead of the proxy's
    id. ``relayed_to``: the other node of the cluster that answered and counts the read; "" if there was none.
    """

    operation: str
    bucket: str
    status: int
    source: Source
    bytes_sent: int
    duration_s: float
    job: JobContext | None
    request_id: str
    bytes_received: NotRequired[int]
    origin_request_id: NotRequired[str]
    relayed_to: NotRequired[str]


class RequestObserver(Protocol):
    """Observes requests. It is called once for each request, after the request has succeeded or failed. It
    must not block or raise.
    """

    def on_request(self, **request: Unpack[EndedRequest]) -> None: ...


class EventLog(Protocol):
    """The methods of a structlog logger that the S3 listener calls."""

    def debug(self, event: str, **fields: object) -> object: ...

    def warning(self, event: str, **fields: object) -> object: ...

    def exception(self, event: str, **fields: object) -> object: ...


class Call(NamedTuple):
    """A request with its operation and client, after it was authenticated and authorised."""

    request: S3Request
    operation: Operation
    identity: Identity

    @property
    def ref(self) -> ObjectRef:
        """The object, in the client's namespace. Its key is "" if the request names only a bucket."""
        return ObjectRef(self.request.bucket, self.request.key, self.identity.namespace)


class Asked(NamedTuple):
    """A read that the cache may answer. ``wanted``: the engine's request, made by ``read_request``.
    ``plain``: True if object, range and job alone determine the answer. ``found``: what the cache knows of
    the object, from ``ReadsNow.find_now``. ``peer``: the node of the cluster that must answer the read; None
    if this node must.
    """

    call: Call
    wanted: ReadRequest
    keep_alive: bool
    plain: bool
    found: ObjectMeta | NothingKnown | None
    peer: Peer | None = None


def read_request(call: Call) -> ReadRequest:
    """Return the engine's request for a GetObject or HeadObject."""
    request, fields = call.request, call.request.fields
    return ReadRequest(
        call.ref,
        range=parse_range(fields.get("range")),
        upstream=call.identity.upstream,
        job=request.job,
        conditions=conditions_of(fields),
        force_check="cache-control" in fields and _forces_check(fields["cache-control"]),
        grant=Grant.HEAD if request.method == "HEAD" else Grant.GET,
    )


def _forces_check(field: str) -> bool:
    return any(directive.strip() == "no-cache" for directive in field.lower().split(","))


def client_of(connection: HasPeer, identity: Identity) -> str:
    """Return the name under which the client of a request is counted: the client's access key if the request
    is signed, otherwise the client's address.
    """
    return connection.peer if identity.name == ANONYMOUS.name else identity.name


Outcome = Asked | bool | Literal["later"] | None
"""The result of the fast lane for a request. True: the answer is written, and the connection continues.
False: the answer is written, and the connection ends. Asked: pages are missing, so read them by
``PendingRead``. None: a task must answer. LATER: call ``look`` in a later turn of the loop. With Asked, None
or LATER nothing was written.
"""

LATER: Literal["later"] = "later"


class ReadReports:
    """Reports reads that are answered without an ``Exchange``.

    ``verbose``: log each read for debugging. The attribute may be changed at any time.
    """

    def __init__(self, observer: RequestObserver, log: EventLog, *, verbose: bool) -> None:
        self.verbose = verbose
        self._observer = observer
        self._log = log

    def report_hit(
        self,
        call: Call,
        status: int,
        source: Source,
        bytes_sent: int,
        *,
        request_id: str,
        duration_s: float = 0.0,
        relayed_to: str = "",
    ) -> None:
        """Report the end of a read to the observer and the log. ``relayed_to``: see ``EndedRequest``."""
        request = call.request
        self._observer.on_request(
            operation=call.operation.name,
            bucket=request.bucket,
            status=status,
            source=source,
            bytes_sent=bytes_sent,
            duration_s=duration_s,
            job=request.job,
            request_id=request_id,
            relayed_to=relayed_to,
        )
        if self.verbose:
            self._log.debug(
                "s3_request",
                request_id=request_id,
                operation=call.operation.name,
                method=request.method,
                path=request.raw_path,
                query=mask_text(request.query_string),
                status=status,
                source=str(source),
                bytes_sent=bytes_sent,
            )

    def report_cut(self, why: str, **facts: object) -> None:
        """Log that an answer broke off although its client is still connected. ``facts``: fields of the log
        line.
        """
        self._log.warning("answer cut", error=why, **facts)

    def report_cut_read(self, why: str, call: Call, bytes_sent: int, *, request_id: str) -> None:
        """Log, as ``report_cut`` does, that the answer to a read broke off."""
        self.report_cut(
            why,
            request_id=request_id,
            operation=call.operation.name,
            path=call.request.raw_path,
            bytes_sent=bytes_sent,
        )


class Exchange:
    """One request and the state of its answer."""

    def __init__(self, port: Port, *, now_s: float, incoming: RequestPort | None = None) -> None:
        """``incoming``: ``port``, if its request is not parsed yet; otherwise None."""
        self.port = port
        self._incoming = incoming
        self.request_id = next_request_id()
        self.now_s = now_s
        self.request: S3Request | None = None
        self.operation = "Invalid"
        self.origin_request_id = ""
        self.bytes_received = 0
        self.source = Source.BYPASS
        self.response: Response | None = None
        self.failure: str = ""
        """The S3 code of an error answer, or the error class that broke an answer off; for the log. "" if all
        went well.
        """
        self.cut: str = ""
        """The reason why the answer broke off after it had begun; "" if it did not."""
        self.relayed: Relayed | None = None
        """The way by which the answer came, or should have come, from another node of the cluster; None if no
        other node was to answer. Unless it is None, ``source`` stays BYPASS, so that this node's statistics
        count no read.
        """
        self.refused: str = ""
        """The reason why this node refuses a request of another node; "" if it does not."""

    @property
    def incoming(self) -> RequestPort:
        assert self._incoming is not None, "a read has no body"
        return self._incoming

    def count_as(self, identity: Identity) -> None:
        """Count this request for the client ``identity``."""
        CLIENT.set(client_of(self.port, identity))

    def start(self, status: int, headers: Iterable[tuple[str, str]]) -> Response:
        """Begin the answer with its status and header fields. Request ids and a date of the origin
        are kept.
        """
        self.response = response = self.port.respond(status, self._with_own(headers))
        response.begin()
        return response

    def pass_on(
        self, status: int, headers: list[tuple[str, str]], relayed: Relayed | None = None
    ) -> Response:
        """Begin the answer as ``start`` does, with the status and fields of the origin's answer to this
        request. ``relayed``: the value for the attribute of this name.
        """
        self.relayed = relayed
        self.origin_request_id = first_value(headers, "x-amz-request-id")
        if status == 204:  # Some stores send "Content-Length: 0", which RFC 9110 section 8.6 forbids here.
            headers = [field for field in headers if field[0].lower() != "content-length"]
        return self.start(status, headers)

    async def fail(self, error: ShadeProxyError) -> None:
        """Answer with ``error``. If an answer has begun already, break it off instead."""
        if self.response is not None:
            self.failure = type(error).__name__
            self.cut = str(error)
            self.response.abort()
            return
        await self._answer(answer_error(error, resource=self._resource(), request_id=self.request_id))

    async def fail_unexpectedly(self) -> None:
        """Answer 500 after an unexpected exception. If an answer has begun already, break it off instead."""
        if self.response is not None:
            self.failure = "InternalError"
            self.response.abort()
            return
        await self._answer(internal_error(resource=self._resource(), request_id=self.request_id))

    def abandon(self) -> None:
        """Give the answer up, because the client has gone. An answer that has begun stays incomplete."""
        if self.response is None:
            self.response = self.port.respond(CLIENT_CLOSED, ())
        self.response.abort()

    def _with_own(self, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        source = self.source if self.relayed is None else self.relayed.source
        fields = with_own(headers, request_id=self.request_id, now_s=self.now_s, source=source)
        if self.relayed is not None and self.relayed.node:
            fields.append((NODE_FIELD, self.relayed.node))
        if self.refused:
            fields.append((REFUSED_FIELD, self.refused))
        return fields

    async def _answer(self, answer: ErrorAnswer) -> None:
        self.failure = answer.code
        fields = list(answer.headers)
        if answer.status not in NO_BODY_STATUSES:
            fields.append(("Content-Type", "application/xml"))
            if self.port.method != "HEAD":
                fields.append(("Content-Length", str(len(answer.body))))
        # If the request's body was not read to its end, end the connection. Otherwise the client would still
        # send the rest of the body, in vain.
        self.response = self.port.respond(
            answer.status, self._with_own(fields), body=answer.body, close=self.port.unread
        )
        self.response.begin()
        await self.response.write_eof()

    def _resource(self) -> str:
        return self.request.raw_path if self.request else "/"


@asynccontextmanager
async def closing(pieces: AsyncIterator[_T]) -> AsyncIterator[AsyncIterator[_T]]:
    """Yield ``pieces``. When the block ends, close them if they are a generator."""
    try:
        yield pieces
    finally:
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()
