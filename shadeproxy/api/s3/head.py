"""Parses the head of a request, strictly.

Laws: an accepted head means the same to every HTTP/1.1 parser (RFC 9112). It is visible ASCII with one
well-formed field a line, and has no folded line and no upgrade. For any other head ``HeadReader`` returns
None, and aiohttp parses the head.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from shadeproxy.core.types import Headers

MAX_LINE_BYTES = 32 * 1024
"""Longest request line. A key of 1,024 bytes in UTF-8 takes 3,072 bytes when it is escaped, and a presigned
URL also has a session token.
"""

MAX_FIELD_BYTES = 16 * 1024
"""Longest header field. S3 accepts 8 KiB of header fields, 2 KiB of which are user metadata. The longest
field is a session token, and session tokens become longer from year to year.
"""

MOST_FIELDS = 2048
"""Most fields of a request. S3 accepts 2 KiB of user metadata, which may have some 700 names."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Fields that concern the coding of a body, its trailers, or another protocol.
_NOT_HERE = frozenset({"te", "trailer", "upgrade"})
_ONCE = frozenset({"content-length", "expect", "host", "transfer-encoding"})
"""Fields that may come once. All but Host concern the body that follows."""
_BODILESS = (b"GET ", b"HEAD ")
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT"})
_OPTIONS = frozenset({"close", "keep-alive"})
_DIGITS = re.compile(r"[0-9]{1,18}")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,18}) *(?=\r\n)", re.IGNORECASE)
_FRAMING = re.compile(rb"[\r\n][ \t]*(?:content-length|transfer-encoding|upgrade)|[\r\n][ \t]", re.IGNORECASE)
_MOST_PLAIN_FIELDS = 100
_MOST_NAMES = 512


class _NotPlain(Exception):
    """Raised if a head is not of the strict form, so that aiohttp must parse it."""


class Head(NamedTuple):
    """The parts of a head. ``target`` and the names of ``fields`` are as sent. The values of ``fields`` have
    no white space around them.

    ``body_bytes``: the length of the body; None if the body is chunked. ``awaits_go``: the client sends the
    body only after an interim answer (``Expect: 100-continue``), or after some time.
    """

    method: str
    target: str
    fields: Headers
    keep_alive: bool
    body_bytes: int | None = 0
    awaits_go: bool = False


class HeadReader:
    """Parses heads. It remembers which field names are valid, because clients always send the same
    few names.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def read(self, raw: bytes) -> Head | None:
        """Parse ``raw``, the head of a GET or HEAD without a body, including its empty line. Return None if
        it is not of the strict form.
        """
        if not raw.startswith(_BODILESS):
            return None
        head = self.read_any(raw)
        return None if head is None or head.body_bytes != 0 or head.awaits_go else head

    def read_any(self, raw: bytes) -> Head | None:
        """Parse ``raw`` as ``read`` does. The request may have any method of S3, and a body."""
        try:
            line, *rest = raw[:-4].decode("ascii").split("\r\n")
            # Tabs, NULs, and a CR or LF without the other are not printable.
            if not line.isprintable() or not "".join(rest).isprintable():
                return None
            method, target = _request_line(line)
            once: dict[str, str] = {}
            options: list[str] = []
            fields = self._fields(rest, once, options)
            head = Head(method, target, fields, _keep_alive(options), *_body(once))
        except (UnicodeDecodeError, _NotPlain):
            return None
        # Parsers differ in whether a body may follow a HEAD.
        return None if method == "HEAD" and head.body_bytes != 0 else head

    def _fields(self, lines: list[str], once: dict[str, str], options: list[str]) -> Headers:
        """Return the fields in ``lines``. Set ``once`` to those that may come once, with lower-case names.
        Append to ``options`` the values of Connection.
        """
        if len(lines) > _MOST_PLAIN_FIELDS:
            raise _NotPlain
        fields: list[tuple[str, str]] = []
        for line in lines:
            name, colon, value = line.partition(":")
            lowered = self._names.get(name) or self._prove(name)
            value = value.strip(" ")
            if not colon or lowered in _NOT_HERE or len(line) > MAX_FIELD_BYTES:
                raise _NotPlain
            if lowered in _ONCE:
                if lowered in once:
                    raise _NotPlain
                once[lowered] = value
            elif lowered == "connection":
                options.append(value)
            fields.append((name, value))
        if "host" not in once:
            raise _NotPlain
        return tuple(fields)

    def _prove(self, name: str) -> str:
        if not _TOKEN.fullmatch(name):
            raise _NotPlain
        if len(self._names) >= _MOST_NAMES:
            self._names.clear()
        self._names[name] = lowered = name.lower()
        return lowered


def _request_line(line: str) -> tuple[str, str]:
    method, _, rest = line.partition(" ")
    target, _, version = rest.partition(" ")
    if method not in _METHODS or version != "HTTP/1.1" or not target.startswith("/"):
        raise _NotPlain
    if len(line) > MAX_LINE_BYTES:
        raise _NotPlain
    return method, target


def _keep_alive(options: list[str]) -> bool:
    """Return True unless ``options``, values of Connection, end the connection."""
    kinds = set(map(str.lower, options))
    if not kinds <= _OPTIONS:
        raise _NotPlain
    return "close" not in kinds


def _body(once: Mapping[str, str]) -> tuple[int | None, bool]:
    """Return ``Head.body_bytes`` and ``Head.awaits_go``, from the fields that may come once."""
    length, coding, expected = once.get("content-length"), once.get("transfer-encoding"), once.get("expect")
    if expected is not None and expected.lower() != "100-continue":
        raise _NotPlain
    if coding is not None:
        if length is not None or coding.lower() != "chunked":
            raise _NotPlain
        return None, expected is not None
    if length is not None and not _DIGITS.fullmatch(length):
        raise _NotPlain
    return int(length or 0), expected is not None


def body_bytes(raw: bytes) -> int | None:
    """Return the length of the body after the head ``raw``; None if only aiohttp can find out."""
    framing = len(_FRAMING.findall(raw))
    if not framing:
        return 0
    lengths = _LENGTH.findall(raw)
    return int(lengths[0]) if framing == len(lengths) == 1 else None
