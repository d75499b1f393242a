"""One signed HTTP exchange with an S3 server. Only this file, bounded_answers.py, link_watch.py and s3.py
know aiohttp's client.

The request is sent byte for byte as it was signed: no normalised URLs, no added headers, no redirects,
cookies, proxies or decompression. A request that may have changed something is sent once. Exceptions of
aiohttp and of sockets become OriginErrors here. Exceptions that the request's body raises pass unchanged.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from yarl import URL

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import (
    BodyCutShort,
    ConfigError,
    InvalidRequest,
    OriginAnswer,
    OriginUnavailable,
    OutcomeUnknown,
)
from shadeproxy.core.sigv4 import EMPTY_SHA256, Credentials, sign_request
from shadeproxy.core.tracing import JOB_FIELD, NONCE_FIELD, PEER_FIELD, origin_fields
from shadeproxy.core.types import SHARED, Headers, Upstream
from shadeproxy.origin.addressing import Target
from shadeproxy.origin.bounded_answers import BEGIN, BoundedConnector, NoAnswer
from shadeproxy.origin.credentials import CredentialProvider
from shadeproxy.origin.health import OriginHealth
from shadeproxy.origin.link_watch import LinkWatch
from shadeproxy.origin.pool import Timeouts
from shadeproxy.origin.tls_failure import why_tls_failed

_NO_AUTO_HEADERS = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
_READING = {"GET", "HEAD"}
_SIGNED = {"content-type", "content-md5", JOB_FIELD, NONCE_FIELD, PEER_FIELD}
# The metadata of an object may have some 700 fields.
_MOST_FIELDS = 2048
# It also bounds, by a sixteenth, how many chunks of a body are parsed in one turn of the event loop.
_READ_BUFFER_BYTES = 64 << 10
_JOINED_BYTES = 32 << 10
"""Largest piece that is copied, so that it leaves in one write with the request's head."""


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


class S3Transport:
    """Up to ``max_connections`` connections for forwarded requests, and the credentials of each upstream.

    Reads have other pools of connections (s3reads.py). Otherwise uploads whose clients send nothing could
    take all connections, and reads would get none.
    """

    def __init__(
        self,
        credentials: Mapping[Upstream, CredentialProvider],
        *,
        region: str,
        timeouts: Timeouts,
        max_connections: int,
        tls: ssl.SSLContext | None,
        clock: Clock,
        health: OriginHealth,
        instance: str = "",
    ) -> None:
        self._instance = instance
        self._credentials = credentials
        self._region = region
        self._timeout = aiohttp.ClientTimeout(
            total=None,
            connect=timeouts.pool_s + timeouts.connect_s,
            sock_connect=timeouts.connect_s,
            sock_read=timeouts.read_s,
        )
        self._read_s = timeouts.read_s
        self._connect_s = timeouts.pool_s + timeouts.connect_s
        self._links = LinkWatch(timeouts.dead_link_s) if timeouts.dead_link_s else None
        self._max_connections = max_connections
        self._tls = tls
        self._clock = clock
        self._health = health
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def exchange(self, outgoing: Outgoing) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request, and yield the response with its body unread. Leaving early closes the connection.

        Raises OriginUnavailable, and OriginAnswer 403 for an upstream without credentials.
        """
        headers = [("Host", outgoing.target.host), *outgoing.headers, *await self.signature(outgoing)]
        if outgoing.content_length is not None and outgoing.body is not None:
            headers.append(("Content-Length", str(outgoing.content_length)))
        headers += origin_fields(self._instance)
        sending = _Sending(outgoing.body, read_s=self._read_s, works_long=outgoing.works_long)
        BEGIN.set(sending.begin)
        try:
            response = await self._send(outgoing, headers, sending)
            if self._health.due:
                self._health.heard_date(response.headers.get("Date", ""))
            try:
                yield response
            finally:
                # If the body was read to its end, the connection is in the pool already, and this call does
                # not close it.
                response.close()
        finally:
            await sending.stop()

    async def aclose(self) -> None:
        if self._links is not None:
            self._links.close()
        if self._session is not None:
            await self._session.close()

    def credentials(self, upstream: Upstream) -> Awaitable[Credentials | None]:
        """Return the credentials of ``upstream``; None if requests are not to be signed. Raises as
        ``exchange``.
        """
        provider = self._credentials.get(upstream)
        if provider is None:
            raise OriginAnswer(
                403,
                "AccessDenied",
                f"no origin credentials are configured for the upstream {upstream!r}",
            )
        return provider.credentials()

    async def _send(
        self, outgoing: Outgoing, headers: list[tuple[str, str]], sending: "_Sending"
    ) -> aiohttp.ClientResponse:
        query = f"?{outgoing.raw_query}" if outgoing.raw_query else ""
        try:
            async with sending.bounded(self._connect_s):
                return await self._opened().request(
                    outgoing.method,
                    URL(f"{outgoing.target.origin}{outgoing.target.raw_path}{query}", encoded=True),
                    headers=headers,
                    data=None if outgoing.body is None else sending,
                    allow_redirects=False,
                )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if sending.failure is not None:
                raise sending.failure from None
            unavailable = _unavailable(error, outgoing.target.origin)
            if sending.begun and outgoing.method not in _READING:
                raise OutcomeUnknown(
                    f"The origin did not answer, so it may have carried out the request: {unavailable}"
                ) from error
            raise unavailable from error

    async def signature(self, outgoing: Outgoing) -> list[tuple[str, str]]:
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
                region=self._region,
                now_s=self._clock.now_s(),
            )
        except UnicodeEncodeError:
            raise InvalidRequest(
                "A header of the request is not UTF-8, so it cannot be signed for the origin",
                hint="Encode header values as UTF-8 or, for metadata, as RFC 2047 words.",
            ) from None

    def _opened(self) -> aiohttp.ClientSession:
        # The session is not made in __init__, because it must belong to the loop that is running.
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=BoundedConnector(
                    limit=self._max_connections,
                    ssl=self._tls or True,
                    socket_factory=None if self._links is None else self._links.make_socket,
                ),
                timeout=self._timeout,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=_NO_AUTO_HEADERS,
                read_bufsize=_READ_BUFFER_BYTES,
                middlewares=(_sent_once,),
                max_field_size=64 << 10,
                max_headers=_MOST_FIELDS,
                trust_env=False,
            )
        return self._session


class _Unanswered(aiohttp.ClientError):
    """The connection ended before an answer arrived. ``__cause__``: the connection's error."""


