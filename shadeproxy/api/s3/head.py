"""Parses the head of a request.

Laws: an accepted head means the same to every HTTP/1.1 parser (RFC 9112). It has one well-formed field a
line, and no folded line. The end of its body is stated once. Any other head is refused: the proxy does not
guess.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from shadeproxy.core.errors import InvalidRequest
from shadeproxy.core.types import Headers

MAX_LINE_BYTES = 32 * 1024
"""Longest request line. A key of 1,024 bytes in UTF-8 takes 3,072 bytes when it is escaped, and a presigned
URL also has a session token.
"""

MAX_FIELD_BYTES = 16 * 1024
"""Longest header field. S3 accepts 8 KiB of header fields, 2 KiB of which are user metadata. The longest
field is a session token, and session tokens become longer from year to year.
"""

MOST_HEAD_BYTES = MAX_LINE_BYTES + 2 * MAX_FIELD_BYTES
MOST_FIELDS = 2048
"""Most fields of a request. S3 accepts 2 KiB of user metadata, which may have some 700 names."""

TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105 - a token of HTTP, no secret
"""The pattern of a token, such as a method or the name of a field (RFC 9110 section 5.6.2)."""

_TOKEN = re.compile(TOKEN)
# The beginning of a request of which the rest has not come yet.
_BEGINNING = re.compile(rb"(?:\r(?:\n|\Z))?(?:%b(?: [^\x00-\x1f\x7f]*(?:\r|\Z)|\Z)|\Z)" % TOKEN.encode())
# Bytes that no line of a head may have. A tab may stand in a field.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_CONTROL_BUT_TAB = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_ONCE = frozenset({"content-length", "expect", "host", "transfer-encoding"})
"""Fields that may come once. All but Host concern the body that follows."""
_DIGITS = re.compile(r"[0-9]{1,18}")
_MOST_NAMES = 512
_MOST_LOOKED_AT = 64


class Head(NamedTuple):
    """The parts of a head. ``target`` and the names of ``fields`` are as sent. The values of ``fields`` have
    no white space around them. Bytes beyond ASCII are decoded from UTF-8 with surrogateescape.

    ``keep_alive``: the client may send another request on the connection. ``body_bytes``: the length of the
    body; None if the body is chunked. ``awaits_go``: the client sends the body only after an interim answer
    (``Expect: 100-continue``), or after some time. ``is_http_11``: the client speaks HTTP/1.1; otherwise
    HTTP/1.0.
    """

    method: str
    target: str
    fields: Headers
    keep_alive: bool
    body_bytes: int | None = 0
    awaits_go: bool = False
    is_http_11: bool = True

    @property
    def is_bare(self) -> bool:
        """True if no body follows."""
        return self.body_bytes == 0


NO_HEAD = Head("", "", (), keep_alive=False)
"""The head of a request that could not be parsed."""


class HeadReader:
    """Parses heads. It remembers which field names are valid, because clients always send the same
    few names.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def read(self, raw: bytes) -> Head:
        """Parse ``raw``, a head with its empty line. Raises InvalidRequest."""
        if len(raw) > MOST_HEAD_BYTES:
            raise too_long()
        line, *rest = raw[:-4].decode("utf-8", "surrogateescape").split("\r\n")
        # RFC 9112 section 2.2: an empty line may come before the request line.
        if not line and rest:
            line, *rest = rest
        # Most heads are plain text, for which one look at all lines is enough.
        if not "".join(rest).isprintable():
            for text in rest:
                if _CONTROL_BUT_TAB.search(text):
                    raise InvalidRequest("A header field has a control character")
        method, target, is_http_11 = _request_line(line)
        once: dict[str, str] = {}
        options: list[str] = []
        fields = self._fields(rest, once, options)
        if is_http_11 and "host" not in once:
            raise InvalidRequest("The request has no Host field")
        # The bytes behind a CONNECT may belong to the tunnel that the client hopes for.
        keep_alive = _keep_alive(options, is_http_11=is_http_11) and method != "CONNECT"
        body_bytes, awaits_go = _body(once, is_http_11=is_http_11)
        return Head(method, target, fields, keep_alive, body_bytes, awaits_go, is_http_11)

    def _fields(self, lines: list[str], once: dict[str, str], options: list[str]) -> Headers:
        """Return the fields in ``lines``. Set ``once`` to those that may come once, with lower-case names.
        Append to ``options`` the values of Connection.
        """
        if len(lines) > MOST_FIELDS:
            raise InvalidRequest(f"The request has more than {MOST_FIELDS} header fields")
        fields: list[tuple[str, str]] = []
        for line in lines:
            name, colon, value = line.partition(":")
            lowered = self._names.get(name) or self._prove(name)
            value = value.strip(" \t")
            if not colon:
                raise InvalidRequest("A header field has no colon")
            if len(line) > MAX_FIELD_BYTES:
                raise InvalidRequest(f"A header field is longer than {MAX_FIELD_BYTES} bytes")
            if lowered in _ONCE:
                if lowered in once:
                    raise InvalidRequest(f"The header field {name} comes twice")
                once[lowered] = value
            elif lowered == "connection":
                options.append(value)
            fields.append((name, value))
        return tuple(fields)

    def _prove(self, name: str) -> str:
        if not _TOKEN.fullmatch(name):
            # A space or a tab at its beginning would continue the field before (RFC 9112 section 5.2).
            raise InvalidRequest("A header field has a name that HTTP does not allow")
        if len(self._names) >= _MOST_NAMES:
            self._names.clear()
        self._names[name] = lowered = name.lower()
        return lowered


