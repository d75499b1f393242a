"""Dates of HTTP fields (RFC 9110 section 5.6.7), as they come from anyone: what is none is None.

The one place that calls the standard library's parser, which raises four kinds of errors for dates that no
calendar has.
"""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


def parse_http_date(field: str | None) -> datetime | None:
    """The moment that ``field`` names, aware (UTC where it names no zone); None when it names none."""
    if not field:
        return None
    try:
        parsed = parsedate_to_datetime(field)
    except (ValueError, IndexError, TypeError, OverflowError):
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
