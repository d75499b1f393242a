from dataclasses import replace

import pytest

from shadeproxy.core.conditions import Conditions, Verdict
from shadeproxy.core.types import ObjectMeta

MODIFIED = "Wed, 21 Oct 2026 07:28:00 GMT"
EARLIER, LATER = "Wed, 21 Oct 2026 07:27:59 GMT", "Wed, 21 Oct 2026 07:28:01 GMT"
META = ObjectMeta('"abc"', 10, (("Last-Modified", MODIFIED),))
PROCEED, NOT_MODIFIED, FAILED = Verdict.PROCEED, Verdict.NOT_MODIFIED, Verdict.FAILED


@pytest.mark.parametrize(
    ("conditions", "verdict"),
    [
        ({}, PROCEED),
        ({"if_match": '"abc"'}, PROCEED),
        ({"if_match": "abc"}, PROCEED),
        ({"if_match": '"x", "abc"'}, PROCEED),
        ({"if_match": "*"}, PROCEED),
        ({"if_match": '"x"'}, FAILED),
        ({"if_match": 'W/"abc"'}, FAILED),
        ({"if_none_match": '"abc"'}, NOT_MODIFIED),
        ({"if_none_match": 'W/"abc"'}, NOT_MODIFIED),
        ({"if_none_match": "*"}, NOT_MODIFIED),
        ({"if_none_match": '"x"'}, PROCEED),
        ({"if_modified_since": EARLIER}, PROCEED),
        ({"if_modified_since": MODIFIED}, NOT_MODIFIED),
        ({"if_modified_since": LATER}, NOT_MODIFIED),
        ({"if_modified_since": "yesterday"}, PROCEED),
        ({"if_modified_since": "1 Jan 99999999999999999999 00:00:00 GMT"}, PROCEED),
        ({"if_unmodified_since": "1 Jan 2026 00:00:00 +99999999999999999999"}, PROCEED),
        ({"if_unmodified_since": EARLIER}, FAILED),
        ({"if_unmodified_since": MODIFIED}, PROCEED),
        ({"if_unmodified_since": LATER}, PROCEED),
        # The S3 API page says: if If-Match is true and If-Unmodified-Since is false, the answer is 200.
        ({"if_match": '"abc"', "if_unmodified_since": EARLIER}, PROCEED),
        # The S3 API page also says: if If-None-Match is false and If-Modified-Since is true, the answer is
        # 304.
        ({"if_none_match": '"abc"', "if_modified_since": EARLIER}, NOT_MODIFIED),
        ({"if_none_match": '"x"', "if_modified_since": LATER}, PROCEED),
        ({"if_match": '"x"', "if_none_match": '"abc"'}, FAILED),
    ],
)
def test_verdicts(conditions, verdict):
    assert Conditions(**conditions).evaluate(META) is verdict


@pytest.mark.parametrize(
    ("field", "etag", "matches"),
    [
        ('"a,b"', '"a,b"', True),
        ('"x" , W/"a,b"', '"a,b"', True),
        ('"x,a"', '"a"', False),
        ('"a,x","b"', '"b"', True),
        ("x,a", '"a"', True),
        ("x, a,b", '"b"', True),
    ],
)
def test_an_entity_tag_may_have_a_comma(field, etag, matches):
    verdict = Conditions(if_none_match=field).evaluate(replace(META, etag=etag))
    assert verdict is (NOT_MODIFIED if matches else PROCEED)


@pytest.mark.parametrize(
    ("value", "applies"),
    [
        (None, True),
        ('"abc"', True),
        ('"x"', False),
        ('W/"abc"', False),
        (MODIFIED, True),
        (LATER, False),
        ("?", False),
    ],
)
def test_if_range(value, applies):
    assert Conditions(if_range=value).range_applies(META) is applies