async def _sent_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Keep aiohttp from silently repeating a PUT or DELETE whose connection ended without an answer.

    The origin may have carried out the first request, and would then answer the second one differently. So
    the client must decide whether to repeat the request. Also refuse an answer with a status that HTTP does
    not have, or that switches protocols, which was not requested.
    """
    try:
        response = await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        if request.method in _READING or isinstance(error, aiohttp.ClientConnectorError):
            raise
        raise _Unanswered from error
    if not 200 <= response.status < 600:
        response.close()
        raise NoAnswer(f"status {response.status} is no answer to a request")
    return response


async def read_to_end(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """Yield the body as it arrives. Raises BodyCutShort."""
    while chunk := await _read_some(response):
        yield chunk
        await asyncio.sleep(0)  # Reading parses what has arrived already, so it may never wait.


async def _read_some(response: aiohttp.ClientResponse) -> bytes:
    try:
        return await response.content.readany()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise BodyCutShort(f"the origin's body broke off: {type(error).__name__}") from error


class _Sending(aiohttp.Payload):
    """The body of one request, while it is sent. It is aiohttp's payload.

    aiohttp reads the body in another task. This task may still run when the answer has arrived and the sender
    wants to close the body. The origin has ``read_s`` seconds to take each piece. After the last piece it has
    ``read_s`` seconds until the head of its answer is complete; with ``works_long``, until its next byte. The
    time spent waiting for the client's next piece does not count. ``failure``: the error that the body itself
    has raised.
    """

    _autoclose = True  # ``stop`` closes it.

    def __init__(self, body: AsyncIterator[bytes] | None, *, read_s: float, works_long: bool) -> None:
        super().__init__(None)
        self._read_s = read_s
        self._works_long = works_long
        self._limit: asyncio.Timeout | None = None
        self.failure: Exception | None = None
        self.begun = False
        """True if the request's head was sent, so that the origin may know of the request."""
        self._body = body
        self._pulling: asyncio.Task[object] | None = None
        self._idle: asyncio.Event | None = None  # Made by ``stop``, which waits for it.

    def begin(self) -> None:
        """Note that the request's head is sent."""
        self.begun = True

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Send the body. aiohttp calls this in a task of its own."""
        self._consumed = True  # The body can be read only once.
        writer.length = content_length
        while True:
            if self._body is None:
                # Raise: if this ended normally, the part that was sent would look like the whole body.
                raise ConnectionAbortedError("the rest of the body is not wanted")
            self._allow(None)
            piece = await self._next(self._body)
            if piece is None:
                self._allow(None if self._works_long else self._read_s)
                return
            self._allow(self._read_s)
            if len(piece) > _JOINED_BYTES:
                writer.send_headers()  # Otherwise aiohttp copies the piece to send both together.
            await writer.write(piece)

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:  # noqa: ARG002 - aiohttp's
        raise TypeError("a body is read only once, by the request")

    @asynccontextmanager
    async def bounded(self, connect_s: float) -> AsyncIterator[None]:
        """Run the block, and raise TimeoutError in it if the origin takes too long."""
        try:
            async with asyncio.timeout(None) as self._limit:
                if self._body is None and not self._works_long:
                    self._allow(connect_s + self._read_s)
                yield
        finally:
            self._limit = None

    def _allow(self, seconds: float | None) -> None:
        """Limit the wait for the origin to ``seconds`` from now. None: no limit."""
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(None if seconds is None else asyncio.get_running_loop().time() + seconds)

    async def stop(self) -> None:
        """Stop the task that reads the body, so that the body can be closed."""
        self._body = None
        if self._pulling is not None:
            self._idle = asyncio.Event()
            self._pulling.cancel()
            await self._idle.wait()

    async def _next(self, body: AsyncIterator[bytes]) -> bytes | None:
        self._pulling = asyncio.current_task()
        try:
            return await anext(body, None)
        except Exception as error:
            self.failure = error
            raise
        finally:
            self._pulling = None
            if self._idle is not None:
                self._idle.set()


def _unavailable(error: BaseException, origin: str) -> OriginUnavailable:
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
        reason = why_tls_failed(error)
    elif isinstance(error, aiohttp.ClientConnectorError):
        reason = f"{error.os_error.strerror or error.os_error}; check origin.endpoint"
    elif isinstance(error, aiohttp.ConnectionTimeoutError):
        reason = "no connection in time; check origin.endpoint, or raise origin.max_connections"
    elif isinstance(error, TimeoutError):
        reason = "timed out"
    elif isinstance(error, NoAnswer):
        reason = str(error)
    elif isinstance(error, _Unanswered):
        reason = f"the connection failed ({type(error.__cause__).__name__})"
    else:
        reason = f"the connection failed ({type(error).__name__})"
    return OriginUnavailable(f"the origin {origin} cannot be reached: {reason}")


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
