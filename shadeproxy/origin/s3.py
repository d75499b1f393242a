"""``S3Origin``: an S3 server as an Origin. The proxy signs the requests itself.

Page GETs (s3pages.py), other reads (s3reads.py) and all other requests (s3transport.py) have connections of
their own. aiobotocore only supplies credentials, because its GET costs ten times as much CPU
(docs/adr/0005). Source: GetObject, HeadObject, ListObjectsV2 in the S3 API reference.
"""

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from typing import Literal
from urllib.parse import quote

import structlog

from shadeproxy.core.clock import Clock, SystemClock
from shadeproxy.core.errors import OriginAnswer, Unidentified
from shadeproxy.core.kept_fields import end_to_end
from shadeproxy.core.sigv4 import EMPTY_SHA256
from shadeproxy.core.types import (
    SHARED,
    UNKNOWN_BYTES,
    Headers,
    Intent,
    ListPage,
    ObjectMeta,
    ObjectRef,
    Span,
    Upstream,
)
from shadeproxy.origin import s3answers as answers
from shadeproxy.origin.addressing import RESERVED_NAMES, Addressing, Endpoint, Peer
from shadeproxy.origin.base import (
    ForwardRequest,
    ForwardResponse,
    HandedOver,
    OriginRead,
    Trailers,
    Wanted,
    once,
)
from shadeproxy.origin.bucket_regions import BucketRegions
from shadeproxy.origin.credentials import CredentialProvider
from shadeproxy.origin.health import OriginHealth
from shadeproxy.origin.http1 import Head
from shadeproxy.origin.pool import ConnectionPool, Timeouts
from shadeproxy.origin.regions import NAMES_REGION, other_region
from shadeproxy.origin.s3answers import buckets_listed
from shadeproxy.origin.s3pages import PageGet, PageGets
from shadeproxy.origin.s3reads import Reads
from shadeproxy.origin.s3transport import Outgoing, RequestSigner, S3Transport, tls_context
from shadeproxy.origin.trailing import TRAILED_PAYLOAD, can_frame, frame, framed_bytes, framed_headers
from shadeproxy.origin.upload_connection import UploadConnection

TrailingChecksums = Literal["auto", "always", "never"]
_log = structlog.get_logger(__name__)

# "identity": a gateway on the way must not compress bodies, because sizes and ranges count the stored bytes.
_OWN_HEADERS: Headers = (("User-Agent", "shadeproxy"), ("Accept-Encoding", "identity"))
_WHOLE_HEADERS: Headers = (*_OWN_HEADERS, ("x-amz-checksum-mode", "ENABLED"))
# Fields with which the client signs or frames its request. The proxy writes its own.
_NOT_FORWARDED = {
    "authorization", "connection", "content-length", "date", "expect", "host", "transfer-encoding",
    "x-amz-content-sha256", "x-amz-date", "x-amz-security-token",
}  # fmt: skip

_NO_TRAILERS = {"XAmzContentSHA256Mismatch", "NotImplemented"}
_EXAMINED = NAMES_REGION | {501}

_UPLOAD_IDLE_S = 15.0
"""Seconds for which a connection for uploads is kept without a request. Servers close idle connections after
20 s or more, and a request that is on its way then fails, because it is never sent again.
"""


