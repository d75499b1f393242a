"""Errors in the form of S3: a table that maps each class of core/errors.py to an HTTP status and an S3 code,
and functions that make the XML bodies.

A test fails if a class is missing in the table, so the answer to each error is defined. Source: "Error
responses" in the S3 API reference.
"""

import base64
import re
import secrets
from typing import NamedTuple
from xml.sax.saxutils import escape

from shadeproxy.core import errors
from shadeproxy.core.conditions import FAILED_TEXT
from shadeproxy.core.types import Headers

HOST_ID = base64.b64encode(secrets.token_bytes(24)).decode()
"""Random name of this process, in error answers and in x-amz-id-2."""


class Row(NamedTuple):
    """The HTTP status and S3 code of an error class. ``retry_after_s`` is set if the client should retry."""

    status: int
    code: str
    retry_after_s: int | None = None


TABLE: dict[type[errors.ShadeProxyError], Row] = {
    errors.ShadeProxyError: Row(500, "InternalError"),
    errors.RequestError: Row(400, "InvalidRequest"),
    errors.InvalidRequest: Row(400, "InvalidRequest"),
    errors.MalformedBody: Row(400, "MalformedXML"),
    errors.BodyTooLarge: Row(400, "EntityTooLarge"),
    errors.BodyMismatch: Row(400, "BadDigest"),
    errors.PayloadMismatch: Row(400, "XAmzContentSHA256Mismatch"),
    errors.BodyIncomplete: Row(400, "IncompleteBody"),
    errors.ClientTooSlow: Row(400, "RequestTimeout"),
    errors.MissingLength: Row(411, "MissingContentLength"),
    errors.OriginIsProxy: Row(400, "OriginIsProxy"),
    errors.Misdirected: Row(421, "MisdirectedRequest"),
    errors.NotSupported: Row(501, "NotImplemented"),
    errors.UnknownName: Row(404, "NoSuchKey"),
    errors.Conflict: Row(409, "OperationAborted"),
    errors.TooManyHints: Row(409, "OperationAborted"),
    errors.NotFeasible: Row(409, "OperationAborted"),
    errors.HintMemoryFull: Row(503, "ServiceUnavailable", 1),
    errors.RangeNotSatisfiable: Row(416, "InvalidRange"),
    errors.AuthError: Row(403, "AccessDenied"),
    errors.AccessDenied: Row(403, "AccessDenied"),
    errors.NotOfCluster: Row(403, "AccessDenied"),
    errors.UnknownAccessKey: Row(403, "InvalidAccessKeyId"),
    errors.SignatureMismatch: Row(403, "SignatureDoesNotMatch"),
    errors.ClockSkew: Row(403, "RequestTimeTooSkewed"),
    errors.RequestExpired: Row(403, "AccessDenied"),
    errors.MalformedAuth: Row(400, "AuthorizationHeaderMalformed"),
    errors.MalformedQueryAuth: Row(400, "AuthorizationQueryParametersError"),
    errors.OriginError: Row(503, "ServiceUnavailable", 1),
    # This row is not used, because each OriginAnswer has its own status and code.
    errors.OriginAnswer: Row(500, "InternalError"),
    errors.NoCredentials: Row(403, "AccessDenied"),
    errors.NotS3: Row(503, "ServiceUnavailable", 1),
    errors.OriginUnavailable: Row(503, "ServiceUnavailable", 1),
    errors.CredentialsUnresolved: Row(503, "ServiceUnavailable", 1),
    errors.WriterUnavailable: Row(503, "ServiceUnavailable", 1),
    errors.OutcomeUnknown: Row(500, "InternalError"),
    errors.WriteUnconfirmed: Row(500, "InternalError"),
    errors.OriginThrottled: Row(503, "SlowDown", 1),
    errors.OtherRegion: Row(503, "ServiceUnavailable", 1),
    errors.DeadlineExceeded: Row(503, "SlowDown", 1),
    errors.BodyCutShort: Row(503, "ServiceUnavailable", 1),
    errors.BodyDamaged: Row(503, "ServiceUnavailable", 1),
    errors.Unidentified: Row(503, "ServiceUnavailable", 1),
    errors.CachedElsewhere: Row(503, "ServiceUnavailable", 1),
    errors.ObjectChanged: Row(503, "ServiceUnavailable", 1),
    errors.TierError: Row(500, "InternalError"),
    errors.TierFull: Row(500, "InternalError"),
    errors.WriteRefused: Row(503, "ServiceUnavailable", 1),
    errors.NotOwnerNow: Row(503, "SlowDown", 1),
    errors.PeerError: Row(500, "InternalError"),
    errors.LostBlob: Row(500, "InternalError"),
    errors.ClusterUnavailable: Row(503, "ServiceUnavailable", 1),
    errors.StateError: Row(500, "InternalError"),
    errors.Overloaded: Row(503, "SlowDown", 1),
    errors.ShuttingDown: Row(503, "ServiceUnavailable", 1),
    errors.ConfigError: Row(500, "InternalError"),
    errors.NoListener: Row(500, "InternalError"),
}
# XML 1.0 cannot hold these characters, even escaped (section 2.2). Decoded JSON may have lone surrogates.
_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BY_STATUS = {
    403: ("AccessDenied", "Access Denied"),
    404: ("NoSuchKey", "The specified key does not exist."),
    412: ("PreconditionFailed", FAILED_TEXT),
}
"""S3's code and message for an error of the origin without a body. Clients tell errors apart by
their codes.
"""

