"""Forwards to the origin every request that the cache may not answer. Both bodies are streamed.

Laws: a write drops its objects from the cache before the origin gets it, and again before the client can see
success. An upload whose body does not match its promised length or digest never reaches the origin whole. A
request takes memory for one piece in each direction. The exception is a small body whose trailing checksum
becomes a header: it is held whole, and a ledger counts its bytes.

The client trusts the answer to a GetObject or HeadObject. So the status of a forwarded one must fit the
request, and so must the range and length of a 206. Errors are passed on unchanged.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from shadeproxy.api.s3.exchange import Call, Exchange, closing
from shadeproxy.api.s3.headers import to_client, to_origin
from shadeproxy.api.s3.operations import PREFLIGHT, Permission, Touches, reads_current, touched
from shadeproxy.api.s3.port import Response
from shadeproxy.api.s3.response import NO_BODY_STATUSES, WRITE_BYTES
from shadeproxy.api.s3.upload.body import UploadBody, receive
from shadeproxy.api.s3.upload.documents import MAX_DELETE_BYTES, parse_delete
from shadeproxy.api.s3.upload.plan import BodyPlan
from shadeproxy.core.checksums import FIELD_PREFIX, make_checksum, value_of
from shadeproxy.core.errors import (
    BodyCutShort,
    BodyMismatch,
    MissingLength,
    NotSupported,
    OriginError,
    OriginUnavailable,
    RangeNotSatisfiable,
)
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.ranges import RangeSpec, parse_range
from shadeproxy.core.sigv4 import UNSIGNED_PAYLOAD
from shadeproxy.core.types import Headers, Intent, ObjectRef, Span, first_value
from shadeproxy.engine.ownership import Here
from shadeproxy.origin.base import ForwardRequest, ForwardResponse, Trailers, once

MAX_TRAILED_BYTES = 16 * 1024 * 1024
"""Largest upload that is held in memory, so that its trailing checksum can become a header. Every origin
accepts a header. Clients send parts of 8 MiB. For a longer upload, the checksum is sent after the body as a
trailer, which the origin must accept.
"""
_DELETE_COST = 2
"""Bytes that each byte of a DeleteObjects takes: it is gathered piece by piece, and then copied."""
DELETES_BYTES = 2 * _DELETE_COST * MAX_DELETE_BYTES
"""Memory of all bodies of DeleteObjects together. It is apart from that of held uploads, because those may
take long, and a DeleteObjects has no other way than to wait.
"""


# Fields that are named like a checksum, and hold no checksum of a body.
_NO_VALUES = frozenset({"x-amz-checksum-algorithm", "x-amz-checksum-mode", "x-amz-checksum-type"})


def is_digest(name: str) -> bool:
    """Return True if the lower-case field ``name`` holds a digest of one specific body."""
    return name in {"content-md5", "x-amz-sdk-checksum-algorithm"} or name.startswith(FIELD_PREFIX)


def check_digests(fields: Mapping[str, str], body: bytes) -> None:
    """Check ``body`` against the digests in ``fields``. Raises BodyMismatch, or NotSupported for a checksum
    that the proxy cannot compute.
    """
    if (given := fields.get("content-md5")) is not None:
        digest = hashlib.md5(body, usedforsecurity=False).digest()
        _compare("content-md5", base64.b64encode(digest).decode(), given)
    for name, given in fields.items():
        if not name.startswith(FIELD_PREFIX) or name in _NO_VALUES:
            continue
        checksum = make_checksum(name)
        if checksum is None:
            raise NotSupported(f"The checksum {name} cannot be verified here")
        checksum.update(body)
        _compare(name, value_of(checksum), given)


def _compare(name: str, computed: str, given: str) -> None:
    if not hmac.compare_digest(computed.encode(), given.encode()):
        raise BodyMismatch(f"The {name} you specified did not match what we received")


@dataclass(slots=True)
class _Outgoing:
    """A request that is ready for the origin. ``held_bytes``: bytes of a body that is held whole, which
    ``ledger`` counts.
    """

    headers: Headers
    pieces: AsyncIterator[bytes] | None
    refs: tuple[ObjectRef, ...]
    length: int | None
    payload_hash: str
    held_bytes: int = 0
    ledger: Ledger | None = None
    trailers: Trailers | None = None


class ForwardPath(Protocol):
    """A way to the origin: the engine, or a worker's own way, which asks the coordinator first."""

    def forward(self, request: ForwardRequest) -> AbstractAsyncContextManager[ForwardResponse]:
        """Send ``request`` to the origin, and yield the answer; see ``ReadPath.forward``."""
        ...

    def writing(self, refs: Iterable[ObjectRef]) -> AbstractAsyncContextManager[Here]:
        """Drop ``refs`` from the cache before the block, which writes them, and after it; see
        ``ReadPath.writing``.
        """
        ...


