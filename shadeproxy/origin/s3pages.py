"""Page GETs: signed, over the project's own connections, received straight into the page's memory.

docs/adr/0005 compares their cost per 100 KB with that of aiohttp's client and botocore's signer. s3reads.py
and s3transport.py send other requests (HEAD, listings, forwarded requests).

Laws: if an origin answers another range or version than requested, an error is raised; wrong bytes are never
passed on. A request is sent once. It is sent again, on a fresh connection, only if a kept connection proves
dead before a byte of the answer arrived. Source: GetObject in the S3 API reference; RFC 9112 section 9.3.1.
"""

import errno
import os
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import NamedTuple, NoReturn

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import (
    BodyCutShort,
    BodyDamaged,
    InvalidRequest,
    ObjectChanged,
    OriginAnswer,
    OriginError,
    OriginUnavailable,
)
from shadeproxy.core.sigv4 import Credentials
from shadeproxy.core.tracing import REQUEST_ID
from shadeproxy.core.types import ENDLESS, UNKNOWN_BYTES, ObjectMeta, ObjectRef, Span, Upstream
from shadeproxy.origin import s3answers as answers
from shadeproxy.origin.addressing import Endpoint, Peer
from shadeproxy.origin.base import Arrived, HandedOver, OriginRead, PassOn, Wanted
from shadeproxy.origin.connection import Connection
from shadeproxy.origin.credentials import CredentialProvider
from shadeproxy.origin.health import OriginHealth
from shadeproxy.origin.http1 import BadAnswer, Head
from shadeproxy.origin.pool import MOST_PEERS, ConnectionPool, NotConnected
from shadeproxy.origin.receiver import Broken, Dead, Receiver, Surplus
from shadeproxy.origin.regions import error_of, other_region
from shadeproxy.origin.s3ops.spans import clamp, resolve
from shadeproxy.origin.signing import PageHeads, range_field
from shadeproxy.origin.tls_failure import why_tls_failed
from shadeproxy.origin.tunnel import TunnelFailed

_PIECE_BYTES = 64 << 10
FAILURES = (BadAnswer, Broken, Surplus, OSError)

CredentialsOf = Callable[[Upstream], Awaitable[Credentials | None]]
ProviderOf = Callable[[Upstream], CredentialProvider | None]


class Exchange(NamedTuple):
    """A GET whose answer has begun. ``head`` has arrived. The body is still to be read from
    ``connection``.
    """

    connection: Connection
    head: Head


