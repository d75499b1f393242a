"""All errors that ShadeProxy raises on purpose, as one small tree.

The class of an error says *whose fault it is and who may see it*. Nothing here knows HTTP: the S3 listener
and the control listener each have a table that maps the classes to answers, and a test fails if a class has
no row. Exceptions of other libraries are translated into these classes where they are caught (origin, tiers,
state).
"""

from typing import ClassVar


class ShadeProxyError(Exception):
    """Root of the tree. ``str(error)`` is safe to show: it never holds a secret."""


# --------------------------------------------------------------------------- the client's fault


class RequestError(ShadeProxyError):
    """The client must change the request. ``hint`` says what to change, if that helps."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class InvalidRequest(RequestError):
    """A value in header, query or body cannot be understood."""


class MalformedBody(RequestError):
    """The body is not the XML or JSON that the operation needs."""


class BodyTooLarge(RequestError):
    """The body is longer than the operation allows."""


class BodyMismatch(RequestError):
    """The body does not have the hash, checksum or length that the request announced."""


class PayloadMismatch(BodyMismatch):
    """The body does not have the SHA-256 that was signed with the request."""


class BodyIncomplete(BodyMismatch):
    """The body ended before the length that the request announced."""


class ClientTooSlow(RequestError):
    """The client sent its body so slowly that the proxy stopped waiting for it."""


class MissingLength(RequestError):
    """The operation needs a Content-Length and got none."""


class OriginIsProxy(RequestError):
    """The proxy received a request that it had sent to its origin itself: the origin's endpoint leads to the
    proxy.
    """


class Misdirected(RequestError):
    """A node of a cluster got, from another node, a request that only a third node may serve."""


class NotSupported(RequestError):
    """The proxy, or this origin, does not support an S3 operation or option. Answered with 501, never
    ignored.
    """


class UnknownName(RequestError):
    """The control API does not know this dataset, job or operation."""


class Conflict(RequestError):
    """The request contradicts something that is registered already."""


class TooManyHints(Conflict):
    """A new dataset or job has no place, because as many are registered as may be at a time."""


class HintMemoryFull(RequestError):
    """The registered hints take all of the memory that they may take, so new ones are refused."""


class NotFeasible(RequestError):
    """A job asks for more than the cache and the link can give it beside the other jobs."""


class RangeNotSatisfiable(RequestError):
    """The range starts at or beyond the end of the object (RFC 9110 section 15.5.17)."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"The requested range is not satisfiable: the object has {size_bytes} bytes")
        self.size_bytes = size_bytes


class AuthError(RequestError):
    """The client is not the one that it claims to be, or may not do what it asks for."""


class AccessDenied(AuthError):
    """The client, authenticated or anonymous, lacks the right to do this."""


class NotOfCluster(AccessDenied):
    """The listener for the nodes of a cluster got a request that no node of the cluster made."""


class UnknownAccessKey(AuthError):
    """The access key is not configured."""


class SignatureMismatch(AuthError):
    """The signature that was computed differs from the one in the request."""


class ClockSkew(AuthError):
    """The time of the signature differs from the present time by more than 15 minutes."""


class RequestExpired(AuthError):
    """A presigned URL or a session token has expired."""


class MalformedAuth(AuthError):
    """The Authorization header or query parameters cannot be understood."""


class MalformedQueryAuth(AuthError):
    """The parameters of a presigned URL cannot be understood."""


# --------------------------------------------------------------------------- the origin


class OriginError(ShadeProxyError):
    """The origin did not give the answer that was asked for. ``retryable``: the same request may succeed
    later.
    """

    retryable: ClassVar[bool] = False


