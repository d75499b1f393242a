"""The one form of a request in which rights are decided, the cache is asked and the origin is sent it.

Law: what is sent is serialised from the decoded values that were checked, never from the bytes that came. A
presigned URL is taken apart into what it stands for; a copy source is written in one form.
"""

from collections.abc import Mapping
from types import MappingProxyType

from shadeproxy.api.s3.copysource import parse_copy_source
from shadeproxy.api.s3.fields import check_distinct, check_known, check_value, field_name
from shadeproxy.api.s3.operations import COPIES, PREFLIGHT, Operation
from shadeproxy.api.s3.parameters import known_parameters
from shadeproxy.api.s3.request import S3Request
from shadeproxy.core.errors import InvalidRequest

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
    """Return ``request`` as it would be without its presigned URL; itself where there is none.

    Parameters of the signature leave the query, and fields that the signer moved into the query
    (``x-amz-*``; in version 2 also Content-Type and Content-MD5) become fields again: the origin gets a
    signature in a header, beside which S3 does not look for them in the query. Raises InvalidRequest.
    """
    if not request.query or not request.query.keys() & {"AWSAccessKeyId", "X-Amz-Signature"}:
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
    """Return what of ``request`` is of ``operation``, in its one form. Raises RequestError."""
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
    """Return the question alone: it is unsigned, so nothing else may leave with rights of a client."""
    if request.fields.get("content-length", "0") != "0" or "transfer-encoding" in request.fields:
        raise InvalidRequest("A preflight (OPTIONS) has no body")
    asked = {
        name: value
        for name, value in request.fields.items()
        if name in {"host", "origin"} or name.startswith("access-control-request-")
    }
    return request._replace(query=MappingProxyType({}), fields=MappingProxyType(asked))


def _move(fields: dict[str, str], name: str, raw_value: str) -> None:
    """Make a field of a parameter. A field that is there too must say the same."""
    lowered, value = field_name(name), raw_value.strip(" \t")
    check_value(name, value)
    if fields.setdefault(lowered, value) != value:
        raise InvalidRequest(f"{name} was sent as a query parameter and as a header, with two values")


def _with_source(fields: Mapping[str, str], operation: Operation) -> dict[str, str]:
    if operation.name not in COPIES:
        raise InvalidRequest(f"{operation.name} has no x-amz-copy-source")
    return {**fields, _COPY_SOURCE: str(parse_copy_source(fields[_COPY_SOURCE]))}