class PageGets:
    """Sends GETs to ``endpoint`` over ``pool``. ``credentials``: returns those of an upstream, which sign its
    GETs.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        credentials: CredentialsOf,
        provider_of: ProviderOf,
        pool: ConnectionPool,
        clock: Clock,
        health: OriginHealth,
        instance: str = "",
    ) -> None:
        """Set up the signer. ``instance``: the name by which the proxy recognises its own requests."""
        self.instance = instance
        self.pool = pool
        self.clock = clock
        self._health = health
        self._endpoint = endpoint
        self.error_of = partial(error_of, endpoint, clock)
        self._credentials = credentials
        self._provider_of = provider_of
        self._heads = PageHeads(instance)
        self._peers: dict[str, Peer] = {}

    async def send(self, wanted: Wanted) -> tuple[Connection, Head]:
        """Send the request on a connection of the pool. Return the connection, which the caller must put
        back, and the head of the answer. Raises as ``Origin.open``.
        """
        target = self._endpoint.target(wanted.ref)
        credentials = await self._credentials(wanted.upstream)
        request = self._heads.render(
            target, wanted, credentials, now_s=self.clock.now_s(), request_id=REQUEST_ID.get()
        )
        connection, head = await self.ask(target.origin, request)
        connection.asked_region = target.region
        return connection, head

    def start(self, wanted: Wanted, receiver: Receiver) -> Connection | None:
        """Send the request on an idle connection, without waiting. Return this connection, which the caller
        must put back; None if no connection is idle, or if the request cannot be made now.
        """
        prepared = self.prepare(wanted.ref, wanted, REQUEST_ID.get())
        if prepared is None:
            return None
        connection, request = prepared
        connection.start(request, receiver)
        return connection

    def prepare(self, ref: ObjectRef, wanted: Wanted, request_id: str) -> tuple[Connection, bytes] | None:
        """Return an idle connection, which the caller must put back, and the request to send on it. The
        request is that of ``wanted``, with ``ref`` as its object. Return None if the caller would have to
        wait. ``request_id``: see ``PageHeads.render``.
        """
        provider = self._provider_of(wanted.upstream)
        if provider is None or not provider.is_ready:
            return None
        try:
            target = self._endpoint.target(ref)
        except InvalidRequest:
            return None
        connection = self.pool.take_now(self._peers.get(target.origin) or self._peer(target.origin))
        if connection is None:
            return None
        connection.asked_region = target.region
        request = self._heads.render(
            target, wanted, provider.current, now_s=self.clock.now_s(), request_id=request_id
        )
        return connection, request

    def peer_of(self, ref: ObjectRef) -> Peer | None:
        """Return the server that has ``ref``; None if a request cannot name ``ref``."""
        try:
            origin = self._endpoint.target(ref).origin
        except InvalidRequest:
            return None
        return self._peers.get(origin) or self._peer(origin)

    def origin_of(self, wanted: Wanted) -> str:
        """Return "scheme://host[:port]" of the server that gets the GET ``wanted``."""
        return self._endpoint.target(wanted.ref).origin

    async def ask(self, origin: str, request: bytes, *, bodiless: bool = False) -> tuple[Connection, Head]:
        """Send a complete, signed request. Return and raise as ``send``."""
        try:
            try:
                return await self._exchange(origin, request, bodiless=bodiless)
            except Dead:
                # The server closed the kept connection while the request was on its way. A read that got no
                # answer may be sent again.
                return await self._exchange(origin, request, bodiless=bodiless, fresh=True)
        except FAILURES as error:
            raise failed_before_head(origin, error) from error

    async def connect(self, origin: str, *, fresh: bool = False) -> Connection:
        """Return a connection to ``origin``, which the caller must put back. With ``fresh``, it was never
        used before. Raises OriginUnavailable.
        """
        try:
            return await self.pool.take(self._peers.get(origin) or self._peer(origin), fresh=fresh)
        except NotConnected as error:
            raise _unavailable(origin, _why_not_connected(error)) from error

    async def _exchange(
        self, origin: str, request: bytes, *, bodiless: bool, fresh: bool = False
    ) -> tuple[Connection, Head]:
        connection = await self.connect(origin, fresh=fresh)
        try:
            head = await connection.ask(request, bodiless=bodiless)
        except BaseException as error:
            connection.abort()
            self.pool.put_back(connection)
            if isinstance(error, Dead) and connection.exchanges == 1:
                raise Broken from error
            raise
        self.note_date(head)
        return connection, head

    def note_date(self, head: Head) -> None:
        """Measure the origin's clock by the Date of an answer, if this is due."""
        if self._health.due:
            dates = head.places.dates
            self._health.heard_date(head.headers[dates[0]][1] if dates else "")

    def note_region(self, bucket: str, connection: Connection, head: Head) -> None:
        """Learn the region of ``bucket`` from the head of an answer. A worker reads no more of a refusal."""
        other_region(self._endpoint, bucket, head, b"", asked=connection.asked_region)

    def _peer(self, origin: str) -> Peer:
        if len(self._peers) >= MOST_PEERS:
            self._peers.clear()
        peer = self._peers[origin] = Peer.of(origin)
        return peer