class Forwarder:
    """Sends requests to the origin through ``engine``. ``trailed``: the memory budget of uploads that are
    held whole, because their checksum follows the body. ``deletes``: that of bodies of DeleteObjects.
    """

    def __init__(self, engine: ForwardPath, *, trailed: Ledger, deletes: Ledger) -> None:
        self._engine = engine
        self._trailed, self._deletes = trailed, deletes

    @property
    def held_bytes(self) -> int:
        return self._trailed.taken_bytes + self._deletes.taken_bytes

    async def serve(
        self,
        exchange: Exchange,
        call: Call,
        plan: BodyPlan,
    ) -> None:
        """Send ``call`` to the origin, and its answer to the client. Raises RequestError for a bad body,
        OriginError.
        """
        if plan.length is None and call.operation.name in {"PutObject", "UploadPart"}:
            raise MissingLength("You must provide the Content-Length HTTP header")
        if plan.length == 0 and exchange.incoming.body.awaits_go:
            await exchange.incoming.body.invite()
        async with aclosing(receive(exchange.incoming.body)) as source:
            body = UploadBody(plan, source)
            try:
                outgoing = await self._outgoing(call, body)
            finally:
                exchange.bytes_received = body.received_bytes
            try:
                async with AsyncExitStack() as guard:
                    if outgoing.pieces is not None:
                        await guard.enter_async_context(closing(outgoing.pieces))
                    await self._carry(exchange, call, body, outgoing)
            except OriginError as error:
                if body.failure is not None:
                    raise body.failure from error
                raise
            finally:
                exchange.bytes_received = body.received_bytes
                if outgoing.ledger is not None:
                    outgoing.ledger.give(outgoing.held_bytes)

    async def serve_read(self, exchange: Exchange, call: Call) -> None:
        """Answer a GetObject or HeadObject from the origin, past the cache. Raises OriginError."""
        request = call.request
        forwarded = ForwardRequest(
            method=request.method,
            ref=call.ref,
            raw_path=request.path,
            raw_query=request.query_string,
            headers=to_origin(request),
            upstream=call.identity.upstream,
            request_id=exchange.request_id,
            job=request.job,
            reads_current=reads_current(call.operation, request),
        )
        async with self._engine.forward(forwarded) as given:
            answer = sensible(call, given)
            response = exchange.pass_on(answer.status, to_client(answer.headers), answer.relayed)
            async with closing(answer.chunks) as chunks:
                async for chunk in chunks:
                    await response.write(chunk)
            await response.write_eof()

    async def _outgoing(self, call: Call, body: UploadBody) -> _Outgoing:
        request, operation = call.request, call.operation
        plan, headers, refs = body.plan, to_origin(request), touched(operation, call.ref)
        if operation.touches is Touches.LISTED:
            return await self._delete(call, body, headers)
        promised = plan.sha256 or UNSIGNED_PAYLOAD
        if plan.empty:
            return _Outgoing(headers, None, refs, plan.length, promised)
        if not plan.trailers:
            return _Outgoing(headers, body.pieces(), refs, plan.length, promised)
        size = plan.length or 0
        if size > MAX_TRAILED_BYTES or not self._trailed.try_take(size):
            trailers = Trailers(plan.trailers, lambda: body.trailers)
            return _Outgoing(headers, body.pieces(), refs, size, promised, trailers=trailers)
        try:
            whole = await body.hold(size)
        except BaseException:
            self._trailed.give(size)
            raise
        headers += _checksum_fields(body)
        return _Outgoing(headers, _pieces_of(whole), refs, size, promised, size, self._trailed)

    async def _delete(self, call: Call, body: UploadBody, headers: Headers) -> _Outgoing:
        """Read the document of a DeleteObjects into its share of ``deletes``, and return the request. Raises
        Overloaded if other documents leave no room for it.
        """
        size = MAX_DELETE_BYTES if body.plan.length is None else min(body.plan.length, MAX_DELETE_BYTES)
        held = _DELETE_COST * size
        await self._deletes.take(held, Intent.DEMAND)
        try:
            return replace(await _delete_request(call, body, headers), held_bytes=held, ledger=self._deletes)
        except BaseException:
            self._deletes.give(held)
            raise

    async def _carry(
        self,
        exchange: Exchange,
        call: Call,
        body: UploadBody,
        outgoing: _Outgoing,
    ) -> None:
        request = call.request
        forwarded = ForwardRequest(
            method="GET" if call.operation.asked_by_get else request.method,
            ref=call.ref,
            raw_path=request.path,
            raw_query=request.query_string,
            headers=outgoing.headers,
            body=outgoing.pieces,
            content_length=outgoing.length,
            payload_hash=outgoing.payload_hash,
            upstream=call.identity.upstream,
            trailers=outgoing.trailers,
            request_id=exchange.request_id,
            job=request.job,
            # A request with a body must not go to another node: a body can be sent only once, and if that
            # node then did not answer, the origin could not get it.
            reads_current=outgoing.pieces is None and reads_current(call.operation, request),
        )
        async with AsyncExitStack() as writing:
            if outgoing.refs:
                here = await writing.enter_async_context(self._engine.writing(outgoing.refs))
                if here is not None:
                    forwarded = replace(forwarded, here=here)
            async with self._engine.forward(forwarded) as given:
                answer = sensible(call, given)
                if body.failure is not None:
                    raise body.failure
                if not (call.operation.asked_by_get or _is_empty(answer)):
                    if not call.operation.late_success:
                        await writing.aclose()
                    response = exchange.pass_on(answer.status, to_client(answer.headers), answer.relayed)
                    await _relay(answer, response, writing)
                    await response.write_eof()
                    return
            # The answer is complete. So a worker reports the end of the request and that of the write in one
            # message.
            await writing.aclose()
            response = exchange.pass_on(answer.status, to_client(answer.headers), answer.relayed)
            await response.write_eof()


