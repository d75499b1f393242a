"""Finds the end of a request's body, by its length or by its chunks (RFC 9112 section 7.1)."""

import re
from typing import Protocol

from shadeproxy.api.s3.head import body_bytes, is_chunked

# The line with the size of a chunk. aiohttp accepts zeros before the size, and any text in an extension, so
# this pattern does too.
_SIZE = re.compile(rb"0*([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t -~\x80-\xff]*)?\r\n")
_MOST_LINE_BYTES = 16 * 1024


class BodyEnd(Protocol):
    """Finds the end of the body of one request. ``is_over``: True once the whole body was taken."""

    is_over: bool

    def take(self, data: bytes) -> int:
        """Take bytes that have arrived. Return how many of them still belong to the body."""
        ...


class LengthEnd:
    """Finds the end of a body by its length. ``left_bytes``: bytes that are still to come."""

    def __init__(self, left_bytes: int) -> None:
        self.is_over = not left_bytes
        self._left_bytes = left_bytes

    def take(self, data: bytes) -> int:
        """Take bytes that have arrived. Return how many of them still belong to the body."""
        count = min(len(data), self._left_bytes)
        self._left_bytes -= count
        self.is_over = not self._left_bytes
        return count


class ChunksEnd:
    """Finds the end of a chunked body. In malformed chunks it finds no end; aiohttp, which parses the body,
    then refuses the request.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._skipped_bytes = 0
        """Bytes still to come of the chunk that is arriving, including its line end."""
        self._line = b""
        """The bytes of an incomplete line: a chunk's size or a trailer."""
        self._in_trailers = self._is_broken = False

    def take(self, data: bytes) -> int:
        """Take bytes that have arrived. Return how many of them still belong to the body."""
        at = 0
        while at < len(data) and not self.is_over:
            if self._is_broken:
                return len(data)
            if self._skipped_bytes:
                count = min(self._skipped_bytes, len(data) - at)
                self._skipped_bytes -= count
                at += count
                continue
            end = data.find(b"\n", at) + 1 or len(data)
            self._line += data[at:end]
            at = end
            if self._line.endswith(b"\n"):
                line, self._line = self._line, b""
                self._take_line(line)
            elif len(self._line) > _MOST_LINE_BYTES:
                self._is_broken = True
        return at

    def _take_line(self, line: bytes) -> None:
        if self._in_trailers:
            self.is_over = line == b"\r\n"
        elif (size := _SIZE.fullmatch(line)) is None:
            self._is_broken = True
        elif count := int(size[1], 16):
            self._skipped_bytes = count + 2
        else:
            self._in_trailers = True


def end_of_body(raw: bytes) -> BodyEnd | None:
    """Return the object that finds the end of the body that follows the head ``raw``; None if only aiohttp
    can find it.
    """
    length = body_bytes(raw)
    if length is not None:
        return LengthEnd(length)
    return ChunksEnd() if is_chunked(raw) else None
