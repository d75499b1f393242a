"""Finds where the coordinator's answer to a relayed request ends, by its Content-Length. A worker then knows
when the client's next request may begin.
"""

import re

from shadeproxy.api.s3.head import MOST_HEAD_BYTES
from shadeproxy.api.s3.response import NO_BODY_STATUSES

_HEAD_END = b"\r\n\r\n"
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,18})\r\n", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection: *close\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked\r\n", re.IGNORECASE)
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_INTERIM = frozenset({b"100", b"102", b"103"})


class AnswerEnd:
    """Finds the end of one answer. ``raw``: the head of the request. Interim (1xx) answers that come first
    are skipped. The bytes of the answer's head are kept until the head is complete; no byte of the body is
    kept.
    """

    def __init__(self, raw: bytes) -> None:
        self._has_body = not raw.startswith(b"HEAD ")
        self._ends_by_closing = not raw.partition(b"\r\n")[0].endswith(b" HTTP/1.1")
        self._head: bytearray | None = bytearray()
        """The bytes of the answer's head that have arrived. None once the head is complete, or too long."""
        self._left_bytes: int | None = None
        self._last: bytes | None = None
        """The last bytes of an answer in chunks, while its last chunk has not come; otherwise None."""
        self.closes = False
        """True if the answer says (``Connection: close``) that the connection ends after this answer."""

    @property
    def complete(self) -> bool:
        """True if ``take`` has got all bytes of the answer."""
        return self._left_bytes == 0

    @property
    def may_break_off(self) -> bool:
        """True if an end of the connection now would break off the answer: bytes of its body are still to
        come. For an HTTP/1.0 client also if this is not known, because it would take the end of the
        connection for the end of the body.
        """
        is_short = self._last is not None or (self._left_bytes or 0) > 0
        return is_short or (self._ends_by_closing and self._left_bytes != 0)

    def take(self, data: bytes) -> int | None:
        """Take ``data``, the next bytes of the answer. Return how many bytes of the body are still to come.
        While the head is incomplete, this number is 0. It is negative if more bytes came than the answer has.
        Return None if the answer does not state its length.
        """
        if self._head is not None:
            return self._take_head(self._head, data)
        if self._left_bytes is not None:
            self._left_bytes -= len(data)
        elif self._last is not None:
            self._take_chunks(data)
        return self._left_bytes

    def _take_chunks(self, data: bytes) -> None:
        # A body may have the bytes of a last chunk in its midst. Then its end is not looked for any more.
        last = (self._last or b"") + data
        self._last = None if _LAST_CHUNK in last else last[-len(_LAST_CHUNK) + 1 :]

    def _take_head(self, head: bytearray, data: bytes) -> int | None:
        seen = max(0, len(head) - len(_HEAD_END) + 1)
        head += data
        end = head.find(_HEAD_END, seen) + len(_HEAD_END)
        if end < len(_HEAD_END) and len(head) <= MOST_HEAD_BYTES:
            return 0
        if (status := _STATUS.match(head)) is not None and status[1] in _INTERIM and end >= len(_HEAD_END):
            self._head = bytearray()
            return self._take_head(self._head, bytes(head[end:]))
        self._head = None
        body = self._body_bytes(bytes(head[:end])) if end >= len(_HEAD_END) else None
        if body is not None:
            self._left_bytes = body - (len(head) - end)
        elif self._last is not None:
            self._take_chunks(bytes(head[end:]))
        return self._left_bytes

    def _body_bytes(self, head: bytes) -> int | None:
        status, length = _STATUS.match(head), _LENGTH.search(head)
        self.closes = _CLOSES.search(head) is not None
        if status is None or status[1].startswith(b"1"):
            return None
        if not self._has_body or int(status[1]) in NO_BODY_STATUSES:
            return 0
        if _CHUNKED.search(head) is not None:
            self._last = b"\r\n"  # The end of the head: the first chunk may be the last one.
            return None
        return None if length is None else int(length[1])
