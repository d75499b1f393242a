"""Pure functions for HTTP/1.1 answers: the head, the framing of the body, and the chunked coding.

Parsing is strict wherever two readers could disagree on where an answer ends (RFC 9112 sections 2.2, 5.2,
6.3). So bare line feeds, folded fields, two lengths, a length beside a transfer coding, and codings other
than "chunked" raise BadAnswer. This error never leaves the package. The module does no I/O and uses no
asyncio.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from shadeproxy.core import heads
from shadeproxy.core.types import Headers, names_of
from shadeproxy.origin.field_places import FieldPlaces, places_of

MOST_HEAD_BYTES = 64 << 10

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [^\x00\r\n]*)?")
# A line is a token, a colon right after it, and a value without control characters. Blanks and tabs around
# the value do not belong to it.
_FIELD = re.compile(
    r"^([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*+"
    r"((?:[^\x00-\x08\x0a-\x1f\x7f]*[^\x00-\x08\x0a-\x1f\x7f \t])?)[ \t]*\r\n",
    re.MULTILINE,
)
# As _FIELD, but the value may have control characters except those that end a line or a string.
_FLAWED_FIELD = re.compile(
    r"^([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*+((?:[^\x00\x0a\x0d]*[^\x00\x0a\x0d \t])?)[ \t]*\r\n",
    re.MULTILINE,
)
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f]")
_FRAMING = frozenset({"content-length", "transfer-encoding", "connection"})
BODILESS = frozenset({204, 304})
_LENGTH = re.compile(r"[0-9]{1,18}")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\x00\r\n]*)?")
_MOST_CHUNK_LINE_BYTES = 4096
_MOST_TRAILER_BYTES = 16 << 10


class BadAnswer(Exception):
    """Raised if the peer breaks HTTP/1.1, so that its connection cannot be used again."""


class Head(NamedTuple):
    """A parsed head. ``places``: positions of fields in ``headers``. ``length``: bytes of the body; None if
    the body is ``chunked``, or ends with the connection.

    ``length_given``: True if the head has a Content-Length. ``keep_alive``: True if the connection may be
    used again. ``flawed``: True if fields were left out because their values had control characters.
    ``size_bytes``: bytes of the head itself.
    """

    status: int
    headers: Headers
    places: FieldPlaces
    length: int | None
    length_given: bool
    chunked: bool
    keep_alive: bool
    flawed: bool
    size_bytes: int


def parse_head(data: bytes | bytearray, held: int) -> Head | None:
    """Parse the head in the first ``held`` bytes of ``data``. Return None if the head is not complete yet.
    Raises BadAnswer.
    """
    if heads.COMPILED and (usual := _USUAL.read(data, held)) is not None:
        return usual
    end = data.find(b"\r\n\r\n", 0, held) + 4
    if (held if end < 4 else end) > MOST_HEAD_BYTES:
        raise BadAnswer("the head of the answer is too long")
    if end < 4:
        return None
    fields_at = data.find(b"\r\n") + 2
    status, is_current = _status(bytes(data[: fields_at - 2]))
    # surrogateescape keeps bytes that are not UTF-8.
    text = data[fields_at : end - 2].decode("utf-8", "surrogateescape")
    headers = tuple(_FIELD.findall(text))
    flawed = len(headers) != text.count("\n")
    if flawed:
        headers = _legal_of(text)
    places = places_of(*names_of(headers))
    length = None
    if places.codings:
        _require_chunked(headers, places)
    elif places.lengths:
        value = headers[places.lengths[0]][1]
        if len(places.lengths) > 1 or _LENGTH.fullmatch(value) is None:
            raise BadAnswer("not one Content-Length")
        length = int(value)
    is_chunked = bool(places.codings)
    if status < 200 or status in BODILESS:
        length, is_chunked = 0, False
    options = ""
    for place in places.connection:
        options += f",{headers[place][1].lower()}"
    # A body without a length ends with the connection.
    is_kept = (length is not None or is_chunked) and _is_kept(is_current, options)
    return Head(status, headers, places, length, bool(places.lengths), is_chunked, is_kept, flawed, end)


def _legal_of(text: str) -> Headers:
    """Return the fields whose values are legal (RFC 9110 section 5.5). Raises BadAnswer for an illegal
    framing field.
    """
    fields = _FLAWED_FIELD.findall(text)
    legal = tuple(field for field in fields if _CONTROL.search(field[1]) is None)
    dropped = {name.lower() for name, value in fields if _CONTROL.search(value) is not None}
    if len(fields) != text.count("\n") or not dropped.isdisjoint(_FRAMING):
        raise BadAnswer("a header field cannot be understood")
    return legal


@lru_cache(maxsize=64)
def _status(line: bytes) -> tuple[int, bool]:
    """Return the status of an answer, and True if it is HTTP/1.1. Raises BadAnswer."""
    matched = _STATUS_LINE.fullmatch(line)
    if matched is None:
        raise BadAnswer("no HTTP/1.1 status line")
    return int(matched[2]), matched[1] == b"1"


def _require_chunked(headers: Headers, places: FieldPlaces) -> None:
    codings = [headers[place][1].lower() for place in places.codings]
    if places.lengths or codings != ["chunked"]:
        raise BadAnswer("a transfer coding that is not just chunked")


@lru_cache(maxsize=64)
def _is_kept(is_current: bool, options: str) -> bool:
    if not options:
        return is_current
    named = {option.strip() for option in options.split(",")}
    return "close" not in named and (is_current or "keep-alive" in named)


if heads.COMPILED:
    _USUAL = heads.HeadReader(places_of=places_of, is_kept=_is_kept, head=Head)


class ChunkedBody:
    """Decodes a chunked body. ``ended``: True once its last chunk and its trailer have arrived.

    ``surplus``: True if more bytes arrived after the end.
    """

    def __init__(self) -> None:
        self.ended = False
        self.surplus = False
        self._pending = b""
        self._left = 0  # Bytes of the current chunk's data that are still to come.
        self._after_data = False
        self._in_trailer = False
        self._trailer_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Return the decoded content in ``data``, the next bytes of the body. Raises BadAnswer."""
        self._pending += data
        content: list[bytes] = []
        while not self.ended:
            if self._left:
                if not self._pending:
                    break
                piece = self._pending[: self._left]
                self._pending = self._pending[len(piece) :]
                self._left -= len(piece)
                self._after_data = not self._left
                content.append(piece)
            elif not self._take_line():
                break
        self.surplus = self.ended and bool(self._pending)
        return b"".join(content)

    def _take_line(self) -> bool:
        line, found, rest = self._pending.partition(b"\r\n")
        if not found:
            if len(line) > _MOST_CHUNK_LINE_BYTES:
                raise BadAnswer("a line of a chunked body is too long")
            return False
        self._pending = rest
        if self._after_data:
            if line:
                raise BadAnswer("a chunk is longer than it says")
            self._after_data = False
        elif self._in_trailer:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > _MOST_TRAILER_BYTES:
                raise BadAnswer("the trailer of a chunked body is too long")
            self.ended = not line
        else:
            size = _CHUNK_SIZE.fullmatch(line)
            if size is None:
                raise BadAnswer("a chunk without a size")
            self._left = int(size[1], 16)
            self._in_trailer = not self._left
        return True
