"""Finds the bytes and pages that the answer to a request needs, and the flights that can bring them."""

from shadeproxy.core.conditions import Verdict
from shadeproxy.core.deadline import Deadline
from shadeproxy.core.errors import (
    DeadlineExceeded,
    ObjectChanged,
    OriginAnswer,
    RangeNotSatisfiable,
    ShadeProxyError,
)
from shadeproxy.core.ranges import page_span, pages_of, span_within
from shadeproxy.core.types import ObjectMeta, Span
from shadeproxy.engine.base import NO_CONDITIONS, ReadRequest
from shadeproxy.engine.freshness.unidentified import serves
from shadeproxy.engine.read.flight import Flight
from shadeproxy.engine.read.single_flight import SingleFlight
from shadeproxy.engine.rules import Freshness, Rules
from shadeproxy.origin.base import OriginRead

SUFFIX = -1
"""Stands for the number of the first wanted page while that page is not known, because the request names the
last bytes of an object of unknown size.
"""

_MOST_SUFFIX_BYTES = 1 << 50
"""No object is longer, and no origin fails to read this number."""

MOST_TOGETHER = 64
"""The most pages of an object that are requested together, with a range."""


def span_needed(request: ReadRequest, meta: ObjectMeta) -> Span:
    """Return the span that the answer will have, as far as the engine can tell. It is empty for 304, 412 and
    416.
    """
    if request.conditions.evaluate(meta) is not Verdict.PROCEED:
        return Span(0, 0)
    if request.range is None or not request.conditions.range_applies(meta):
        return Span(0, meta.size)
    try:
        return request.range.resolve(meta.size)
    except RangeNotSatisfiable:
        return Span(0, 0)


def first_needed(request: ReadRequest) -> int | None:
    """Return the first byte of the object in the answer; None if this depends on the metadata."""
    wanted, conditions = request.range, request.conditions
    if conditions is not NO_CONDITIONS and conditions:
        return None
    # A suffix range has the start None, because its start depends on the object's size.
    return 0 if wanted is None else wanted.first


def first_expected(request: ReadRequest) -> int | None:
    """Return the first byte of the object in the answer, if all conditions are met. Return None for last
    bytes, and if a condition is probably not met.

    Readers that name the version they want (If-Match) nearly always get its bytes. Readers that name the
    version they have (If-None-Match) nearly never do.
    """
    conditions = request.conditions
    if conditions.if_none_match or conditions.if_modified_since:
        return None
    return 0 if request.range is None else request.range.first


def suffix_needed(request: ReadRequest) -> Span | None:
    """Return the last bytes of the object, as ``Span(-n, 0)``, if the request names them and has no condition
    that could end in 304 or 412; else None.
    """
    wanted, conditions = request.range, request.conditions
    if wanted is None or wanted.first is not None or not wanted.last or conditions:
        return None
    return Span(-min(wanted.last, _MOST_SUFFIX_BYTES), 0)


def part_of(span: Span, number: int, page_size: int, size_bytes: int) -> Span | None:
    """Return the bytes of ``span`` within a page of an object of ``size_bytes``. None: the whole page."""
    part = span_within(span, number, page_size, size_bytes)
    return None if part == (0, page_span(number, page_size, size_bytes).length) else part


def part_asked(request: ReadRequest, number: int, page_size: int) -> Span | None:
    """Return the bytes within a page that ``request`` names, as if the object ended with the page. None: the
    whole page.
    """
    asked, end = request.range, (number + 1) * page_size
    if asked is None or asked.first is None:
        return None
    return part_of(Span(asked.first, end if asked.last is None else asked.last + 1), number, page_size, end)


def stop_asked(request: ReadRequest, page_size: int) -> int | None:
    """Return the end of the range that ``request`` names, if the range begins behind the object's first byte
    and goes on behind its first page; else None. A range without an end ends after ``MOST_TOGETHER`` pages.
    """
    asked = request.range
    if asked is None or not asked.first:
        return None  # Such a read requests the whole object.
    number = asked.first // page_size
    most = (number + MOST_TOGETHER) * page_size
    stop = most if asked.last is None else min(asked.last + 1, most)
    return stop if stop > (number + 1) * page_size else None


def only_page(request: ReadRequest, meta: ObjectMeta, page_size: int) -> int | None:
    """Return the number of the page that ``request`` needs; None if it needs several pages, or none."""
    numbers = pages_of(span_needed(request, meta), page_size)
    return numbers.start if len(numbers) == 1 else None


def joins_earlier(request: ReadRequest, number: int, flights: SingleFlight, rules: Rules) -> bool:
    """Return whether a read of a page of an unknown version would join a flight that began before the read,
    although the origin must be asked after the read began.
    """
    asks = request.force_check or rules.of(request.ref).freshness is Freshness.REVALIDATE
    return asks and flights.busy(request.ref, number)


def claim_passed(flight: Flight | None, request: ReadRequest) -> OriginRead | None:
    """Take over the origin's answer from a flight that cannot store it, and return the answer. Return None if
    the answer lacks wanted bytes, or if the origin must decide on conditions. The answer stays valid until
    the flight is left.
    """
    read = None if flight is None or request.conditions else flight.passed
    if flight is None or read is None or flight.upstream != request.upstream:
        return None
    assert read.pass_on is not None, "an answer that can be stored is no answer to pass on"
    if not serves(read, request.range, span_needed(request, read.meta)):
        return None
    flight.passed = None
    return read if read.pass_on.admit() else None


def is_others(
    flight: Flight,
    error: ShadeProxyError,
    request: ReadRequest,
    meta: ObjectMeta | None,
    deadline: Deadline | None,
) -> bool:
    """Return whether ``flight`` may have failed for a reason that only its first reader has, and not the
    reader with ``request``, the version ``meta`` and ``deadline``.
    """
    if deadline is not None and deadline.left_s <= 0:
        return False
    if isinstance(error, OriginAnswer) and flight.upstream != request.upstream:
        return True
    if isinstance(error, ObjectChanged):
        # If the flight asked for this reader's version too, the origin has that version no longer.
        return meta is None or flight.wanted != meta.etag
    return isinstance(error, DeadlineExceeded) or flight.prefetched
