"""Parses the head of a request in the fast lane, strictly.

Laws: an accepted head means the same to every HTTP/1.1 parser (RFC 9112). It is visible ASCII with one
well-formed field a line, and has no folded line, no body and no upgrade. For any other head
``HeadReader.read`` returns None, and aiohttp parses the head.
"""

import re
from collections.abc import Iterator
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
# Fields that concern a body, its trailers or its coding, an interim answer, or another protocol.
_NOT_HERE = frozenset({"expect", "te", "trailer", "transfer-encoding", "upgrade"})
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,18}) *(?=\r\n)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked *(?=\r\n)", re.IGNORECASE)
_FRAMING = re.compile(rb"[\r\n][ \t]*(?:content-length|transfer-encoding|upgrade)|[\r\n][ \t]", re.IGNORECASE)
_MOST_PLAIN_FIELDS = 100
_MOST_NAMES = 512


class _NotPlain(Exception):
    """Raised if a head is not of the strict form, so that aiohttp must parse it."""


class Head(NamedTuple):
    """The parts of a head. ``target`` and the names of ``fields`` are as sent. The values of ``fields`` have
    no white space around them.
    """

    method: str
    target: str
    fields: Headers
    keep_alive: bool


class HeadReader:
    """Parses heads. It remembers which field names are valid, because clients always send the same
    few names.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def read(self, raw: bytes) -> Head | None:
        """Parse ``raw``, a head including its empty line. Return None if it is not of the strict form."""
        try:
            line, *rest = raw[:-4].decode("ascii").split("\r\n")
            # Tabs, NULs, and a CR or LF without the other are not printable.
            if not line.isprintable() or not "".join(rest).isprintable():
                return None
            method, target = _request_line(line)
            fields = tuple(self._fields(rest))
        except (UnicodeDecodeError, _NotPlain):
            return None
        return Head(method, target, fields, _keep_alive(fields))

    def _fields(self, lines: list[str]) -> Iterator[tuple[str, str]]:
        if len(lines) > _MOST_PLAIN_FIELDS:
            raise _NotPlain
        hosts = lengths = 0
        for line in lines:
            name, colon, value = line.partition(":")
            lowered = self._names.get(name) or self._prove(name)
            value = value.strip(" ")
            if not colon or lowered in _NOT_HERE or len(line) > MAX_FIELD_BYTES:
                raise _NotPlain
            if lowered == "content-length" and value != "0":
                raise _NotPlain
            hosts += lowered == "host"
            lengths += lowered == "content-length"
            yield name, value
        if hosts != 1 or lengths > 1:
            raise _NotPlain

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
    if method not in {"GET", "HEAD"} or version != "HTTP/1.1" or not target.startswith("/"):
        raise _NotPlain
    if len(line) > MAX_LINE_BYTES:
        raise _NotPlain
    return method, target


def _keep_alive(fields: Headers) -> bool:
    options = [value.lower() for name, value in fields if name.lower() == "connection"]
    if not {"close", "keep-alive"}.issuperset(options):
        raise _NotPlain
    return "close" not in options


def is_chunked(raw: bytes) -> bool:
    """Return True if a chunked body follows the head ``raw``."""
    return len(_FRAMING.findall(raw)) == len(_CHUNKED.findall(raw)) == 1


def body_bytes(raw: bytes) -> int | None:
    """Return the length of the body after the head ``raw``; None if only aiohttp can find out."""
    framing = len(_FRAMING.findall(raw))
    if not framing:
        return 0
    lengths = _LENGTH.findall(raw)
    return int(lengths[0]) if framing == len(lengths) == 1 else None