class PageGet:
    """One GET as a context manager; see ``Origin.open``. As an iterator, it yields the pieces of its body."""

    def __init__(self, gets: PageGets, wanted: Wanted, handed: HandedOver | None = None) -> None:
        self._gets = gets
        self._handed = handed
        self._wanted = wanted
        self._connection: Connection | None = None
        # Yields the pieces of a body without Content-Length.
        self._pieces: AsyncGenerator[bytes, None] | None = None
        self._skip = 0
        self._left = 0  # Bytes to deliver, which come after those to skip.

    async def __aenter__(self) -> OriginRead:
        begun = None if self._handed is None else self._handed.take_exchange()
        if begun is None:
            begun = await self._gets.send(self._wanted)
        assert isinstance(begun, tuple), "an Exchange"
        self._connection, head = begun
        try:
            if head.status not in {200, 206}:
                await self._refused(self._connection, head)
            return self._interpreted(head)
        except BaseException:
            self._leave()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pieces is not None:
            await self._pieces.aclose()
        self._leave()

    def __aiter__(self) -> "PageGet":
        return self

    async def __anext__(self) -> bytes:
        if self._pieces is not None:
            return await self._decoded(self._pieces)
        while self._left:
            piece = memoryview(bytearray(min(_PIECE_BYTES, self._skip + self._left)))
            try:
                count = await self._answering().receive(piece, least=1)
            except FAILURES as error:
                raise broken_off(error) from error
            skipped = min(self._skip, count)
            self._skip -= skipped
            self._left -= count - skipped
            if count > skipped:
                return bytes(piece[skipped:count])
        raise StopAsyncIteration

    async def _decoded(self, pieces: AsyncGenerator[bytes, None]) -> bytes:
        """Return the next piece of a body of unknown length. Raises as ``__anext__``."""
        while self._left:
            try:
                piece = await anext(pieces)
            except FAILURES as error:
                raise broken_off(error) from error
            except StopAsyncIteration:
                if self._left >= ENDLESS >> 1:
                    raise
                raise BodyCutShort(f"the origin ended a body {self._left} bytes early") from None
            wanted = piece[self._skip :][: self._left]
            self._skip -= min(self._skip, len(piece))
            self._left -= len(wanted)
            if wanted:
                return wanted
        raise StopAsyncIteration

    async def receive(self, buffer: memoryview, arrived: Arrived) -> None:
        """Fill ``buffer``; see ``Receive`` in base.py."""
        if len(buffer) > self._left:
            # If a read continues on this connection, the object may be shorter than the first answer said.
            raise BodyCutShort(f"the origin has {self._left} bytes where {len(buffer)} were expected")
        try:
            self._left -= await self._answering().receive(buffer, arrived)
        except FAILURES as error:
            raise broken_off(error) from error

    def _interpreted(self, head: Head) -> OriginRead:
        wanted = self._wanted
        meta, span, self._skip = interpret(head, wanted.span)
        if wanted.if_match is not None and meta.etag != wanted.if_match:
            raise ObjectChanged(f"{wanted.ref} is now another version")
        self._left = span.length
        if head.length_given and meta.identified and not head.flawed:
            return OriginRead(meta, span, self, self.receive if self._skip == 0 else None)
        if not head.length_given:
            self._pieces = self._answering().pieces()
        return OriginRead(meta, span, self, pass_on=PassOn())

    def _answering(self) -> Connection:
        if self._connection is None:
            raise Broken  # The read has ended already, and another read may use its connection.
        return self._connection

    def _leave(self) -> None:
        # If bytes of the body are unread, the pool closes the connection, which no other GET can use then.
        if self._connection is not None:
            self._gets.pool.put_back(self._connection)
            self._connection = None

    async def _refused(self, connection: Connection, head: Head) -> NoReturn:
        if head.status == 412 and self._wanted.if_match is not None:
            raise ObjectChanged("the object is now another version")
        try:
            body = await answers.read_bounded(connection.pieces(), answers.MAX_ERROR_BYTES)
        except FAILURES as error:
            raise broken_off(error) from error
        raise self._gets.error_of(self._wanted.ref.bucket, head, body, asked=connection.asked_region)


