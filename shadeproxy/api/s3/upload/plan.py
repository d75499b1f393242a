"""The client's promises about a body. They are parsed from the request's head before the body is read."""

from dataclasses import dataclass

from shadeproxy.api.s3.auth.authenticator import Authenticated
from shadeproxy.api.s3.request import S3Request
from shadeproxy.api.s3.upload.chunked import ChunkVerifier, Framing
from shadeproxy.core.checksums import make_checksum
from shadeproxy.core.errors import InvalidRequest, MissingLength, NotSupported, PayloadMismatch
from shadeproxy.core.sigv4 import EMPTY_SHA256, UNSIGNED_PAYLOAD

_FRAMINGS = {
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD": Framing(signed=True, trailing=False),
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER": Framing(signed=True, trailing=True),
    "STREAMING-UNSIGNED-PAYLOAD-TRAILER": Framing(signed=False, trailing=True),
}
_HEX = frozenset("0123456789abcdef")
_MAX_LENGTH_DIGITS = 16


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """The promises about a body. ``length``: bytes of the decoded body; None if unknown. ``sha256``: the
    promised digest as hex.

    ``framing``: the kind of aws-chunked framing; None if the body has none. ``trailers``: the lower-case
    names in x-amz-trailer. ``verifier``: checks the signatures of chunks; None if the chunks are unsigned, or
    there is no key to check them with.
    """

    length: int | None
    sha256: str | None = None
    framing: Framing | None = None
    trailers: tuple[str, ...] = ()
    verifier: ChunkVerifier | None = None

    @property
    def empty(self) -> bool:
        return self.length == 0 and self.framing is None


def plan_body(request: S3Request, authenticated: Authenticated) -> BodyPlan:
    """Return the promises of a request about its body. Raises InvalidRequest, NotSupported, MissingLength,
    PayloadMismatch.
    """
    payload_hash = authenticated.payload_hash
    if (framing := _FRAMINGS.get(payload_hash)) is not None:
        return _plan_framed(request, authenticated, framing)
    length = _wire_length(request)
    if payload_hash == UNSIGNED_PAYLOAD:
        return BodyPlan(length)
    if payload_hash.startswith("STREAMING-"):
        raise NotSupported(f"The payload form {payload_hash} is not supported")
    digest = payload_hash.lower()
    if len(digest) != 64 or not _HEX.issuperset(digest):
        raise InvalidRequest("x-amz-content-sha256 is not a SHA-256 digest")
    if length == 0 and digest != EMPTY_SHA256:
        raise PayloadMismatch("The provided x-amz-content-sha256 header is not that of an empty body")
    return BodyPlan(length, sha256=digest)


def _plan_framed(request: S3Request, authenticated: Authenticated, framing: Framing) -> BodyPlan:
    field = request.fields.get("x-amz-decoded-content-length")
    if field is None:
        raise MissingLength("An aws-chunked body needs x-amz-decoded-content-length")
    if not field.isdecimal() or len(field) > _MAX_LENGTH_DIGITS:
        raise InvalidRequest("x-amz-decoded-content-length is not a number")
    seed = authenticated.identity.seed
    named = request.fields.get("x-amz-trailer", "").lower().split(",") if framing.trailing else []
    names = tuple(name.strip() for name in named if name.strip())
    if unknown := [name for name in names if make_checksum(name) is None]:
        # The proxy sends a trailer to the origin as a field of a request that it signs itself. So allow only
        # checksums, which the proxy verifies.
        raise InvalidRequest(f"The trailer {unknown[0]} is not a checksum that can be verified")
    if twice := [name for name in names if names.count(name) > 1 or name in request.fields]:
        raise InvalidRequest(f"{twice[0]} may come once, as a header or as a trailer")
    return BodyPlan(
        int(field),
        framing=framing,
        trailers=names,
        verifier=ChunkVerifier(seed) if framing.signed and seed is not None else None,
    )


def _wire_length(request: S3Request) -> int | None:
    coding = request.fields.get("transfer-encoding")
    if coding is None:
        return int(request.fields.get("content-length", "0"))
    if coding.lower() != "chunked":
        raise NotSupported("The only transfer coding supported is chunked")
    return None
