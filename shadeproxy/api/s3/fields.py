"""Header fields that a request may have, and those that go to the origin.

Laws: a server that turns field names into CGI variables (Ceph RGW) treats "_" and "-" alike, so a name that
such a server could read as another name is refused. A field that S3 does not define is ignored and not
forwarded. An unknown AWS field (``x-amz-*``) could change the meaning of a request after its rights were
checked. So a request with such a field is refused; only GetObject and HeadObject ignore the field.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from shadeproxy.core.errors import InvalidRequest, NotSupported
from shadeproxy.core.tracing import INSTANCE_FIELD, JOB_FIELD, NONCE_FIELD, ORIGIN_FIELD, PEER_FIELD

META = "x-amz-meta-"
_NAME = re.compile(r"[a-z0-9-]+")
_META_NAME = re.compile(r"x-amz-meta-[!#$%&'*+.^_`|~0-9a-z-]*")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")

AMZ_FIELDS = frozenset(
    {
        "x-amz-acl",
        "x-amz-bucket-namespace",
        "x-amz-bucket-object-lock-enabled",
        "x-amz-bucket-object-lock-token",
        "x-amz-bypass-governance-retention",
        "x-amz-checksum-algorithm",
        "x-amz-checksum-crc32",
        "x-amz-checksum-crc32c",
        "x-amz-checksum-crc64nvme",
        "x-amz-checksum-md5",
        "x-amz-checksum-mode",
        "x-amz-checksum-sha1",
        "x-amz-checksum-sha256",
        "x-amz-checksum-sha512",
        "x-amz-checksum-type",
        "x-amz-checksum-xxhash128",
        "x-amz-checksum-xxhash3",
        "x-amz-checksum-xxhash64",
        "x-amz-confirm-remove-self-bucket-access",
        "x-amz-copy-source",
        "x-amz-copy-source-if-match",
        "x-amz-copy-source-if-modified-since",
        "x-amz-copy-source-if-none-match",
        "x-amz-copy-source-if-unmodified-since",
        "x-amz-copy-source-range",
        "x-amz-copy-source-server-side-encryption-customer-algorithm",
        "x-amz-copy-source-server-side-encryption-customer-key",
        "x-amz-copy-source-server-side-encryption-customer-key-md5",
        "x-amz-expected-bucket-owner",
        "x-amz-grant-full-control",
        "x-amz-grant-read",
        "x-amz-grant-read-acp",
        "x-amz-grant-write",
        "x-amz-grant-write-acp",
        "x-amz-if-match-initiated-time",
        "x-amz-if-match-last-modified-time",
        "x-amz-if-match-size",
        "x-amz-max-parts",
        "x-amz-metadata-directive",
        "x-amz-mfa",
        "x-amz-mp-object-size",
        "x-amz-object-annotation-directive",
        "x-amz-object-attributes",
        "x-amz-object-lock-event-hold",
        "x-amz-object-lock-event-hold-duration-days",
        "x-amz-object-lock-event-hold-duration-years",
        "x-amz-object-lock-legal-hold",
        "x-amz-object-lock-mode",
        "x-amz-object-lock-retain-until-date",
        "x-amz-object-ownership",
        "x-amz-optional-object-attributes",
        "x-amz-part-number-marker",
        "x-amz-request-payer",
        "x-amz-sdk-checksum-algorithm",
        "x-amz-server-side-encryption",
        "x-amz-server-side-encryption-aws-kms-key-id",
        "x-amz-server-side-encryption-bucket-key-enabled",
        "x-amz-server-side-encryption-context",
        "x-amz-server-side-encryption-customer-algorithm",
        "x-amz-server-side-encryption-customer-key",
        "x-amz-server-side-encryption-customer-key-md5",
        "x-amz-skip-destination-validation",
        "x-amz-source-expected-bucket-owner",
        "x-amz-storage-class",
        "x-amz-tagging",
        "x-amz-tagging-directive",
        "x-amz-transition-default-minimum-object-size",
        "x-amz-user-agent",
        "x-amz-website-redirect-location",
        "x-amz-write-offset-bytes",
    }
)
FORWARDED = AMZ_FIELDS | {
    "accept",
    "accept-encoding",
    "accept-language",
    "access-control-request-headers",
    "access-control-request-method",
    "amz-sdk-invocation-id",
    "amz-sdk-request",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-md5",
    "content-type",
    "expires",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "origin",
    "pragma",
    "range",
    "referer",
    "traceparent",
    "tracestate",
    "user-agent",
    "x-amzn-trace-id",
}
"""Fields that are forwarded to the origin. Those whose names begin with META are forwarded too."""

_READ_HERE = frozenset(
    {
        "authorization",
        "content-length",
        "date",
        "expect",
        "host",
        "x-amz-api-version",
        "x-amz-cf-id",
        "x-amz-content-sha256",
        "x-amz-date",
        "x-amz-decoded-content-length",
        "x-amz-security-token",
        "x-amz-trailer",
        INSTANCE_FIELD,
        JOB_FIELD,
        NONCE_FIELD,
        ORIGIN_FIELD,
        PEER_FIELD,
    }
)
_KNOWN = FORWARDED | _READ_HERE
# A request that repeats one of these fields is refused, as RFC 9112 asks: two parsers may read different
# values.
_ONCE = _READ_HERE - {"expect", "date"} | {
    "content-md5",
    "content-type",
    "range",
    "transfer-encoding",
    "x-amz-acl",
    "x-amz-copy-source",
    "x-amz-copy-source-range",
}


@lru_cache(maxsize=2048)
def field_name(name: str) -> str:
    """Return ``name`` in lower case. Raises InvalidRequest if a server could read it as another name."""
    lowered = name.lower()
    if _NAME.fullmatch(lowered) is None and _META_NAME.fullmatch(lowered) is None:
        raise InvalidRequest(
            f"The name of the header {name} cannot be used",
            hint=f"names are made of A-Z a-z 0-9 and -; only after {META} may there be other characters",
        )
    return lowered


def check_value(name: str, value: str) -> None:
    """Raise InvalidRequest unless ``value`` is a valid value of a header field."""
    if value.isascii() and value.isprintable():
        return
    if _SURROGATE.search(value):
        raise InvalidRequest(f"The header {name} is not valid UTF-8")
    if _CONTROL.search(value):
        raise InvalidRequest(f"The header {name} holds a control character")


def check_distinct(names: Iterable[str]) -> None:
    """Raise InvalidRequest when two of the lower-case ``names`` differ only in ``_`` and ``-``."""
    listed = list(names)
    if "_" not in "".join(listed):
        return
    seen: dict[str, str] = {}
    for name in listed:
        other = seen.setdefault(name.replace("_", "-"), name)
        if other != name:
            raise InvalidRequest(
                f"Some servers take the headers {other} and {name} for one",
                hint="choose names that differ in more than _ and -",
            )


def collect_fields(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return a dict of lower-case names and values. Values of a repeated name are joined. Raises
    InvalidRequest.
    """
    fields: dict[str, str] = {}
    for name, value in headers:
        check_value(name, value)
        lowered = field_name(name)
        if lowered in fields:
            if lowered in _ONCE:
                raise InvalidRequest(f"The header {name} was sent more than once")
            value = f"{fields[lowered]},{value}"  # noqa: PLW2901 - joined as RFC 9110 section 5.3 says
        fields[lowered] = value
    check_distinct(fields)
    if "connection" in fields:
        _check_connection(fields["connection"])
    return fields


def check_known(fields: Mapping[str, str]) -> None:
    """Raise NotSupported if one of ``fields``, whose names are in lower case, is an unknown AWS field."""
    for name in fields.keys() - _KNOWN:
        if name.startswith("x-amz-") and not name.startswith(META):
            raise NotSupported(f"The header {name} is none that this proxy implements", hint="leave it out")


def _check_connection(field: str) -> None:
    """Raise InvalidRequest if the Connection field names another field of the request that the proxy knows.
    Servers drop the fields that Connection names, so the origin could see another request than was checked.
    """
    for option in field.lower().split(","):
        name = option.strip()
        if name in _KNOWN or name.startswith("x-amz-"):
            raise InvalidRequest(
                f"Connection names {name}, which is not a field of one connection", hint="leave it out there"
            )
