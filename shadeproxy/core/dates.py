"""Dates in HTTP fields (RFC 9110 section 5.6.7).

The standard library's parser raises four kinds of errors for impossible dates. Clients choose the content of
these fields freely, so here a date that cannot be read becomes None.
"""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


def parse_http_date(field: str | None) -> datetime | None:
    """Parse a date field into a datetime with a time zone, UTC if the field names none. Return None if the
    field is not a date.
    """
    if not field:
        return None
    try:
        parsed = parsedate_to_datetime(field)
    except (ValueError, IndexError, TypeError, OverflowError):
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
