"""Errors of the control API: ``{"error": {"code", "message", "hint"}}``.

Only the table ``STATUS`` maps error classes to answers, and no other module of this package chooses a status.
A test fails if a class of core/errors.py is missing in the table.
"""

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from shadeproxy.core import errors as core

_log = structlog.get_logger("shadeproxy.control")


class UnsupportedMediaType(core.InvalidRequest):
    """Raised if the call does not accept the Content-Type of the body."""


class ReadsForbidden(core.AccessDenied):
    """Raised because reads through the control listener cannot be authorised: clients must sign their reads,
    and the listener has no token by which it could tell callers apart.
    """


STATUS: dict[type[core.ShadeProxyError], tuple[int, str]] = {
    core.ShadeProxyError: (500, "internal"),
    core.RequestError: (400, "bad_request"),
    core.InvalidRequest: (400, "invalid_request"),
    UnsupportedMediaType: (415, "unsupported_media_type"),
    core.MalformedBody: (400, "malformed_body"),
    core.BodyTooLarge: (413, "body_too_large"),
    core.BodyMismatch: (400, "body_mismatch"),
    core.PayloadMismatch: (400, "body_mismatch"),
    core.BodyIncomplete: (400, "body_mismatch"),
    core.ClientTooSlow: (408, "too_slow"),
    core.MissingLength: (411, "missing_length"),
    core.OriginIsProxy: (400, "invalid_request"),
    core.Misdirected: (421, "misdirected"),
    core.NotSupported: (501, "not_supported"),
    core.UnknownName: (404, "unknown_name"),
    core.Conflict: (409, "conflict"),
    core.TooManyHints: (409, "conflict"),
    core.NotFeasible: (422, "not_feasible"),
    core.HintMemoryFull: (507, "hint_memory_full"),
    core.RangeNotSatisfiable: (416, "range_not_satisfiable"),
    core.AuthError: (401, "unauthorized"),
    core.AccessDenied: (403, "access_denied"),
    ReadsForbidden: (403, "forbidden"),
    core.NotOfCluster: (403, "access_denied"),
    core.UnknownAccessKey: (403, "access_denied"),
    core.SignatureMismatch: (403, "access_denied"),
    core.ClockSkew: (403, "access_denied"),
    core.RequestExpired: (403, "access_denied"),
    core.MalformedAuth: (401, "malformed_auth"),
    core.MalformedQueryAuth: (401, "malformed_auth"),
    core.OriginError: (502, "origin_failed"),
    core.OriginAnswer: (502, "origin_refused"),
    core.NoCredentials: (502, "no_credentials"),
    core.NotS3: (503, "origin_unavailable"),
    core.OriginUnavailable: (503, "origin_unavailable"),
    core.CredentialsUnresolved: (503, "origin_unavailable"),
    core.WriterUnavailable: (503, "origin_unavailable"),
    core.OutcomeUnknown: (502, "origin_failed"),
    core.WriteUnconfirmed: (502, "origin_failed"),
    core.OriginThrottled: (503, "origin_throttled"),
    core.OtherRegion: (503, "origin_unavailable"),
    core.DeadlineExceeded: (503, "origin_slow"),
    core.BodyCutShort: (502, "origin_failed"),
    core.BodyDamaged: (502, "origin_failed"),
    core.Unidentified: (503, "origin_unavailable"),
    core.CachedElsewhere: (503, "origin_unavailable"),
    core.ObjectChanged: (409, "object_changed"),
    core.TierError: (500, "internal"),
    core.TierFull: (500, "internal"),
    core.WriteRefused: (503, "write_refused"),
    core.NotOwnerNow: (503, "write_refused"),
    core.PeerError: (500, "internal"),
    core.LostBlob: (500, "internal"),
    core.ClusterUnavailable: (503, "cluster_unavailable"),
    core.StateError: (500, "state_failed"),
    core.Overloaded: (503, "overloaded"),
    core.ShuttingDown: (503, "shutting_down"),
    core.ConfigError: (500, "internal"),
    core.NoListener: (500, "internal"),
}


class ErrorBody(msgspec.Struct):
    """An error. ``code``: for programs; it does not change between releases. ``message``: what happened.
    ``hint``: what the caller should change; may be "".
    """

    code: str
    message: str
    hint: str = ""


class ErrorAnswer(msgspec.Struct):
    error: ErrorBody


def answer_error(error: core.ShadeProxyError) -> web.Response:
    """Return the answer for ``error``."""
    status, code = STATUS[type(error)]
    hint = error.hint if isinstance(error, core.RequestError) else ""
    response = _answer(status, code, str(error), hint)
    if status == 401:
        response.headers["WWW-Authenticate"] = 'Basic realm="shadeproxy", Bearer realm="shadeproxy"'
    if isinstance(error, core.Overloaded):
        response.headers["Retry-After"] = str(error.retry_after_s)
    elif status == 503:
        response.headers["Retry-After"] = "1"
    return response


@web.middleware
async def translate_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Call ``handler``, and turn its exceptions into error answers."""
    try:
        return await handler(request)
    except core.ShadeProxyError as error:
        return answer_error(error)
    except web.RequestPayloadError as error:
        return _answer(400, "malformed_body", f"the body could not be read: {error}", "check its encoding")
    except web.HTTPException as error:
        response = _answer(
            error.status,
            error.reason.lower().replace(" ", "_"),
            f"{request.method} {request.path}: {error.reason}",
            "GET /openapi.json lists every call",
        )
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
    except ConnectionError:
        # Failed connections to the origin raise errors of other classes. So here the caller's own connection
        # has failed, and no answer can reach the caller.
        return _answer(499, "gone", "the caller hung up", "")
    except Exception:  # noqa: BLE001 the last resort: the log gets the traceback, the caller does not
        _log.exception("control call failed", method=request.method, path=request.path)
        return _answer(500, "internal", "the proxy failed; its log has the details", "")


def _answer(status: int, code: str, message: str, hint: str) -> web.Response:
    body = ErrorAnswer(ErrorBody(code, message, hint))
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")
