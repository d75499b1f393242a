"""Signs requests for an S3 server, and sends those that may change something or have a body. s3reads.py sends
the others.

A request is sent byte for byte as it was signed, and once: the server may have carried it out, and would then
answer a second one differently. So the client must decide whether to repeat it. Its body is never sent beyond
the length announced. Answers are parsed as strictly as those of page GETs (http1.py). Exceptions of sockets
become OriginErrors here. Exceptions that the request's body raises pass unchanged.
"""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import ConfigError, InvalidRequest, OriginAnswer, OutcomeUnknown
from shadeproxy.core.sigv4 import EMPTY_SHA256, Credentials, sign_request
from shadeproxy.core.tracing import JOB_FIELD, NONCE_FIELD, PEER_FIELD, origin_fields
from shadeproxy.core.types import SHARED, Headers, Upstream
from shadeproxy.origin.addressing import Target
from shadeproxy.origin.connection import Connection
from shadeproxy.origin.credentials import CredentialProvider
from shadeproxy.origin.http1 import Head
from shadeproxy.origin.receiver import Dead
from shadeproxy.origin.s3pages import FAILURES, PageGets, broken_off, failed_before_head
from shadeproxy.origin.upload_connection import BodyFailed, UploadConnection

_READING = {"GET", "HEAD"}
_WITHOUT_BODY = {"GET", "HEAD", "OPTIONS"}
"""Methods of requests that need no Content-Length if they have no body."""
_SIGNED = {"content-type", "content-md5", JOB_FIELD, NONCE_FIELD, PEER_FIELD}


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request before it is signed. ``headers``: without Host and without the fields that signing adds.

    ``forwarded``: True if the request lasts as long as its client likes, so that it must use the connections
    for such requests. ``works_long``: see ``ForwardRequest.works_long``.
    """

    method: str
    target: Target
    raw_query: str = ""
    headers: Headers = ()
    body: AsyncIterator[bytes] | None = None
    content_length: int | None = None
    payload_hash: str = EMPTY_SHA256
    upstream: Upstream = SHARED
    forwarded: bool = False
    works_long: bool = False


class Answered(NamedTuple):
    """The answer to a request. ``head.headers`` has only legal fields. ``head.flawed``: True if illegal
    fields were dropped.

    ``chunks``: yields the body as it arrives. Raises BodyCutShort, BodyDamaged.
    """

    head: Head
    chunks: AsyncIterator[bytes]


class RequestSigner:
    """Renders requests with the signature of their upstream. ``instance``: the name by which the proxy
    recognises its own requests.
    """

    def __init__(
        self,
        credentials: Mapping[Upstream, CredentialProvider],
        *,
        clock: Clock,
        instance: str = "",
    ) -> None:
        self._credentials = credentials
        self._clock = clock
        self._instance = instance

    async def render(self, outgoing: Outgoing) -> bytes:
        """Return the signed head of a request. Raises as ``credentials``, and InvalidRequest for a field that
        cannot be sent.
        """
        target, query = outgoing.target, f"?{outgoing.raw_query}" if outgoing.raw_query else ""
        fields = [
            ("Host", target.host),
            *outgoing.headers,
            *await self._signature(outgoing),
            *_framing(outgoing),
            *origin_fields(self._instance),
        ]
        lines = [f"{outgoing.method} {target.raw_path}{query} HTTP/1.1", *map(": ".join, fields), "", ""]
        head = "\r\n".join(lines)
        if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1 or "\0" in head:
            raise InvalidRequest("A header field of the request holds a control character")
        return head.encode("utf-8", "surrogateescape")

    def credentials(self, upstream: Upstream) -> Awaitable[Credentials | None]:
        """Return the credentials of ``upstream``; None if requests are not to be signed. Raises OriginAnswer
        403 if none are configured.
        """
        provider = self._credentials.get(upstream)
        if provider is None:
            raise OriginAnswer(
                403,
                "AccessDenied",
                f"no origin credentials are configured for the upstream {upstream!r}",
            )
        return provider.credentials()

    async def _signature(self, outgoing: Outgoing) -> list[tuple[str, str]]:
        credentials = await self.credentials(outgoing.upstream)
        if credentials is None:
            return []
        signed = [("host", outgoing.target.host)]
        for name, value in outgoing.headers:
            lowered = name.lower()
            if lowered.startswith("x-amz-") or lowered in _SIGNED:
                signed.append((lowered, value))
        try:
            return sign_request(
                method=outgoing.method,
                raw_path=outgoing.target.raw_path,
                raw_query=outgoing.raw_query,
                headers=signed,
                payload_hash=outgoing.payload_hash,
                credentials=credentials,
                region=outgoing.target.region,
                now_s=self._clock.now_s(),
            )
        except UnicodeEncodeError:
            raise InvalidRequest(
                "A header of the request is not UTF-8, so it cannot be signed for the origin",
                hint="Encode header values as UTF-8 or, for metadata, as RFC 2047 words.",
            ) from None


class S3Transport:
    """Sends requests over connections of ``gets``, which are UploadConnections.

    Reads have other pools of connections (s3reads.py). Otherwise uploads whose clients send nothing could
    take all connections, and reads would get none.
    """

    def __init__(self, signer: RequestSigner, gets: PageGets) -> None:
        self._signer = signer
        self._gets = gets

    @asynccontextmanager
    async def exchange(self, outgoing: Outgoing) -> AsyncIterator[Answered]:
        """Send a request, and yield its answer. Leaving early closes the connection.

        Raises OriginUnavailable, OutcomeUnknown, the errors of ``RequestSigner.render`` and of the body.
        """
        request = await self._signer.render(outgoing)
        body = outgoing.body
        if body is not None and outgoing.content_length is None:
            body = _Chunked(body)
        # Nothing is sent yet. So a client that sends nothing takes no connection, and a body that is wrong as
        # a whole costs the origin nothing.
        first = b"" if body is None else await anext(body, b"")
        connection = await self._connect(outgoing.target.origin)
        try:
            head = await self._send(connection, outgoing, request, first, body)
            self._gets.note_date(head)
            async with aclosing(body_of(connection)) as chunks:
                yield Answered(head, chunks)
        finally:
            self._gets.pool.put_back(connection)

    async def aclose(self) -> None:
        await self._gets.pool.aclose()

    async def _connect(self, origin: str) -> UploadConnection:
        """Return a connection, which the caller must put back. Nothing is sent over one that has been lost
        since the pool gave it.
        """
        while True:
            connection = await self._gets.connect(origin)
            assert isinstance(connection, UploadConnection), "this pool has no others"
            if connection.reusable:
                return connection
            self._gets.pool.put_back(connection)

    async def _send(
        self,
        connection: UploadConnection,
        outgoing: Outgoing,
        request: bytes,
        first: bytes,
        body: AsyncIterator[bytes] | None,
    ) -> Head:
        size, bodiless = outgoing.content_length, outgoing.method == "HEAD"
        try:
            return await connection.send(
                request, first, body, size, bodiless=bodiless, works_long=outgoing.works_long
            )
        except BodyFailed as failed:
            raise failed.error from None
        except (Dead, *FAILURES) as error:
            unavailable = failed_before_head(outgoing.target.origin, error)
            if outgoing.method in _READING:
                raise unavailable from error
            raise OutcomeUnknown(
                f"The origin did not answer, so it may have carried out the request: {unavailable}"
            ) from error


def _framing(outgoing: Outgoing) -> list[tuple[str, str]]:
    """Return the field that says where the request's body ends."""
    if outgoing.body is None:
        return [] if outgoing.method in _WITHOUT_BODY else [("Content-Length", "0")]
    if outgoing.content_length is None:
        return [("Transfer-Encoding", "chunked")]
    return [("Content-Length", str(outgoing.content_length))]


class _Chunked:
    """``body`` in the chunked coding. If ``body`` raises an error, the last chunk is not sent."""

    def __init__(self, body: AsyncIterator[bytes]) -> None:
        self._body = body
        self._ended = False

    def __aiter__(self) -> "_Chunked":
        return self

    async def __anext__(self) -> bytes:
        if self._ended:
            raise StopAsyncIteration
        piece: bytes | None = b""
        while piece == b"":
            piece = await anext(self._body, None)
        self._ended = piece is None
        return b"%x\r\n%b\r\n" % (len(piece or b""), piece or b"")


async def body_of(connection: Connection) -> AsyncGenerator[bytes, None]:
    """Yield the body of an answer whose head has been read. Raises BodyCutShort, BodyDamaged."""
    try:
        async with aclosing(connection.pieces()) as pieces:
            async for piece in pieces:
                yield piece
    except FAILURES as error:
        raise broken_off(error) from error


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Return a context that trusts the system's authorities, or those in ``ca_file``. Raises ConfigError."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"origin.ca_file = {ca_file!r} cannot be used as PEM certificates: {error}"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