async def _delete_request(call: Call, body: UploadBody, headers: Headers) -> _Outgoing:
    """Prepare a DeleteObjects: check the client's right to each key, and write a new document with only these
    keys.
    """
    document = await body.read(MAX_DELETE_BYTES)
    check_digests(call.request.fields, document)
    keys, document = await parse_delete(document)
    for key in keys:
        call.identity.check(Permission.WRITE, call.request.bucket, key)
    digest = base64.b64encode(hashlib.md5(document, usedforsecurity=False).digest()).decode()
    kept = tuple(pair for pair in headers if not is_digest(pair[0]))
    return _Outgoing(
        (*kept, ("Content-MD5", digest)),
        once(document),
        tuple(call.ref.beside(key) for key in keys),
        len(document),
        hashlib.sha256(document).hexdigest(),
    )


async def _relay(answer: ForwardResponse, response: Response, writing: AsyncExitStack) -> None:
    """Pass the answer's body to the client. Hold its last piece back until ``writing`` has ended, so that the
    client sees success only after the cache has dropped the object.

    White space, which the origin sends to keep the connection alive, is passed on at once.
    """
    held = b""
    async with closing(answer.chunks) as chunks:
        async for chunk in chunks:
            if held:
                await response.write(held)
                held = b""
            if chunk.isspace():
                await response.write(chunk)
            else:
                held = chunk
    await writing.aclose()
    if held:
        await response.write(held)


