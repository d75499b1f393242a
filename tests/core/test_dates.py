from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.core.dates import parse_http_date


@pytest.mark.parametrize(
    "field", ["Wed, 21 Oct 2026 07:28:00 GMT", "Wednesday, 21-Oct-26 07:28:00 GMT", "21 Oct 2026 09:28 +0200"]
)
def test_a_date_is_a_moment(field):
    assert parse_http_date(field) == datetime(2026, 10, 21, 7, 28, tzinfo=UTC)


@pytest.mark.parametrize(
    "field",
    [
        None,
        "",
        "yesterday",
        "Sat, 30 Feb 2026 07:28:00 GMT",
        "1 Jan 99999999999999999999 00:00:00 GMT",
        "1 Jan 2026 00:00:00 +99999999999999999999",
        "1 Jan 2026 00:00:00 +9999",
        "1 Jan",
        ",,,,",
    ],
)
def test_what_names_no_moment_is_none(field):
    assert parse_http_date(field) is None


@given(st.text() | st.text(alphabet="0123456789 :+-,GMTJanFeb", max_size=60))
def test_no_text_raises(field):
    found = parse_http_date(field)
    assert found is None or found.tzinfo is not None
