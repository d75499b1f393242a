"""Byte ranges. Only this module turns HTTP's inclusive ranges into half-open spans (RFC 9110 section 14)."""

import re
from typing import NamedTuple

from shadeproxy.core.errors import RangeNotSatisfiable
from shadeproxy.core.types import Span

_RANGE = re.compile(r"bytes=\s*(\d*+)-(\d*+)\s*", re.IGNORECASE | re.ASCII)
_MOST_DIGITS = 20
"""Digits that suffice for any 64-bit offset."""


class RangeSpec(NamedTuple):
    """One range as it was requested, before the object's size is known: ``first-last``, ``first-`` or
    ``-suffix``. Of a suffix, ``first`` is None, and ``last`` is the number of bytes.
    """

    first: int | None
    last: int | None

    def resolve(self, size_bytes: int) -> Span:
        """Return the span of the range in an object of ``size_bytes``. Raises RangeNotSatisfiable."""
        if self.first is None:
            suffix = self.last or 0
            if suffix == 0 or size_bytes == 0:
                raise RangeNotSatisfiable(size_bytes)
            return Span(max(0, size_bytes - suffix), size_bytes)
        if self.first >= size_bytes:
            raise RangeNotSatisfiable(size_bytes)
        stop = size_bytes if self.last is None else min(self.last + 1, size_bytes)
        return Span(self.first, stop)


def parse_range(field: str | None) -> RangeSpec | None:
    """Return the single range of a ``Range`` field; None if the whole object is to be sent.

    As in S3, a field that is not exactly one valid byte range (several ranges, another unit, ``last <
    first``) is ignored, and the whole object is answered with 200.
    """
    match = _RANGE.fullmatch(field) if field else None
    if match is None or (not match[1] and not match[2]):
        return None
    first, last = (text.lstrip("0") or "0" if text else None for text in match.groups())
    # Compare the digits, because ``_number_of`` makes all long numbers equal.
    if first is not None and last is not None and (len(last), last) < (len(first), first):
        return None
    return RangeSpec(_number_of(first), _number_of(last))


def _number_of(digits: str | None) -> int | None:
    """Return the number; if it is beyond the end of any object, return some number beyond it."""
    if digits is None:
        return None
    return int(digits) if len(digits) <= _MOST_DIGITS else 10**_MOST_DIGITS


def content_range(span: Span, size_bytes: int) -> str:
    """Return the value of ``Content-Range`` for a 206 with ``span``."""
    return f"bytes {span.start}-{span.stop - 1}/{size_bytes}"


STORED_PARTS = 1 << 31
"""Pages have lower numbers, because no object has so many pages."""

_MOST_START = STORED_PARTS - 1  # The number 2**32 - 1 means "every page" in the index of samples.


def part_number(start: int) -> int | None:
    """Return the number of the record that holds a part of a page alone. ``start``: the part's first byte in
    the object. Return None if that byte is too far from the object's beginning.
    """
    return STORED_PARTS + start if start < _MOST_START else None


def part_start(number: int) -> int | None:
    """Return the first byte of a stored part, by the number of its record. Return None if the number is that
    of a page.
    """
    return number - STORED_PARTS if number >= STORED_PARTS else None


def pages_of(span: Span, page_size: int) -> range:
    """Return the numbers of the pages that ``span`` touches; none for an empty span."""
    if span.stop <= span.start:
        return range(0)
    return range(span.start // page_size, (span.stop - 1) // page_size + 1)


def page_span(index: int, page_size: int, size_bytes: int) -> Span:
    """Return the span of page ``index`` in an object of ``size_bytes``."""
    return Span(index * page_size, min((index + 1) * page_size, size_bytes))


def span_within(span: Span, index: int, page_size: int, size_bytes: int) -> Span:
    """Return the part of ``span`` that lies in page ``index``, with offsets counted from the page's first
    byte.
    """
    first = index * page_size
    return Span(max(span.start - first, 0), min(span.stop - first, page_size, size_bytes - first))
