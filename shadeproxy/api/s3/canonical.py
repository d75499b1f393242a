"""The canonical form of a request, which is used to check rights, to look in the cache and to ask the origin.

Law: the request to the origin is made from the decoded values that were checked, never from the received
bytes. A presigned request becomes the same request without the signature in its URL. A copy source is always
spelt in the same way, except that a raw ``+`` and ``%2B`` stay different. Source: CopyObject and
UploadPartCopy in the S3 API reference.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import quote

from shadeproxy.api.s3.fields import check_distinct, check_known, check_value, field_name
from shadeproxy.api.s3.operations import COPIES, PREFLIGHT, Operation
from shadeproxy.api.s3.parameters import known_parameters
from shadeproxy.api.s3.request import BAD_ESCAPE, BUCKET_NAME, UNRESERVED, S3Request, decode_key
from shadeproxy.core.errors import InvalidRequest
from shadeproxy.core.sigv4 import path_of_key

PRESIGNED = frozenset({"AWSAccessKeyId", "X-Amz-Signature"})
"""A presigned URL has one of these parameters: the first in Signature Version 2, the other in Version 4."""

_SIGNATURE_PARAMETERS = frozenset(
    {
        "awsaccesskeyid",
        "expires",
        "signature",
        "x-amz-algorithm",
        "x-amz-content-sha256",
        "x-amz-credential",
        "x-amz-date",
        "x-amz-expires",
        "x-amz-security-token",
        "x-amz-signature",
        "x-amz-signedheaders",
    }
)
_COPY_SOURCE = "x-amz-copy-source"


def settle_presigned(request: S3Request) -> S3Request:
    """Return a presigned request as if it had been signed in a header. Return any other request unchanged.

    Signature parameters are removed from the query. Fields that the signer moved into the query (``x-amz-*``;
    in version 2 also Content-Type and Content-MD5) become header fields again: S3 would ignore them in the
    query, because the proxy signs its request to the origin in a header. Raises InvalidRequest.
    """
    if PRESIGNED.isdisjoint(request.query):
        return request
    movable = {"content-md5", "content-type"} if "AWSAccessKeyId" in request.query else set()
    query, fields = {}, dict(request.fields)
    for name, value in request.query.items():
        lowered = name.lower()
        if lowered in _SIGNATURE_PARAMETERS:
            continue
        if lowered.startswith("x-amz-") or lowered in movable:
            _move(fields, name, value)
        else:
            query[name] = value
    check_distinct(fields)
    return request._replace(query=MappingProxyType(query), fields=MappingProxyType(fields))


def canonical(request: S3Request, operation: Operation) -> S3Request:
    """Return the canonical form of ``request``: without query parameters that ``operation`` does not know.
    Raises RequestError.
    """
    if operation is PREFLIGHT:
        return _preflight(request)
    if not operation.cached:
        check_known(request.fields)
    if request.query:
        known = known_parameters(operation, request.query)
        if known is not request.query:
            request = request._replace(query=MappingProxyType(dict(known)))
    if _COPY_SOURCE in request.fields:
        request = request._replace(fields=MappingProxyType(_with_source(request.fields, operation)))
    return request


def _preflight(request: S3Request) -> S3Request:
    """Return the request with only the fields that a preflight needs. A preflight is unsigned, so any other
    field could act with rights that its sender does not have. Raises InvalidRequest if there is a body.
    """
    if request.fields.get("content-length", "0") != "0" or "transfer-encoding" in request.fields:
        raise InvalidRequest("A preflight (OPTIONS) has no body")
    asked = {
        name: value
        for name, value in request.fields.items()
        if name in {"host", "origin"} or name.startswith("access-control-request-")
    }
    return request._replace(query=MappingProxyType({}), fields=MappingProxyType(asked))


def _move(fields: dict[str, str], name: str, raw_value: str) -> None:
    """Turn a query parameter into a header field. Raises InvalidRequest if the request has the field already,
    with another value.
    """
    lowered, value = field_name(name), raw_value.strip(" \t")
    check_value(name, value)
    if fields.setdefault(lowered, value) != value:
        raise InvalidRequest(f"{name} was sent as a query parameter and as a header, with two values")


def _with_source(fields: Mapping[str, str], operation: Operation) -> dict[str, str]:
    if operation.name not in COPIES:
        raise InvalidRequest(f"{operation.name} has no x-amz-copy-source")
    return {**fields, _COPY_SOURCE: parse_copy_source(fields[_COPY_SOURCE]).spelling}


# Characters that a version id may not have: another parser may take one of them for the end of the id, or for
# the beginning of another parameter.
_ENDS = frozenset("&=;+#?")


class CopySource(NamedTuple):
    """The object to copy. ``keys``: its key, or both keys that servers read if the field has a raw ``+``: AWS
    takes it for a space, and others take it as it is. ``spelling``: the field for the origin, which alone
    knows how it reads a ``+``.
    """

    bucket: str
    keys: tuple[str, ...]
    spelling: str


def parse_copy_source(field: str) -> CopySource:
    """Return the object that ``field`` names. Raises InvalidRequest for an ambiguous field."""
    if BAD_ESCAPE.search(field):
        raise InvalidRequest(
            "x-amz-copy-source holds a % that two hexadecimal digits do not follow",
            hint="write a literal % as %25",
        )
    path, question, query = field.partition("?")
    bucket, _, key = decode_key(path).removeprefix("/").partition("/")
    if BUCKET_NAME.fullmatch(bucket) is None or not key:
        raise InvalidRequest("x-amz-copy-source must be of the form bucket/key")
    keys: tuple[str, ...] = (key,)
    pieces = [decode_key(piece) for piece in path.split("+")]
    if len(pieces) > 1:
        keys = key, " ".join(pieces).removeprefix("/").partition("/")[2]
    spelling = "+".join(map(path_of_key, pieces)).removeprefix("/")
    if not question:
        return CopySource(bucket, keys, spelling)
    name, _, raw_version = query.partition("=")
    if name != "versionId" or not raw_version or set(raw_version) & _ENDS:
        raise InvalidRequest("x-amz-copy-source may end in ?versionId=ID, and in nothing else after a ?")
    version = quote(decode_key(raw_version), safe=UNRESERVED)
    return CopySource(bucket, keys, f"{spelling}?versionId={version}")