class OriginAnswer(OriginError):
    """The origin answered with an error. The error is final, and the client gets it unchanged.

    ``status``: the HTTP status. ``code``: the S3 error code ("" for a HEAD, whose answer has no body).
    ``headers``: those header fields of the origin that the client may see.
    """

    def __init__(
        self, status: int, code: str, message: str = "", *, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(f"{status} {code}: {message}" if message else f"{status} {code}")
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers


class NoCredentials(OriginAnswer):
    """The proxy found no credentials for the origin, so the request was not sent. ``hint``: what to set."""

    hint = (
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name others in [origin.credentials], or set"
        ' origin.credentials = "anonymous" for a store that asks for none'
    )

    def __init__(self, reason: str) -> None:
        super().__init__(403, "AccessDenied", f"{reason}: {self.hint}")


class NotS3(OriginError):
    """The server at the origin's endpoint is not an S3 server. ``hint``: the setting to change."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class OriginUnavailable(OriginError):
    """The origin refused or reset the connection, was too slow, or answered 5xx. The request is repeated; if
    it never succeeds, the client gets a 503.

    ``retry_after_s``: the origin's Retry-After; None if it sent none.
    """

    retryable: ClassVar[bool] = True

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class CredentialsUnresolved(OriginUnavailable):
    """A profile, file, process or service of AWS did not give the credentials for the origin, so the request
    was not sent. ``hint``: what to correct.
    """

    code = "CredentialsUnresolved"
    hint = (
        "correct the profile, file, process or role that should give them (AWS_PROFILE, ~/.aws), or name"
        " others in [origin.credentials]"
    )


class WriterUnavailable(OriginUnavailable):
    """The node of the cluster that executes writes of this object did not take the write. Nothing was
    written.
    """


class OutcomeUnknown(OriginUnavailable):
    """The origin did not answer a request that changes something. The change may have been made."""

    retryable: ClassVar[bool] = False


class WriteUnconfirmed(OutcomeUnknown):
    """The origin answered a write, but another proxy of the cluster may not know of the write. So the client
    does not get a success, which would promise that all readers see the write.
    """

    def __init__(
        self,
        message: str = "the origin answered, but this proxy lost its lease meanwhile: the outcome of the"
        " write is unknown; read the object, or write again",
    ) -> None:
        super().__init__(message)


class OriginThrottled(OriginUnavailable):
    """The origin asked the proxy to send fewer requests (503 SlowDown, 429)."""


class OtherRegion(OriginUnavailable):
    """The origin answered that the bucket lies in another region, where the next request will go."""


class DeadlineExceeded(OriginError):
    """The origin gave no byte of an answer within the request's time budget. The client then gets 503
    SlowDown, before most clients would have given up.
    """


class BodyCutShort(OriginError):
    """The origin ended a body before its announced length. The bytes that came are not stored."""

    retryable: ClassVar[bool] = True


class BodyDamaged(OriginError):
    """The body does not match the origin's own checksum of it. The bytes that came are not stored."""


class Unidentified(OriginError):
    """The origin's answer lacks a strong ETag or a length, so its version is unknown; or the length is larger
    than any page number allows. The object cannot be cached.

    Listeners then forward the read to the origin; see engine/freshness/unidentified.py.
    """

    def __init__(self, name: object) -> None:
        super().__init__(
            f"{name} cannot be cached: the origin sends no strong ETag with it, or no length, or it is longer"
            " than 16 TiB"
        )


class CachedElsewhere(Unidentified):
    """Another proxy of the cluster caches the object. Listeners then forward the read."""

    def __init__(self, name: object) -> None:
        OriginError.__init__(self, f"{name} is cached by another proxy of the cluster")


class ObjectChanged(OriginError):
    """The object's ETag changed between two reads for the same answer, so the answer cannot be finished."""


# --------------------------------------------------------------------------- inside the proxy


class TierError(ShadeProxyError):
    """A tier could not store or return a page. The engine treats this as a miss, so no client sees the
    error.
    """


class TierFull(TierError):
    """The tier has no room for a record. The caller must release another record first."""


class WriteRefused(ShadeProxyError):
    """A write was refused before anything was written, because after a restart a tier could return the
    version from before the write.
    """


class NotOwnerNow(ShadeProxyError):
    """A write was refused before anything was sent, because this proxy has no lease for the object now."""

    def __init__(
        self,
        message: str = (
            "this proxy may not write the object now, because its share of the cluster is moving, or the"
            " cluster's engine is out of reach: nothing was written; retry"
        ),
    ) -> None:
        super().__init__(message)


class PeerError(ShadeProxyError):
    """Another proxy failed, or sent something that is not valid. The engine treats this as a miss, so no
    client sees the error.
    """


class LostBlob(PeerError):
    """The cluster's log has dropped a blob of an event or a snapshot, or has other bytes in its place. Or its
    snapshot is of an earlier version.
    """


class ClusterUnavailable(ShadeProxyError):
    """The cluster's log (Redis or Valkey) refused a call, or did not answer in time. The change may have been
    made.
    """


class StateError(ShadeProxyError):
    """Durable control state could not be read or written."""


class Overloaded(ShadeProxyError):
    """The memory ledger or a queue is full. The client may retry after ``retry_after_s``."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ShuttingDown(ShadeProxyError):
    """The proxy is shutting down and accepts no new work."""


class NoListener(ShadeProxyError):
    """No control listener answers at ``url``, to which a command of the command line sent a call. ``reason``:
    what failed, in a few words; "" if ``cause`` alone says it. ``remedy``: what to change.
    """

    def __init__(self, cause: str, *, remedy: str = "", url: str = "", reason: str = "") -> None:
        super().__init__(_with_remedy(cause, remedy))
        self.cause = cause
        self.remedy = remedy
        self.url = url
        self.reason = reason


class ConfigError(ShadeProxyError):
    """The configuration cannot be used. ``str(error)`` names the key and says how to change it. ``cause``:
    what is wrong; ``remedy``: what to write instead, "" if ``cause`` says that already.
    """

    def __init__(self, cause: str, *, remedy: str = "") -> None:
        super().__init__(_with_remedy(cause, remedy))
        self.cause = cause
        self.remedy = remedy


def _with_remedy(cause: str, remedy: str) -> str:
    return f"{cause}; {remedy}" if remedy else cause
