"""Log lines: structured, one per event, to one stream, never with a secret.

``configure_logging`` is called once, by the composition root. Lines of libraries that use the standard
logging module pass through the same processors, so they are masked as ours are.
"""

import logging
import re
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

MASK = "***"
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
# Name, separator, value; a value ends where a query, a header line or a JSON string would go on.
_SECRET_TEXT = re.compile(
    r"""(?ix)
    ( x-amz-(?:signature|credential|security-token) | \bsignature | \bcredential
      | aws_?(?:secret_?access_?key|session_?token) | secret_?(?:access_?)?key | \btoken | \bpassword )
    ( ["']? \s* (?:=|:|%3D) \s* ["']? )
    [^&\s"',;)}\]]+
    """
)
_SCHEME_TEXT = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]+")
_AUTHORIZATION_TEXT = re.compile(r"""(?i)((?:proxy-)?authorization["']?\s*[:=]\s*["']?)[^"'\r\n]+""")


def mask_text(text: str) -> str:
    """``text`` with every signature, credential, token and password replaced by ``***``."""
    text = _AUTHORIZATION_TEXT.sub(rf"\g<1>{MASK}", text)
    text = _SECRET_TEXT.sub(rf"\g<1>\g<2>{MASK}", text)
    return _SCHEME_TEXT.sub(rf"\g<1> {MASK}", text)


def mask_secrets(_logger: WrappedLogger | None, _method: str, event: EventDict) -> EventDict:
    """A structlog processor: mask values by their name, and texts by what they hold, at any depth."""
    return {name: _masked(name, value) for name, value in event.items()}


def configure_logging(*, level: str = "info", json: bool = False, stream: TextIO | None = None) -> None:
    """Send log lines of ``level`` and above to ``stream`` (default stderr), as JSON or for people."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    # Tracebacks are plain text by the time they are rendered, because secrets in them must be masked.
    console = structlog.dev.ConsoleRenderer(
        colors=(stream or sys.stderr).isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    renderer: Processor = structlog.processors.JSONRenderer() if json else console
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, mask_secrets, renderer],
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