class S3Origin:
    """An S3 server.

    ``endpoint_url``: None means AWS in ``region``. ``credentials``: the provider for each upstream; requests
    of an upstream without a provider get OriginAnswer 403. ``ca_file``: PEM certificates to trust instead of
    the system's. ``http_proxy``: the URL of an HTTP proxy on the way to the server; "" if there is none.
    ``trailing_checksums``: whether the server accepts checksums after a body ("auto": only AWS does); after a
    server has refused one, no more are sent to it. ``reserved_names``: names that mean no bucket at this
    server. ``one_region`` and ``regions``: see ``Endpoint``. ``instance``: the name by which the proxy
    recognises its own requests if they come back to it. Raises ConfigError for an endpoint
    or a CA file that cannot be used.
    """

    def __init__(
        self,
        endpoint_url: str | None,
        *,
        credentials: Mapping[Upstream, CredentialProvider],
        region: str = "us-east-1",
        addressing: Addressing = "auto",
        timeouts: Timeouts | None = None,
        max_connections: int = 256,
        ca_file: str | None = None,
        http_proxy: str = "",
        trailing_checksums: TrailingChecksums = "auto",
        reserved_names: Collection[str] = RESERVED_NAMES,
        one_region: bool = False,
        regions: BucketRegions | None = None,
        clock: Clock | None = None,
        health: OriginHealth | None = None,
        instance: str = "",
    ) -> None:
        self._clock = clock or SystemClock()
        health = health or OriginHealth(self._clock)
        self._endpoint = Endpoint(
            endpoint_url,
            region=region,
            addressing=addressing,
            reserved=reserved_names,
            one_region=one_region,
            regions=regions,
        )
        self._takes_trailers = {"auto": self._endpoint.is_aws, "always": True, "never": False}[
            trailing_checksums
        ]
        timeouts = timeouts or Timeouts()
        # Make the TLS context only if it is needed, because loading the system's authorities takes tens of
        # milliseconds.
        needs_tls = ca_file is not None or self._endpoint.url.startswith("https")
        tls = tls_context(ca_file) if needs_tls else None
        self._signer = RequestSigner(credentials, clock=self._clock, instance=instance)

        way = Peer.of(http_proxy) if http_proxy else None

        def gets_of(pool: ConnectionPool) -> PageGets:
            return PageGets(
                self._endpoint,
                credentials=self._signer.credentials,
                provider_of=credentials.get,
                pool=pool,
                clock=self._clock,
                health=health,
                instance=instance,
            )

        self.page_gets, heads, self.forwards = (
            gets_of(
                ConnectionPool(max_connections=max_connections, timeouts=timeouts, tls=tls, http_proxy=way)
            )
            for _ in range(3)
        )
        self._reads = Reads(self._signer, own=heads, forwarded=self.forwards)
        uploads = ConnectionPool(
            max_connections=max_connections,
            timeouts=timeouts._replace(idle_s=min(timeouts.idle_s, _UPLOAD_IDLE_S)),
            tls=tls,
            kind=UploadConnection,
            http_proxy=way,
        )
        self._transport = S3Transport(self._signer, gets_of(uploads))

    async def head(self, ref: ObjectRef, *, upstream: Upstream = SHARED) -> ObjectMeta:
        outgoing = Outgoing("HEAD", self._endpoint.target(ref), headers=_WHOLE_HEADERS, upstream=upstream)
        async with self._reads.exchange(outgoing) as (head, _):
            if head.status != 200:
                raise self.page_gets.error_of(ref.bucket, head, b"", asked=outgoing.target.region)
            meta = answers.object_meta(head, size=_content_length(head), is_ranged=False)
            if not meta.identified or head.flawed:
                raise Unidentified(ref)
            return meta

    def open(
        self,
        ref: ObjectRef,
        *,
        span: Span | None = None,
        if_match: str | None = None,
        upstream: Upstream = SHARED,
        intent: Intent = Intent.DEMAND,
        handed: HandedOver | None = None,
    ) -> AbstractAsyncContextManager[OriginRead]:
        del intent  # LimitedOrigin (limit.py) decides the order of reads.
        return PageGet(self.page_gets, Wanted(ref, span, if_match, upstream), handed)

    async def list_objects(
        self,
        bucket: str,
        prefix: str,
        *,
        start_after: str = "",
        max_keys: int = 1000,
        upstream: Upstream = SHARED,
    ) -> ListPage:
        query = f"encoding-type=url&list-type=2&max-keys={max_keys}&prefix={quote(prefix, safe='-_.~')}"
        if start_after:
            query += f"&start-after={quote(start_after, safe='-_.~')}"
        target = self._endpoint.target(ObjectRef(bucket, ""))
        outgoing = Outgoing("GET", target, raw_query=query, headers=_OWN_HEADERS, upstream=upstream)
        async with self._reads.exchange(outgoing) as (head, chunks):
            if head.status != 200:
                body = await answers.read_bounded(chunks, answers.MAX_ERROR_BYTES)
                raise self.page_gets.error_of(bucket, head, body, asked=target.region)
            body = await answers.read_bounded(chunks, answers.MAX_LISTING_BYTES)
        return await answers.parse_listing(body, bucket, prefix)

    @asynccontextmanager
    async def forward(self, request: ForwardRequest) -> AsyncIterator[ForwardResponse]:
        outgoing = Outgoing(
            request.method,
            self._endpoint.target_of(request.ref.bucket, request.raw_path),
            raw_query=request.raw_query,
            headers=tuple(pair for pair in request.headers if pair[0].lower() not in _NOT_FORWARDED),
            body=request.body,
            content_length=request.content_length,
            payload_hash=EMPTY_SHA256 if request.body is None else request.payload_hash,
            upstream=request.upstream,
            forwarded=True,
            works_long=request.works_long,
        )
        async with AsyncExitStack() as stack:
            if outgoing.method in {"GET", "HEAD"} and outgoing.body is None:
                exchange = self._reads.exchange(outgoing)
            else:
                if request.trailers is not None:
                    outgoing = await self._with_trailers(outgoing, request.trailers, stack)
                exchange = self._transport.exchange(outgoing)
            head, chunks = await stack.enter_async_context(exchange)
            if head.status in _EXAMINED:
                chunks = await self._examined(outgoing, request.ref.bucket, head, chunks)
            yield ForwardResponse(head.status, end_to_end(head.headers), chunks)

    async def probe(self) -> str:
        """Send ListBuckets. Even the answer AccessDenied shows that endpoint and signature are right."""
        target = self._endpoint.target(ObjectRef("", ""))
        # Get the credentials first: an error in finding them must not look like an answer of the origin.
        signed = await self._signer.credentials(SHARED) is not None
        async with self._reads.exchange(Outgoing("GET", target, headers=_OWN_HEADERS)) as (head, chunks):
            body = await answers.read_bounded(chunks, answers.MAX_LISTING_BYTES)
        try:
            count = await buckets_listed(self._endpoint.url, head, body, now_s=self._clock.now_s())
        except OriginAnswer as answer:
            if answer.code != "AccessDenied":
                raise
            who = "these credentials" if signed else "a client without credentials"
            return f"S3 at {self._endpoint.url} answers; {who} may not list buckets"
        return f"S3 at {self._endpoint.url} answers; {count} bucket{'s' * (count != 1)}"

    async def aclose(self) -> None:
        await self.page_gets.pool.aclose()
        await self._reads.aclose()
        await self._transport.aclose()

    async def _examined(
        self, outgoing: Outgoing, bucket: str, head: Head, chunks: AsyncIterator[bytes]
    ) -> AsyncIterator[bytes]:
        """Return the body of an answer by which the origin may have refused the form of a request. If it says
        that the bucket lies in another region, raise OriginUnavailable, so that the client tries again: the
        origin has not carried out the request.
        """
        held = bytearray()
        async for chunk in chunks:
            held += chunk
            if len(held) > answers.MAX_ERROR_BYTES:
                return _continued(bytes(held), chunks)  # This is no error document.
        document = bytes(held)
        error = other_region(self._endpoint, bucket, head, document, asked=outgoing.target.region)
        if error is not None:
            raise error
        if outgoing.payload_hash == TRAILED_PAYLOAD and answers.error_field(document) in _NO_TRAILERS:
            self._takes_trailers = False
            _log.warning("trailing_checksums_refused", endpoint=self._endpoint.url)
        return once(document)

    async def _with_trailers(self, outgoing: Outgoing, trailers: Trailers, stack: AsyncExitStack) -> Outgoing:
        """Return ``outgoing`` with checksums after its body. If that is impossible, return it without
        checksums.
        """
        body, size = outgoing.body, outgoing.content_length
        signed = await self._signer.credentials(outgoing.upstream) is not None
        if body is None or size is None or not (signed and self._takes_trailers and can_frame(trailers)):
            # The origin would refuse a request that names a checksum algorithm but has no checksum.
            kept = (pair for pair in outgoing.headers if pair[0].lower() != "x-amz-sdk-checksum-algorithm")
            return replace(outgoing, headers=tuple(kept))
        framed = await stack.enter_async_context(aclosing(frame(body, trailers)))
        return replace(
            outgoing,
            headers=framed_headers(outgoing.headers, size, trailers),
            body=framed,
            content_length=framed_bytes(size, trailers),
            payload_hash=TRAILED_PAYLOAD,
        )


async def _continued(held: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield ``held``, and then the rest of a body."""
    yield held
    async for chunk in chunks:
        yield chunk


def _content_length(head: Head) -> int:
    """Return the Content-Length of an answer to a HEAD. It is not the length of the answer's body, which is
    empty.
    """
    return int(head.headers[head.places.lengths[0]][1]) if head.length_given else UNKNOWN_BYTES