_INTERNAL = "We encountered an internal error. Please try again."


class ErrorAnswer(NamedTuple):
    """A complete error answer. ``headers`` lack the request ids. ``body`` is XML; it is not sent if the
    request is a HEAD.
    """

    status: int
    code: str
    headers: Headers
    body: bytes


def answer_error(error: errors.ShadeProxyError, *, resource: str, request_id: str) -> ErrorAnswer:
    """Return the client's answer for ``error``."""
    row = TABLE[type(error)]
    headers: list[tuple[str, str]] = []
    details: list[tuple[str, str]] = []
    message = str(error)
    match error:
        case errors.OriginAnswer():
            # S3 writes the code into the body. An answer to a HEAD has no body, so derive the code from the
            # status.
            code, text = (error.code, "") if error.code else _BY_STATUS.get(error.status, ("", ""))
            row = Row(error.status, code)
            message = error.message or text
            headers += [
                field
                for field in error.headers
                if field[0].lower() not in {"content-length", "content-type", "transfer-encoding"}
            ]
        case errors.RangeNotSatisfiable():
            headers.append(("Content-Range", f"bytes */{error.size_bytes}"))
            details.append(("ActualObjectSize", str(error.size_bytes)))
        case errors.Overloaded():
            row = row._replace(retry_after_s=error.retry_after_s)
        case errors.RequestError() if error.hint:
            message = f"{message}: {error.hint}"
        case _ if row.code == "InternalError" and not isinstance(error, errors.OutcomeUnknown):
            # Internal details belong in the log. A client must not see them.
            message = _INTERNAL
    if row.retry_after_s is not None:
        headers.append(("Retry-After", str(row.retry_after_s)))
    return ErrorAnswer(
        row.status,
        row.code,
        tuple(headers),
        error_xml(row.code, message, resource=resource, request_id=request_id, details=details),
    )


def internal_error(*, resource: str, request_id: str) -> ErrorAnswer:
    """Return the answer for an unexpected exception."""
    body = error_xml("InternalError", _INTERNAL, resource=resource, request_id=request_id)
    return ErrorAnswer(500, "InternalError", (), body)


def error_xml(
    code: str,
    message: str,
    *,
    resource: str,
    request_id: str,
    details: list[tuple[str, str]] | None = None,
) -> bytes:
    """Return the body of an S3 error answer."""
    elements = [
        ("Code", code),
        ("Message", message),
        *(details or ()),
        ("Resource", resource),
        ("RequestId", request_id),
        ("HostId", HOST_ID),
    ]
    inner = "".join(f"<{name}>{_text(value)}</{name}>" for name, value in elements)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{inner}</Error>'.encode()


def _text(value: str) -> str:
    return escape(_NO_XML.sub("\ufffd", value))
