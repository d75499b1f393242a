"""The answer to a read by RFC 9110 and the S3 GetObject page, as a second opinion if servers disagree.

Servers treat these cases differently: weak and several ETags, `*`, invalid dates, two dates at once and
invalid ranges. In these cases the proxy follows the standard, whatever its origin does. This module was
written without the product's code, word by word from sections 13.1, 13.2.2 and 14.2.
"""

import re
from datetime import UTC, datetime
from typing import NamedTuple

from .corpus import Stored
from .wire import Request

_DATE_FORMS = ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y")
_TAG = re.compile(r'(W/)?"([^"]*)"|([^\s",]+)')
CONDITIONAL = frozenset({"if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range"})
# The grammar has no bound on digits. Numbers with more digits than a 64-bit offset are invalid here.
_RANGE = re.compile(r"bytes=[ \t]*(?:([0-9]{1,20})-([0-9]{0,20})|-([0-9]{1,20}))[ \t]*", re.IGNORECASE)


class Outcome(NamedTuple):
    """The required outcome of a read. ``range`` has the bytes of a 206, written as the shortest Range field
    that asks for them.
    """

    status: int
    range: str | None = None


def outcome(request: Request, stored: Stored) -> Outcome:
    """Return the required outcome of a read of ``stored``."""
    fields = {name.lower(): value for name, value in request.fields}
    modified = _date(stored.last_modified)
    assert modified is not None
    if (tags := fields.get("if-match")) is not None:
        if not _lists(tags, stored.etag, weakly=False):
            return Outcome(412)
    elif (since := _date(fields.get("if-unmodified-since"))) is not None and modified > since:
        return Outcome(412)
    if (tags := fields.get("if-none-match")) is not None:
        if _lists(tags, stored.etag, weakly=True):
            return Outcome(304)
    elif (since := _date(fields.get("if-modified-since"))) is not None and modified <= since:
        return Outcome(304)
    asked = fields.get("range")
    if asked is None or not _range_stands(fields.get("if-range"), stored, modified):
        return Outcome(200)
    return _ranged(asked, len(stored.body))


def _ranged(asked: str, size: int) -> Outcome:
    match = _RANGE.fullmatch(asked)
    if match is None:
        return Outcome(200)
    first, last, suffix = (None if group in {None, ""} else int(group) for group in match.groups())
    if suffix is not None:
        start, stop = max(0, size - suffix), size
    else:
        assert first is not None
        if last is not None and last < first:
            return Outcome(200)
        start, stop = first, size if last is None else min(size, last + 1)
    return Outcome(206, f"bytes={start}-{stop - 1}") if start < stop else Outcome(416)


def _range_stands(validator: str | None, stored: Stored, modified: datetime) -> bool:
    if validator is None:
        return True
    return validator == stored.etag if validator.startswith(('"', "W/")) else _date(validator) == modified


def _lists(tags: str, etag: str, *, weakly: bool) -> bool:
    if tags.strip() == "*":
        return True
    own = etag.strip('"')
    return any((quoted or bare) == own and (weakly or not weak) for weak, quoted, bare in _TAG.findall(tags))


def _date(text: str | None) -> datetime | None:
    for form in _DATE_FORMS if text else ():
        try:
            return datetime.strptime(text, form).replace(tzinfo=UTC)
        except ValueError:
            continue
    return None
