"""Preconditions of requests, evaluated by RFC 9110 section 13.2.2 and the S3 page on GetObject."""

import re
from dataclasses import dataclass
from enum import Enum, auto

from shadeproxy.core.dates import parse_http_date
from shadeproxy.core.types import ObjectMeta

FAILED_TEXT = "At least one of the pre-conditions you specified did not hold"
"""S3's message for a condition that is not met."""


# An entity tag in its quotes may contain commas (RFC 9110 section 8.8.3).
_TAG = re.compile(r'\s*(?:W/)?"[^"]*"|[^,]+')


class Verdict(Enum):
    PROCEED = auto()
    NOT_MODIFIED = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditional fields of a GET or HEAD, as they were received; None for a field that is missing."""

    if_match: str | None = None
    if_none_match: str | None = None
    if_modified_since: str | None = None
    if_unmodified_since: str | None = None
    if_range: str | None = None

    def __bool__(self) -> bool:
        """Return whether a condition could change the status of the answer to 304 or 412. If-Range cannot:
        that field only decides whether the range is honoured.
        """
        return any((self.if_match, self.if_none_match, self.if_modified_since, self.if_unmodified_since))

    def evaluate(self, meta: ObjectMeta) -> Verdict:
        """Evaluate the conditions against ``meta``. Dates that cannot be read are ignored, as the RFC
        asks.
        """
        if self.if_match is not None:
            if not _matches(self.if_match, meta.etag, weak=False):
                return Verdict.FAILED
        elif (since := parse_http_date(self.if_unmodified_since)) is not None:
            modified = parse_http_date(meta.header("Last-Modified"))
            if modified is not None and modified > since:
                return Verdict.FAILED
        if self.if_none_match is not None:
            if _matches(self.if_none_match, meta.etag, weak=True):
                return Verdict.NOT_MODIFIED
        elif (since := parse_http_date(self.if_modified_since)) is not None:
            modified = parse_http_date(meta.header("Last-Modified"))
            if modified is not None and modified <= since:
                return Verdict.NOT_MODIFIED
        return Verdict.PROCEED

    def range_applies(self, meta: ObjectMeta) -> bool:
        """Return False if there is an If-Range field that does not match, so that the Range field must be
        ignored (RFC 9110 section 13.1.5). Otherwise return True.
        """
        if self.if_range is None:
            return True
        value = self.if_range.strip()
        if value.startswith(('"', "W/")):
            return value == meta.etag and not value.startswith("W/")
        date, modified = parse_http_date(value), parse_http_date(meta.header("Last-Modified"))
        return date is not None and date == modified


def _matches(field: str, etag: str, *, weak: bool) -> bool:
    if field.strip() == "*":
        return True
    for match in _TAG.finditer(field):
        candidate = match[0].strip()
        is_weak = candidate.startswith("W/")
        # S3 accepts entity tags without their quotes, and tests of S3 clients rely on that.
        tag = candidate.removeprefix("W/").strip('"')
        if tag == etag.removeprefix("W/").strip('"') and (weak or not (is_weak or etag.startswith("W/"))):
            return True
    return False
