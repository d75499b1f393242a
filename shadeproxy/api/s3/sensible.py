"""Check that the origin's answer to a forwarded GetObject or HeadObject fits the request.

Errors are passed on unchanged. Any other answer must have the status that the request calls for, and a 206
the right range and length, because the client would trust it.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import replace

from shadeproxy.api.s3.exchange import Call, closing
from shadeproxy.core.errors import BodyCutShort, OriginUnavailable, RangeNotSatisfiable
from shadeproxy.core.ranges import RangeSpec, parse_range
from shadeproxy.core.types import Span
from shadeproxy.origin.base import ForwardResponse

_CONDITIONAL = frozenset({"if-match", "if-none-match", "if-modified-since", "if-unmodified-since"})
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")


def sensible(call: Call, answer: ForwardResponse) -> ForwardResponse:
    """Return ``answer``; watch its length if only its range tells it. Raises OriginUnavailable."""
    if call.operation.name not in {"GetObject", "HeadObject"} or answer.status >= 400:
        return answer
    fields, of_part = call.request.fields, "partNumber" in call.request.query
    wanted = parse_range(fields.get("range"))
    if answer.status == 206 and wanted is not None:
        span = _span_of(answer, wanted)
        lengths = {value for name, value in answer.headers if name.lower() == "content-length"}
        if span is None or lengths - {str(span.length)}:
            raise OriginUnavailable(f"the origin answered another range than {fields['range']}")
        return answer if lengths else replace(answer, chunks=_watched(answer, span.length))
    expected = {200, 206} if "range" in fields or of_part else {200}
    if not _CONDITIONAL.isdisjoint(fields):
        expected.add(304)
    if (answer.status < 300 or answer.status == 304) and answer.status not in expected:
        raise OriginUnavailable(f"the origin answered {answer.status}, which is no answer to what was asked")
    return answer


def _span_of(answer: ForwardResponse, wanted: RangeSpec) -> Span | None:
    """Return the span of a 206; None if it is not ``wanted``."""
    values = [value for name, value in answer.headers if name.lower() == "content-range"]
    told = _CONTENT_RANGE.fullmatch(values[0]) if len(values) == 1 else None
    if told is None:
        return None
    span = Span(int(told[1]), int(told[2]) + 1)
    try:
        return span if wanted.resolve(int(told[3])) == span else None
    except RangeNotSatisfiable:
        return None


async def _watched(answer: ForwardResponse, length: int) -> AsyncIterator[bytes]:
    """Yield the body of an answer of ``length`` bytes. Raises BodyCutShort if its length differs."""
    left = length
    async with closing(answer.chunks) as chunks:
        async for chunk in chunks:
            left -= len(chunk)
            if left < 0:
                break
            yield chunk
    if left:
        raise BodyCutShort(f"the origin sent another number of bytes than the {length} of its range")