def may_begin(data: bytes) -> bool:
    """Return False if no request begins with ``data``: the client speaks another protocol."""
    # The first bytes are enough. A client may send a long line byte by byte.
    return _BEGINNING.match(data[:_MOST_LOOKED_AT]) is not None


def too_long() -> InvalidRequest:
    """Return the error for a head that is too long."""
    return InvalidRequest(f"The header of the request is longer than {MOST_HEAD_BYTES} bytes")


def _request_line(line: str) -> tuple[str, str, bool]:
    """Return the method, the target, and whether the version is HTTP/1.1."""
    method, _, rest = line.partition(" ")
    target, _, version = rest.partition(" ")
    if not _TOKEN.fullmatch(method) or not target or _CONTROL.search(target):
        raise InvalidRequest("The request line is not that of an HTTP/1.1 request")
    if version not in {"HTTP/1.1", "HTTP/1.0"}:
        raise InvalidRequest("The request is not HTTP/1.1", hint="use HTTP/1.1")
    if len(line) > MAX_LINE_BYTES:
        raise InvalidRequest(f"The request line is longer than {MAX_LINE_BYTES} bytes")
    return method, target, version == "HTTP/1.1"


def _keep_alive(options: list[str], *, is_http_11: bool) -> bool:
    """Return True if the connection continues after a request. ``options``: the values of Connection."""
    if not options:
        return is_http_11
    kinds = {kind.strip(" \t") for kind in ",".join(options).lower().split(",")}
    return "close" not in kinds and (is_http_11 or "keep-alive" in kinds)


def _body(once: Mapping[str, str], *, is_http_11: bool) -> tuple[int | None, bool]:
    """Return ``Head.body_bytes`` and ``Head.awaits_go``, from the fields that may come once."""
    length, coding = once.get("content-length"), once.get("transfer-encoding")
    # HTTP/1.0 knows no interim answers.
    awaits_go = is_http_11 and once.get("expect", "").lower() == "100-continue"
    if coding is not None:
        if length is not None:
            raise InvalidRequest("The request has both Content-Length and Transfer-Encoding")
        # Not only ASCII letters have a lower-case letter of ASCII: the Kelvin sign has one too.
        if not coding.isascii() or coding.lower() != "chunked" or not is_http_11:
            raise InvalidRequest("Transfer-Encoding may only be chunked, and only in HTTP/1.1")
        return None, awaits_go
    if length is not None and not _DIGITS.fullmatch(length):
        raise InvalidRequest("Content-Length is not a number")
    return int(length or 0), awaits_go
