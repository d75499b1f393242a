"""Every error that ShadeProxy raises on purpose, as one small tree.

A class here says *whose fault it is and who may see it*; nothing here knows HTTP. The S3 and control
listeners each hold one table from these classes to answers, and a test walks this tree and fails on a
class without a row. Foreign exceptions are translated into these where they enter (origin, tiers, state).
"""

from typing import ClassVar


class ShadeProxyError(Exception):
    """Root of the tree. ``str(error)`` is safe to show: it never holds a secret."""


# --------------------------------------------------------------------------- the client's fault


class RequestError(ShadeProxyError):
    """The client must change the request. ``hint`` says what to change, where that helps."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class InvalidRequest(RequestError):
    """A header, query or body value that cannot be understood."""


class MalformedBody(RequestError):
    """The body is not the XML or JSON that the operation wants."""


class BodyTooLarge(RequestError):
    """The body is longer than the operation allows."""


class BodyMismatch(RequestError):
    """The body is not the one that was promised: wrong hash, checksum or length."""


class PayloadMismatch(BodyMismatch):
    """The body does not have the SHA-256 that the request was signed with."""


class BodyIncomplete(BodyMismatch):
    """The body ended before its announced length."""


class ClientTooSlow(RequestError):
    """The client keeps what waits for its body waiting for too long."""


class MissingLength(RequestError):
    """The operation needs a Content-Length and got none."""


class OriginIsProxy(RequestError):
    """A request of this proxy to its origin came back to it: the origin's endpoint names the proxy."""


class NotSupported(RequestError):
    """An S3 operation or option that the proxy or this origin cannot do (501, never silence)."""


class UnknownName(RequestError):
    """A dataset, job or operation that the control side does not know."""


class Conflict(RequestError):
    """The request contradicts what is registered already."""


class RangeNotSatisfiable(RequestError):
    """The range starts at or beyond the end of the object (RFC 9110 section 15.5.17)."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"The requested range is not satisfiable: the object has {size_bytes} bytes")
        self.size_bytes = size_bytes


class AuthError(RequestError):
    """The client is not who it says, or may not do this."""


class AccessDenied(AuthError):
    """Authenticated or anonymous, but without the right."""


class UnknownAccessKey(AuthError):
    """The access key is not configured."""


class SignatureMismatch(AuthError):
    """The signature that was computed is not the one that was sent."""


class ClockSkew(AuthError):
    """The request was signed more than 15 minutes from now."""


class RequestExpired(AuthError):
    """A presigned URL past its expiry, or an expired session token."""


class MalformedAuth(AuthError):
    """The Authorization header or query parameters cannot be understood."""


class MalformedQueryAuth(AuthError):
    """The parameters of a presigned URL cannot be understood."""


# --------------------------------------------------------------------------- the origin


class OriginError(ShadeProxyError):
    """The origin did not give what was asked. ``retryable``: the same request may succeed later."""

    retryable: ClassVar[bool] = False


class OriginAnswer(OriginError):
    """The origin answered with an error of its own; it is final and goes to the client as it is.

    ``status`` is the HTTP status, ``code`` the S3 error code ("" for a HEAD, which has no body).
    ``headers`` holds what the client may see of the origin's headers.
    """

    def __init__(
        self, status: int, code: str, message: str = "", *, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(f"{status} {code}: {message}" if message else f"{status} {code}")
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers


class NotS3(OriginError):
    """What answers at the origin's endpoint is no S3 server. ``hint`` says what to change."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class OriginUnavailable(OriginError):
    """Refused, reset, timed out, or a 5xx answer: worth a retry, then a 503 for the client.

    ``retry_after_s``: what the origin asked for in Retry-After, None where it did not.
    """

    retryable: ClassVar[bool] = True

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class OutcomeUnknown(OriginUnavailable):
    """A change was sent to the origin, which did not answer: it may have been carried out."""

    retryable: ClassVar[bool] = False


class OriginThrottled(OriginUnavailable):
    """The origin asked to slow down (503 SlowDown, 429)."""


class DeadlineExceeded(OriginError):
    """A request's time budget ended before its first byte came: 503 SlowDown, before its client gives up."""


class BodyCutShort(OriginError):
    """The origin ended a body before its announced length; what came is never published."""

    retryable: ClassVar[bool] = True


class BodyDamaged(OriginError):
    """The body is not the one that the origin's own checksum is of; what came is never published."""


class Unidentified(OriginError):
    """The origin does not say which version its answer is of, by a strong ETag, or how long that is: the
    object can be passed on, and never cached. Listeners forward the read instead; see engine/unidentified.py.
    """

    def __init__(self, name: object) -> None:
        super().__init__(f"{name} cannot be cached: the origin sends no strong ETag with it, or no length")


class ObjectChanged(OriginError):
    """The object's ETag changed between two reads of one answer: the answer cannot be finished."""


# --------------------------------------------------------------------------- inside the proxy


class TierError(ShadeProxyError):
    """A tier could not store or return a page. Never leaves the engine: it becomes a miss."""


class TierFull(TierError):
    """No room, and nothing may be freed."""


class WriteRefused(ShadeProxyError):
    """Nothing was written: a tier could answer the old version after a restart, and nothing prevents it."""


class PeerError(ShadeProxyError):
    """A peer proxy failed. Never leaves the engine: it becomes a miss."""


class StateError(ShadeProxyError):
    """Durable control state could not be read or written."""


class Overloaded(ShadeProxyError):
    """The memory ledger or a queue is full: come back after ``retry_after_s``."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ShuttingDown(ShadeProxyError):
    """The proxy drains and takes no new work."""


class NoListener(ShadeProxyError):
    """No control listener answers where the command line asked. ``url``: where that is; ``reason``: why there
    is no answer, "" where the message alone says it.
    """

    def __init__(self, message: str, *, url: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.url = url
        self.reason = reason


class ConfigError(ShadeProxyError):
    """The configuration cannot be used; the text names the key and what to change."""
