import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.core.errors import RangeNotSatisfiable
from shadeproxy.core.ranges import RangeSpec, content_range, page_span, pages_of, parse_range
from shadeproxy.core.types import Span


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("bytes=0-0", RangeSpec(0, 0)),
        ("bytes=5-", RangeSpec(5, None)),
        ("bytes=-5", RangeSpec(None, 5)),
        ("Bytes=1-2", RangeSpec(1, 2)),
        ("bytes= 1-2 ", RangeSpec(1, 2)),
        ("bytes=00000000000000000000000000005-", RangeSpec(5, None)),
        ("bytes=99999999999999999999999-", RangeSpec(10**20, None)),
        ("bytes=-99999999999999999999999", RangeSpec(None, 10**20)),
        ("bytes=5-99999999999999999999999", RangeSpec(5, 10**20)),
        # S3 answers these values with the whole object.
        (None, None),
        ("", None),
        ("bytes=-", None),
        ("bytes=2-1", None),
        ("bytes=1" + "0" * 25 + "-1" + "0" * 24, None),
        ("bytes=0001-1", RangeSpec(1, 1)),
        ("bytes=0-1,3-4", None),
        ("items=0-1", None),
        ("bytes=a-b", None),
        ("bytes=0-1x", None),
        ("bytes=" + "9" * 5000 + "-", RangeSpec(10**20, None)),
        ("bytes=٣-٤", None),
    ],
)
def test_parse(field, expected):
    assert parse_range(field) == expected


@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 256))
def test_resolve_agrees_with_slicing(first, last, size):
    body = bytes(range(size)) if size <= 256 else b""
    if first <= last:
        spec = RangeSpec(first, last)
        if first >= size:
            with pytest.raises(RangeNotSatisfiable):
                spec.resolve(size)
        else:
            span = spec.resolve(size)
            assert body[span.start : span.stop] == body[first : last + 1]
    if last:
        span = RangeSpec(None, last).resolve(size)
        assert body[span.start : span.stop] == body[-last:]


@pytest.mark.parametrize(
    ("spec", "size"), [(RangeSpec(None, 0), 9), (RangeSpec(None, 5), 0), (RangeSpec(0, 0), 0)]
)
def test_nothing_to_send_is_416_and_says_the_size(spec, size):
    with pytest.raises(RangeNotSatisfiable, match=f"the object has {size} bytes") as caught:
        spec.resolve(size)
    assert caught.value.size_bytes == size


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(1, 999))
def test_pages_cover_a_span_exactly(start, length, page_size):
    span, size = Span(start, start + length), start + length + 17
    covered = b""
    whole = bytes(n % 251 for n in range(size))
    for number in pages_of(span, page_size):
        page = page_span(number, page_size, size)
        assert page.length <= page_size
        covered += whole[max(page.start, start) : min(page.stop, span.stop)]
    assert covered == whole[start : span.stop]


def test_content_range_is_inclusive():
    assert content_range(Span(0, 10), 100) == "bytes 0-9/100"
