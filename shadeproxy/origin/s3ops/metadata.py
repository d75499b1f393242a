"""The header fields of a write that belong to the object, and the options that a plain store cannot obey."""

from shadeproxy.core.errors import NotSupported, OriginAnswer
from shadeproxy.core.types import Headers

MAX_METADATA_BYTES = 2048
"""Most bytes of all names and values of x-amz-meta-* (S3 user guide, "Working with object metadata")."""

_KEPT = {
    name.lower(): name
    for name in (
        "Content-Type",
        "Cache-Control",
        "Content-Disposition",
        "Content-Encoding",
        "Content-Language",
        "Expires",
    )
}
_REFUSED_PREFIXES = (
    "x-amz-server-side-encryption",
    "x-amz-copy-source-server-side-encryption",
    "x-amz-object-lock",
    "x-amz-grant-",
)
_REFUSED = {"x-amz-tagging", "x-amz-website-redirect-location", "x-amz-write-offset-bytes"}


def kept_headers(headers: Headers) -> Headers:
    """Return the content fields and the user metadata of a write, with names as S3 spells them.

    Raises NotSupported for options that would change what is stored, OriginAnswer 400 MetadataTooLarge.
    """
    kept = []
    metadata_bytes = 0
    for name, value in headers:
        lowered = name.lower()
        if lowered in _REFUSED or lowered.startswith(_REFUSED_PREFIXES):
            raise NotSupported(f"{lowered} is not supported by this origin: send the request without it")
        if lowered == "x-amz-storage-class" and value.upper() != "STANDARD":
            raise NotSupported("This origin has one storage class: send the request with STANDARD or without")
        if lowered == "content-encoding":
            value = ", ".join(part for part in _codings(value) if part.lower() != "aws-chunked")  # noqa: PLW2901 - a transport coding, not the object's
        if lowered in _KEPT and value:
            kept.append((_KEPT[lowered], value))
        elif lowered.startswith("x-amz-meta-"):
            metadata_bytes += len(lowered) + len(value) - len("x-amz-meta-")
            kept.append((lowered, value))
    if metadata_bytes > MAX_METADATA_BYTES:
        raise OriginAnswer(
            400, "MetadataTooLarge", f"User metadata must not exceed {MAX_METADATA_BYTES} bytes."
        )
    return tuple(kept)


def _codings(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]
