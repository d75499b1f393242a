"""Log lines: structured, one line for each event, to one stream. No line holds a secret, and no client can
forge a line.

The composition root calls ``configure_logging`` at the start, and again when the level or the format changes.
Lines of libraries that use the standard logging module pass through the same processors, so secrets in them
are masked too. Text from clients and origins can neither begin a line nor move a terminal's cursor. The JSON
format escapes control characters by itself; for the console format, ``escape_controls`` does so.
"""

import logging
import re
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from shadeproxy.core.tracing import REQUEST_ID

MASK = "***"
ACCESS_LOG = "shadeproxy.access"
"""Name of the logger of the access log."""

_SECRET_NAMES = frozenset(
    {
        "authorization",
        "proxy-authorization",
        "cookie",
        "set-cookie",
        "x-amz-signature",
        "x-amz-credential",
        "x-amz-security-token",
        "signature",
        "awssecretkey",
        "token",
        "access_token",
        "session_token",
        "secret",
        "secret_key",
        "secret_access_key",
        "aws_secret_access_key",
        "aws_session_token",
        "password",
    }
)
# Matches the name of a secret, a separator and the secret's value in a text. The value ends where a query, a
# header line or a JSON string would continue. The words in the middle are no value: with them the proxy's own
# errors go on after the name of a setting or of a file, as in "control.token: cannot read the file".
_SECRET_TEXT = re.compile(
    r"""(?ix)
    ( x-amz-(?:signature|credential|security-token) | \bsignature | \bcredential
      | aws_?(?:secret_?access_?key|session_?token) | secret_?(?:access_?)?key | \btoken | \bpassword )
    ( ["']? \s* (?:=|:|%3D) \s* ["']? )
    (?! (?: a\ secret\ does\ not | cannot\ read\ the | the\ file | the\ environment\ variable | unknown\ key
      | control\.token(?=:\ ) | token\ has\ a\ value | write\ it\ as\ --set | (?:write\ ")?env:NAME(?=")
      | use\ cluster\.engine_password | write\ text | no\ such\ file | permission\ denied | is\ a\ directory
      | not\ utf-8\ text ) \b )
    [^&\s"',;)}\]]+
    """
)
# Matches control characters of ASCII and Latin-1, line ends and reordering marks of Unicode, and lone
# surrogates.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SCHEME_TEXT = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]+")
_AUTHORIZATION_TEXT = re.compile(r"""(?i)((?:proxy-)?authorization["']?\s*[:=]\s*["']?)[^"'\r\n]+""")


def mask_text(text: str) -> str:
    """Return ``text`` with every signature, credential, token and password replaced by ``***``."""
    text = _AUTHORIZATION_TEXT.sub(rf"\g<1>{MASK}", text)
    text = _SECRET_TEXT.sub(rf"\g<1>\g<2>{MASK}", text)
    return _SCHEME_TEXT.sub(rf"\g<1> {MASK}", text)


def mask_secrets(_logger: WrappedLogger | None, _method: str, event: EventDict) -> EventDict:
    """Mask secrets at any depth of ``event``, a structlog event: values by the names of their keys, and texts
    by their content.
    """
    return {name: _masked(name, value) for name, value in event.items()}


def add_request_id(_logger: WrappedLogger | None, _method: str, event: EventDict) -> EventDict:
    """Add the id of the client request for which ``event`` is logged, if there is such a request. A structlog
    processor.
    """
    if request_id := REQUEST_ID.get():
        event.setdefault("request_id", request_id)
    return event


def escape_controls(_logger: WrappedLogger | None, _method: str, event: EventDict) -> EventDict:
    """Escape control characters in the values of ``event``, so that each value is on one line. A structlog
    processor.

    A traceback keeps its line ends. All its lines but the first are indented, so that none looks like a log
    line.
    """
    traceback = event.pop("exception", None)
    escaped: EventDict = {name: _printable(value) for name, value in event.items()}
    if traceback is not None:
        escaped["exception"] = "\n    ".join(map(_printable, str(traceback).split("\n")))
    return escaped


def add_worker(worker: int) -> Processor:
    """Return a structlog processor that adds the process id ``worker`` to each line.

    Lines of the access log get no such id, so that they look the same from every process.
    """

    def add(logger: WrappedLogger | None, _method: str, event: EventDict) -> EventDict:
        if getattr(logger, "name", "") != ACCESS_LOG:
            event["worker"] = worker
        return event

    return add


def configure_logging(
    *, level: str = "info", json: bool = False, stream: TextIO | None = None, worker: int = 0
) -> None:
    """Send log lines of ``level`` and above to ``stream`` (default stderr), as JSON or for people.

    ``worker``: the process id of a worker, which is added to each line (``add_worker``); 0 for none.
    """
    shared: list[Processor] = [
        *([add_worker(worker)] if worker else []),
        add_request_id,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    # Tracebacks are written as plain text, because secrets in them must be masked.
    console = structlog.dev.ConsoleRenderer(
        colors=(stream or sys.stderr).isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    form: list[Processor] = [structlog.processors.JSONRenderer()] if json else [escape_controls, console]
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, mask_secrets, *form],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isprintable() else _CONTROLS.sub(_escape, value)
    # Values of other types are shown by their repr, which escapes control characters.
    return value


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode()


def _masked(name: str, value: Any) -> Any:
    if name.lower().replace("x_amz", "x-amz") in _SECRET_NAMES:
        return MASK
    if isinstance(value, str):
        return mask_text(value)
    if isinstance(value, Mapping):
        return {key: _masked(str(key), inner) for key, inner in value.items()}
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        return (value[0], _masked(value[0], value[1]))
    if isinstance(value, list | tuple | set | frozenset):
        return [_masked("", inner) for inner in value]
    return value
