"""Heads of answers to reads. A head is made once for an object. It is kept without the parts that change from
answer to answer.

``answer_read`` and ``render_head`` make every head, as they do for answers of tasks.
"""

from typing import NamedTuple

from shadeproxy.api.s3.exchange import OWN_FIELDS, with_own
from shadeproxy.api.s3.response import render_head
from shadeproxy.api.s3.semantics import Answer, answer_read
from shadeproxy.core.ranges import content_range
from shadeproxy.core.types import Headers, ObjectMeta, Source, Span
from shadeproxy.engine.base import NO_CONDITIONS

# This mark stands in a head where the request id belongs. The head is cut there.
_ID_MARK = "0123456789ABCDEF"
# These marks stand in a head where changing values belong. No server sends these characters in a field.
_MARKS = {"content-length": "\x01", "content-range": "\x02"}


class PartHead(NamedTuple):
    """The head of a 206 for the version that ``meta`` describes, up to the request id. It is cut into three
    parts, between which the length and the range are inserted.
    """

    meta: ObjectMeta
    before: bytes
    between: bytes
    after: bytes

    def of(self, span: Span, request_id: str) -> bytes:
        """Return the head of the answer with ``span``, up to and including the request id."""
        shown = content_range(span, self.meta.size)
        return b"%b%d%b%b%b%b" % (
            self.before, span.length, self.between, shown.encode(), self.after, request_id.encode()
        )  # fmt: skip


def whole_heads(meta: ObjectMeta) -> tuple[bytes, bytes] | None:
    """Return the beginnings of two heads of a 200 for a whole object, up to the request id: without
    checksums, and with them, for clients that ask for them.

    Return None if the origin has set a field that the proxy would set (``OWN_FIELDS``).
    """
    plain, full = (
        answer_read(meta, method="GET", range_field=None, conditions=NO_CONDITIONS, checksums=shown).headers
        for shown in (False, True)
    )
    head = _up_to_id(200, plain)
    return None if head is None else (head, head if full == plain else _up_to_id(200, full) or b"")


def part_head(answer: Answer, meta: ObjectMeta) -> PartHead | None:
    """Return the parts that the heads of all 206 answers of an object have in common, taken from one
    ``answer``.

    Return None if ``answer`` is no 206, if the origin has set a field that the proxy would set
    (``OWN_FIELDS``), or if the changing parts cannot be told apart.
    """
    if answer.status != 206:
        return None
    marked = tuple((name, _MARKS.get(name.lower(), value)) for name, value in answer.headers)
    head = _up_to_id(206, marked) or b""
    length, shown = (mark.encode() for mark in _MARKS.values())
    if head.count(length) != 1 or head.count(shown) != 1:
        return None
    before, _, rest = head.partition(length)
    between, _, after = rest.partition(shown)
    return PartHead(meta, before, between, after)


def _up_to_id(status: int, headers: Headers) -> bytes | None:
    if any(name.lower() in OWN_FIELDS for name, _ in headers):
        return None
    fields = with_own(headers, request_id=_ID_MARK, now_s=0.0, source=Source.RAM)
    # Cut at the last mark: an object's fields may contain the mark too, but after the id only the proxy's
    # fields follow.
    return render_head(status, fields).rpartition(_ID_MARK.encode())[0]