def _is_empty(answer: ForwardResponse) -> bool:
    return answer.status in NO_BODY_STATUSES or first_value(answer.headers, "content-length") == "0"


def _checksum_fields(body: UploadBody) -> Headers:
    return tuple((name, value) for name, value in body.trailers.items() if name in body.plan.trailers)


async def _pieces_of(whole: memoryview) -> AsyncIterator[bytes]:
    """Yield the body in small pieces, because a transport copies the part of a piece that it cannot send at
    once.
    """
    for start in range(0, len(whole), WRITE_BYTES):
        yield bytes(whole[start : start + WRITE_BYTES])


_CONDITIONAL = frozenset({"if-match", "if-none-match", "if-modified-since", "if-unmodified-since"})
# Fields of an answer to a preflight that say nothing of an object.
_BESIDE_RULES = frozenset(
    {"vary", "date", "server", "allow", "content-type", "x-amz-request-id", "x-amzn-requestid", "x-amz-id-2"}
)
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")


def sensible(call: Call, answer: ForwardResponse) -> ForwardResponse:
    """Return ``answer`` if it fits the request. Raises OriginUnavailable if it does not. If the answer to a
    range has no Content-Length, the length of its body is checked while it is read. Of the answer to a
    preflight only the rules are returned: its sender has no rights, but the origin was asked with some.
    """
    if call.operation is PREFLIGHT and answer.status < 300:
        return replace(answer, headers=(*filter(_is_of_rules, answer.headers), ("Content-Length", "0")))
    if call.operation.name not in {"GetObject", "HeadObject"} or answer.status >= 400:
        return answer
    fields, of_part = call.request.fields, "partNumber" in call.request.query
    wanted = parse_range(fields.get("range"))
    if answer.status == 206 and wanted is not None:
        span = _span_of(answer, wanted)
        lengths = {value for name, value in answer.headers if name.lower() == "content-length"}
        if span is None or lengths - {str(span.length)}:
            raise OriginUnavailable(f"the origin answered another range than {fields['range']}")
        has_body = call.request.method == "GET"
        return replace(answer, chunks=_watched(answer, span.length)) if has_body and not lengths else answer
    expected = {200, 206} if "range" in fields or of_part else {200}
    if not _CONDITIONAL.isdisjoint(fields):
        expected.add(304)
    if (answer.status < 300 or answer.status == 304) and answer.status not in expected:
        raise OriginUnavailable(f"the origin answered {answer.status}, which is no answer to what was asked")
    return answer


def _is_of_rules(field: tuple[str, str]) -> bool:
    name = field[0].lower()
    return name.startswith("access-control-") or name in _BESIDE_RULES


def _span_of(answer: ForwardResponse, wanted: RangeSpec) -> Span | None:
    """Return the span of bytes in a 206; None if it is not the ``wanted`` range."""
    values = [value for name, value in answer.headers if name.lower() == "content-range"]
    told = _CONTENT_RANGE.fullmatch(values[0]) if len(values) == 1 else None
    if told is None:
        return None
    span = Span(int(told[1]), int(told[2]) + 1)
    try:
        return span if wanted.resolve(int(told[3])) == span else None
    except RangeNotSatisfiable:
        return None


async def _watched(answer: ForwardResponse, length: int) -> AsyncIterator[bytes]:
    """Yield the body of an answer. Raises BodyCutShort if it has not ``length`` bytes."""
    left = length
    async with closing(answer.chunks) as chunks:
        async for chunk in chunks:
            left -= len(chunk)
            if left < 0:
                break
            yield chunk
    if left:
        raise BodyCutShort(f"the origin sent another number of bytes than the {length} of its range")
