"""Heads of answers that are sent again and again, without what changes: the request id, the time, the span.

Law: a remembered head is what ``answer_read`` and ``render_head`` made, cut where one of those stands, so
that both lanes send the same bytes; where that cannot be told apart from what the origin sent, there is none.
"""

from typing import NamedTuple

from shadeproxy.api.s3.exchange import OWN_FIELDS, with_own
from shadeproxy.api.s3.response import render_head
from shadeproxy.api.s3.semantics import Answer, answer_read
from shadeproxy.core.ranges import content_range
from shadeproxy.core.types import Headers, ObjectMeta, Source, Span
from shadeproxy.engine.base import NO_CONDITIONS

_ID_MARK = "0123456789ABCDEF"
# No server sends them in a field.
_MARKS = {"content-length": "\x01", "content-range": "\x02"}


class PartHead(NamedTuple):
    """Of a 206 for an object with ``meta``: what stands around length and range, up to the request id."""

    meta: ObjectMeta
    before: bytes
    between: bytes
    after: bytes

    def of(self, span: Span, request_id: str) -> bytes:
        """For ``span``, up to and with the request id."""
        shown = content_range(span, self.meta.size)
        return b"%b%d%b%b%b%b" % (
            self.before, span.length, self.between, shown.encode(), self.after, request_id.encode()
        )  # fmt: skip


def whole_heads(meta: ObjectMeta) -> tuple[bytes, bytes] | None:
    """The heads of a 200 for all of an object, up to the request id: for who does not ask for its checksums,
    and for who does. None when the origin's own fields stand for ours.
    """
    plain, full = (
        answer_read(meta, method="GET", range_field=None, conditions=NO_CONDITIONS, checksums=shown).headers
        for shown in (False, True)
    )
    head = _up_to_id(200, plain)
    return None if head is None else (head, head if full == plain else _up_to_id(200, full) or b"")


def part_head(answer: Answer, meta: ObjectMeta) -> PartHead | None:
    """What every 206 of an object with ``meta`` has, from one ``answer``; None as ``whole_heads``."""
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
    # The last one: only what is ours follows the id, while an object's own fields may hold the mark.
    return render_head(status, fields).rpartition(_ID_MARK.encode())[0]