def interpret(head: Head, span: Span | None) -> tuple[ObjectMeta, Span, int]:
    """Return the metadata of an answer, the span to deliver, and the number of body bytes to skip before it.

    Raises OriginAnswer 416, and, if the answer does not fit the request, OriginUnavailable, or OriginAnswer
    501 for the last bytes of an object.
    """
    if head.status == 200 and not head.length_given:
        meta = answers.object_meta(head, size=UNKNOWN_BYTES, is_ranged=span is not None)
        # The last bytes of a body without a length are known only at its end.
        wanted = Span(0, ENDLESS) if span is None or span.start < 0 else span
        return meta, wanted, wanted.start
    if head.status == 200:
        assert head.length is not None, "it was given"
        meta = answers.object_meta(head, size=head.length, is_ranged=span is not None)
        if span is None:
            return meta, Span(0, head.length), 0
        # The origin has ignored the range and sends the whole object. Deliver only the span.
        wanted = clamp(span, head.length)
        return meta, wanted, wanted.start
    ranges = head.places.ranges
    answered = answers.parse_content_range(head.headers[ranges[0]][1]) if len(ranges) == 1 else None
    if span is None or answered is None:
        raise _unfit(span, "the origin answered a range that was not asked for")
    start, stop, size = answered
    wanted = resolve(span, size)
    if start != wanted.start or stop < wanted.stop or head.length not in {stop - start, None}:
        text = f"the origin answered bytes {start}-{stop - 1} of {size} where {range_field(span)} was asked"
        raise _unfit(span, text)
    return answers.object_meta(head, size=size, is_ranged=True), wanted, 0


def _unfit(span: Span | None, text: str) -> OriginError:
    """Return the error for a range that does not fit the request. It is final if the last bytes were asked
    for: the origin probably misreads such requests, and may understand another range.
    """
    if span is not None and span.start < 0:
        return OriginAnswer(501, "NotImplemented", text)
    return OriginUnavailable(text)


def broken_off(error: BaseException) -> OriginError:
    """Return the error for a body that was ended by ``error``, one of FAILURES."""
    if isinstance(error, Surplus):
        return BodyDamaged("the origin sent more bytes than its Content-Length says")
    return BodyCutShort(f"the origin's body broke off: {_why_failed(error)}")


def failed_before_head(origin: str, error: BaseException) -> OriginError:
    """Return the error for a request that ``error``, one of FAILURES, ended before its answer arrived."""
    return _unavailable(origin, _why_failed(error))


def _unavailable(origin: str, reason: str) -> OriginUnavailable:
    return OriginUnavailable(f"the origin {origin} cannot be reached: {reason}")


def _why_not_connected(error: NotConnected) -> str:
    cause = error.__cause__
    if cause is None:
        return "no connection in time; check origin.endpoint, or raise origin.max_connections"
    if isinstance(cause, ssl.SSLError):
        return why_tls_failed(cause)
    if isinstance(cause, TunnelFailed):
        return f"{cause}; check origin.http_proxy"
    if isinstance(cause, OSError) and cause.errno is not None and cause.errno in errno.errorcode:
        # The text of the event loop's error would repeat the address.
        return f"{os.strerror(cause.errno)}; check origin.endpoint"
    # The number of an error of getaddrinfo tells people nothing.
    reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else cause
    return f"{reason}; check origin.endpoint"


def _why_failed(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return f"the connection failed: {_why_ended(error)}"


def _why_ended(error: BaseException) -> str:
    if isinstance(error, Dead):
        return "the origin ended it without an answer"
    if isinstance(error, Broken):
        return "the origin ended it within an answer"
    return f"BadAnswer: {error}" if isinstance(error, BadAnswer) else type(error).__name__
