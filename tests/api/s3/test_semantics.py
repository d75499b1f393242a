"""Cached reads answer ranges and conditions as RFC 9110 and the S3 page of GetObject say."""

import pytest

from shadeproxy.api.s3.semantics import answer_read
from shadeproxy.core.conditions import Conditions
from shadeproxy.core.errors import OriginAnswer, RangeNotSatisfiable
from shadeproxy.core.types import ObjectMeta, Span

MODIFIED = "Wed, 21 Oct 2015 07:28:00 GMT"
EARLIER = "Wed, 21 Oct 2015 07:27:59 GMT"
META = ObjectMeta(
    '"e"',
    10,
    (
        ("Content-Type", "text/x"),
        ("Last-Modified", MODIFIED),
        ("x-amz-meta-A", "v"),
        ("x-amz-checksum-crc32", "AAAA"),
        ("x-amz-checksum-type", "FULL_OBJECT"),
        ("Cache-Control", "no-transform"),
    ),
)
EMPTY = ObjectMeta('"z"', 0, (("Last-Modified", MODIFIED),))


def read(meta=META, *, method="GET", range_field=None, checksums=False, **conditions):
    return answer_read(
        meta,
        method=method,
        range_field=range_field,
        conditions=Conditions(**conditions),
        checksums=checksums,
    )


@pytest.mark.parametrize(
    ("range_field", "status", "span", "content_range"),
    [
        (None, 200, Span(0, 10), None),
        ("bytes=0-3", 206, Span(0, 4), "bytes 0-3/10"),
        ("bytes=9-", 206, Span(9, 10), "bytes 9-9/10"),
        ("bytes=-4", 206, Span(6, 10), "bytes 6-9/10"),
        ("bytes=-400", 206, Span(0, 10), "bytes 0-9/10"),
        ("bytes=0-400", 206, Span(0, 10), "bytes 0-9/10"),
        ("bytes=5-4", 200, Span(0, 10), None),
        ("bytes=0-1,3-4", 200, Span(0, 10), None),
        ("lines=0-1", 200, Span(0, 10), None),
    ],
)
def test_ranges(range_field, status, span, content_range):
    answer = read(range_field=range_field)
    fields = dict(answer.headers)
    assert (answer.status, answer.body) == (status, span)
    assert fields.get("Content-Range") == content_range
    assert fields["Content-Length"] == str(span.length)
    assert (fields["ETag"], fields["Accept-Ranges"], fields["x-amz-meta-A"]) == ('"e"', "bytes", "v")


@pytest.mark.parametrize(
    ("meta", "range_field"),
    [(META, "bytes=10-"), (META, "bytes=-0"), (EMPTY, "bytes=0-"), (EMPTY, "bytes=-1")],
)
def test_ranges_beyond_the_end(meta, range_field):
    with pytest.raises(RangeNotSatisfiable) as caught:
        read(meta, range_field=range_field)
    assert caught.value.size_bytes == meta.size


def test_a_head_answers_as_its_get_would_without_the_body():
    for range_field in (None, "bytes=2-3"):
        get, head = read(range_field=range_field), read(method="HEAD", range_field=range_field)
        assert head == get._replace(body=Span(0, 0))


@pytest.mark.parametrize(
    ("conditions", "status"),
    [
        ({"if_match": '"e"'}, 200),
        ({"if_match": "e"}, 200),
        ({"if_match": "*"}, 200),
        ({"if_match": '"x", "e"'}, 200),
        ({"if_match": '"x"'}, 412),
        ({"if_match": 'W/"e"'}, 412),
        ({"if_none_match": '"x"'}, 200),
        ({"if_none_match": '"e"'}, 304),
        ({"if_none_match": 'W/"e"'}, 304),
        ({"if_none_match": "*"}, 304),
        ({"if_modified_since": MODIFIED}, 304),
        ({"if_modified_since": EARLIER}, 200),
        ({"if_modified_since": "not a date"}, 200),
        ({"if_unmodified_since": MODIFIED}, 200),
        ({"if_unmodified_since": EARLIER}, 412),
        # The S3 page names the next two combinations.
        ({"if_match": '"e"', "if_unmodified_since": EARLIER}, 200),
        ({"if_none_match": '"e"', "if_modified_since": EARLIER}, 304),
        ({"if_none_match": '"x"', "if_modified_since": MODIFIED}, 200),
        ({"if_match": '"x"', "if_none_match": '"e"'}, 412),
    ],
)
def test_conditions(conditions, status):
    for method in ("GET", "HEAD"):
        if status == 412:
            with pytest.raises(OriginAnswer) as caught:
                read(method=method, **conditions)
            assert (caught.value.status, caught.value.code) == (412, "PreconditionFailed")
        else:
            assert read(method=method, **conditions).status == status


def test_a_304_carries_validators_and_no_content():
    answer = read(if_none_match='"e"', range_field="bytes=0-1")
    assert answer.body == Span(0, 0)
    assert dict(answer.headers) == {"ETag": '"e"', "Last-Modified": MODIFIED, "Cache-Control": "no-transform"}


def test_conditions_come_before_the_range():
    with pytest.raises(OriginAnswer):
        read(range_field="bytes=99-", if_match='"x"')
    assert read(range_field="bytes=99-", if_none_match='"e"').status == 304


@pytest.mark.parametrize(
    ("if_range", "status"),
    [('"e"', 206), ('"x"', 200), ('W/"e"', 200), (MODIFIED, 206), (EARLIER, 200), ("junk", 200)],
)
def test_if_range(if_range, status):
    assert read(range_field="bytes=0-1", if_range=if_range).status == status
    assert read(range_field="bytes=99-" if status == 200 else "bytes=1-1", if_range=if_range).status == status


def test_whole_object_checksums_only_where_they_are_true_and_asked_for():
    def names(**asked):
        return {name for name, _ in read(**asked).headers if name.startswith("x-amz-checksum-")}

    assert names() == set()
    assert names(checksums=True) == {"x-amz-checksum-crc32", "x-amz-checksum-type"}
    assert names(checksums=True, range_field="bytes=0-9") == set()
