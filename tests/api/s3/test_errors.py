"""Every class of errors has a row in the table, and an error becomes the S3 error answer of its row."""

import re
from xml.etree.ElementTree import fromstring

import pytest

from shadeproxy.api.s3.errors import TABLE, answer_error
from shadeproxy.api.s3.semantics import answer_read, conditions_of
from shadeproxy.core import errors
from shadeproxy.core.types import ObjectMeta
from shadeproxy.origin.s3ops.store import precondition_failed


def tree(root):
    """Yield the error classes of core/errors.py. Classes that a listener defines for itself are left out."""
    yield root
    for below in root.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from tree(below)


def make(kind):
    if kind is errors.RangeNotSatisfiable:
        return kind(10)
    if kind is errors.OriginAnswer:
        return kind(404, "NoSuchKey", "The key <k> is not there", headers=(("x-amz-id-2", "theirs"),))
    return kind("what & why")


@pytest.mark.parametrize("kind", sorted(set(tree(errors.ShadeProxyError)), key=lambda kind: kind.__name__))
def test_every_class_has_a_row_and_a_well_formed_answer(kind):
    assert kind in TABLE, f"{kind.__name__} needs a row in shadeproxy/api/s3/errors.py"
    answer = answer_error(make(kind), resource="/b/k&", request_id="R1")
    root = fromstring(answer.body)
    assert root.tag == "Error"
    assert root.findtext("Code") == answer.code
    assert (root.findtext("Resource"), root.findtext("RequestId")) == ("/b/k&", "R1")
    assert root.findtext("Message")
    assert root.findtext("HostId")
    assert 400 <= answer.status < 600


def test_the_table_holds_nothing_that_is_not_in_the_tree():
    assert set(TABLE) == set(tree(errors.ShadeProxyError))


def test_what_went_wrong_inside_is_not_told():
    for kind in (errors.TierError, errors.ConfigError, errors.StateError, errors.PeerError, errors.LostBlob):
        assert b"secret" not in answer_error(kind("secret path"), resource="/", request_id="R").body


def test_what_may_succeed_later_says_when():
    answer = answer_error(errors.Overloaded("full", retry_after_s=7), resource="/", request_id="R")
    assert (answer.status, answer.code) == (503, "SlowDown")
    assert ("Retry-After", "7") in answer.headers
    for kind in (errors.OriginUnavailable, errors.OriginThrottled, errors.ShuttingDown, errors.BodyCutShort):
        answer = answer_error(kind("later"), resource="/", request_id="R")
        assert answer.status == 503
        assert "Retry-After" in dict(answer.headers)
    assert [kind for kind, row in TABLE.items() if row.status == 503 and row.retry_after_s is None] == []


@pytest.mark.parametrize(
    ("status", "code"), [(404, "NoSuchKey"), (403, "AccessDenied"), (412, "PreconditionFailed")]
)
def test_an_error_that_only_a_head_has_shown_gets_the_code_of_s3(status, code):
    answer = answer_error(errors.OriginAnswer(status, ""), resource="/b/k", request_id="R")
    root = fromstring(answer.body)
    assert (answer.status, answer.code, root.findtext("Code")) == (status, code, code)
    assert root.findtext("Message")


def test_an_origins_answer_passes_and_a_hint_is_told():
    answer = answer_error(
        errors.OriginAnswer(
            403, "AccessDenied", "No", headers=(("x-amz-id-2", "theirs"), ("Content-Length", "9"))
        ),
        resource="/",
        request_id="R",
    )
    assert (answer.status, answer.code, answer.headers) == (403, "AccessDenied", (("x-amz-id-2", "theirs"),))
    answer = answer_error(errors.InvalidRequest("bad", hint="do this"), resource="/", request_id="R")
    assert b"<Message>bad: do this</Message>" in answer.body
    answer = answer_error(errors.RangeNotSatisfiable(10), resource="/", request_id="R")
    assert ("Content-Range", "bytes */10") in answer.headers
    assert b"<ActualObjectSize>10</ActualObjectSize>" in answer.body
    odd = errors.InvalidRequest("a\x01b\ud800c\ufffed\U0010ffff")
    shown = fromstring(answer_error(odd, resource="/", request_id="R").body).findtext("Message")
    assert shown == "a\ufffdb\ufffdc\ufffdd\U0010ffff"


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/nobucket?list-type=2", 404),
        ("PUT", "/nobucket/k", 404),
        ("GET", "/b/k?uploadId=zz", 404),
        ("DELETE", "/full", 409),
        ("GET", "/b/none", 404),
        ("GET", "/b?acl", 501),
    ],
)
async def test_every_error_document_names_its_request(proxy, method, target, status):
    proxy.origin.put("b", "k", b"x")
    proxy.origin.put("full", "k", b"x")
    answer = await proxy.get(target, method=method)
    assert answer.startswith(b"HTTP/1.1 %d" % status)
    (sent,) = re.findall(rb"x-amz-request-id: (\w+)", answer)
    (told,) = re.findall(rb"<RequestId>(\w*)</RequestId>", answer)
    assert told == sent
    resource = target.partition("?")[0].encode()
    assert re.search(
        rb"<Error><Code>\w+</Code><Message>[^<]+</Message>.*<Resource>%s</Resource>" % resource, answer
    )


def test_a_failed_condition_has_the_words_of_s3_whoever_finds_it():
    conditions = conditions_of({"if-match": '"x"'})
    with pytest.raises(errors.OriginAnswer) as of_the_cache:
        answer_read(ObjectMeta('"e"', 1), method="GET", range_field=None, conditions=conditions)
    for error in (of_the_cache.value, precondition_failed(), errors.OriginAnswer(412, "")):
        root = fromstring(answer_error(error, resource="/", request_id="R").body)
        assert root.findtext("Code") == "PreconditionFailed"
        assert root.findtext("Message") == "At least one of the pre-conditions you specified did not hold"
