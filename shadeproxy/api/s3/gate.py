"""What a request means, who asks, and whether it may: the same in every lane and in every process.

Rule: the order of questions is fixed: nothing of an operation is looked at before the signature is
accepted, and nothing is asked of the engine before the client's rights are checked.
"""

from typing import Protocol
from urllib.parse import unquote

from shadeproxy.api.s3.auth.authenticator import Authenticated, Authenticator
from shadeproxy.api.s3.auth.clients import ANONYMOUS
from shadeproxy.api.s3.exchange import Call, Exchange, RequestObserver
from shadeproxy.api.s3.headers import settle_presigned
from shadeproxy.api.s3.operations import Permission, Touches, bypasses, resolve
from shadeproxy.api.s3.request import S3Request, parse_request
from shadeproxy.core.errors import InvalidRequest, OriginIsProxy
from shadeproxy.core.sigv4 import UNSIGNED_PAYLOAD
from shadeproxy.core.tracing import INSTANCE, INSTANCE_FIELD
from shadeproxy.core.types import Headers, Source
from shadeproxy.engine.base import ReadsNow
from shadeproxy.telemetry.log import mask_text


class EventLog(Protocol):
    """What the handler needs of a structlog logger."""

    def debug(self, event: str, **fields: object) -> object: ...

    def warning(self, event: str, **fields: object) -> object: ...

    def exception(self, event: str, **fields: object) -> object: ...


class Gate:
    """``base_domains``: lower-case names under which virtual-host addressing is served."""

    def __init__(
        self,
        reads: ReadsNow,
        authenticator: Authenticator,
        *,
        observer: RequestObserver,
        log: EventLog,
        base_domains: tuple[str, ...] = (),
        verbose: bool = False,
    ) -> None:
        """``verbose``: log each hit for debugging; may be changed."""
        self.verbose = verbose
        self._reads = reads
        self._authenticator = authenticator
        self._observer = observer
        self._log = log
        self._base_domains = base_domains

    def identify(self, method: str, target: str, headers: Headers) -> tuple[Call, Authenticated]:
        """What is asked and by whom, with the right to ask it. Raises RequestError.

        The one way to a ``Call``, whatever lane the request takes.
        """
        request = parse_request(method, target, headers, base_domains=self._base_domains)
        return self._identify(request)

    def reads_cache(self, call: Call) -> bool:
        """Whether the cache may answer this call; else it is forwarded."""
        request = call.request
        return call.operation.cached and not bypasses(request) and self._reads.cacheable(request.ref)

    def report_hit(
        self, call: Call, status: int, source: Source, bytes_sent: int, *, request_id: str
    ) -> None:
        """Report a read that was answered without ``serve_read``."""
        request = call.request
        self._observer.on_request(
            operation=call.operation.name,
            bucket=request.bucket,
            status=status,
            source=source,
            bytes_sent=bytes_sent,
            duration_s=0.0,
            job=request.job,
            request_id=request_id,
        )
        if self.verbose:
            self._log.debug(
                "s3_request",
                request_id=request_id,
                operation=call.operation.name,
                method=request.method,
                path=request.raw_path,
                query=mask_text(request.raw_query),
                status=status,
                source=str(source),
                bytes_sent=bytes_sent,
            )

    def report_cut(self, why: str) -> None:
        """A hit that had begun was not finished, and not because its client went away."""
        self._log.warning("answer cut", error=why)

    def _identify(self, request: S3Request, exchange: Exchange | None = None) -> tuple[Call, Authenticated]:
        # Before the signature: the key that the origin is asked with need not be one that clients have.
        if request.fields.get(INSTANCE_FIELD) == INSTANCE:
            raise OriginIsProxy("origin.endpoint names this proxy itself: set it to the object store")
        authenticated = self._authenticate(request)
        request = settle_presigned(request)
        operation = resolve(request)
        if exchange is not None:
            exchange.operation = operation.name
        call = Call(request, operation, authenticated.identity)
        authorise(call)
        return call, authenticated

    def _authenticate(self, request: S3Request) -> Authenticated:
        if request.method == "OPTIONS":
            # Browsers ask before they sign, of a presigned URL too, whose signature is for another method.
            return Authenticated(ANONYMOUS, UNSIGNED_PAYLOAD)
        return self._authenticator.authenticate(request)


def authorise(call: Call) -> None:
    """Raises AccessDenied unless the client may do what it asks.

    The keys of a DeleteObjects are checked one by one when its body has been read.
    """
    request, operation, identity = call
    permission, bucket = operation.permission, request.bucket
    if request.key:
        identity.check(permission, bucket, request.key)
        if (source := request.fields.get("x-amz-copy-source")) is not None:
            identity.check(Permission.READ, *_copy_source(source))
    elif operation.name.startswith("List"):
        identity.check(permission, bucket, request.query.get("prefix", ""))
    elif permission is Permission.LIST or operation.touches is Touches.LISTED:
        identity.check_bucket(permission, bucket)
    else:
        identity.check(permission, bucket, "")


def _copy_source(field: str) -> tuple[str, str]:
    bucket, separator, key = unquote(field.partition("?")[0]).removeprefix("/").partition("/")
    if not separator or not bucket or not key:
        raise InvalidRequest("x-amz-copy-source must be of the form bucket/key")
    return bucket, key
