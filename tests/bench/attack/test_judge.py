"""Conversations of the smuggling attack are judged: each planted fault is found, and a right one has none."""

from dataclasses import replace
from random import Random

import pytest

from shadeproxy_bench.reliability.attack.judge import Heard, are_all_whole, judge
from shadeproxy_bench.reliability.attack.origin import Asked, content, parse, tag_of
from shadeproxy_bench.reliability.attack.rows import ALL, CLEAN, ODD
from shadeproxy_bench.reliability.attack.sent import build
from shadeproxy_bench.reliability.attack.smuggling import plans, segments
from shadeproxy_bench.reliability.attack.wire import Ending, Received

OWN = b"x-amz-request-id: 1\r\nx-shade-cache: bypass\r\nDate: now\r\n"
REFUSAL = b"<Error><Code>InvalidRequest</Code></Error>"
HOST = "127.0.0.1:1"


def sent_of(*names):
    return [build(ALL[name], "c000001", turn, HOST, Random(7)) for turn, name in enumerate(names)]


def asked_of(one):
    fields = [("host", HOST), *(("x-amz-meta-own", own) for own in one.own)]
    return Asked(b"", one.method, one.target, fields, one.body, is_whole=True)


def answer(status, body=b"", *fields):
    head = [b"HTTP/1.1 %d Text" % status, b"Content-Length: %d" % len(body), *fields]
    return b"\r\n".join(head) + b"\r\n" + OWN + b"\r\n" + body


def success(one):
    if one.method == "GET":
        return answer(200, content(one.target))
    return answer(200, b"", b"ETag: " + tag_of(one.body).encode())


def refusal(*fields):
    return answer(400, REFUSAL, *fields)


def faults(sent, asked, data, ending=Ending.OPEN, afterwards=None):
    """``afterwards``: how the connection ended once the client had closed its side; None: it did not."""
    heard = Heard(Received(data, ending), afterwards is not None, afterwards or Ending.OPEN)
    return "\n".join(judge(sent, asked, heard).faults)


UPLOADS = sent_of("upload", "upload of nothing", "read")
ASKED = [asked_of(one) for one in UPLOADS]
ANSWERS = [success(one) for one in UPLOADS]


def test_a_right_conversation_has_no_fault():
    assert faults(UPLOADS, ASKED, b"".join(ANSWERS)) == ""
    assert are_all_whole(UPLOADS, b"".join(ANSWERS))
    assert not are_all_whole(UPLOADS, b"".join(ANSWERS)[:-1])


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ([replace(ASKED[0], body=b"other"), *ASKED[1:]], "has the body b'other'"),
        ([replace(ASKED[0], target="/attack/c000001-0?x"), *ASKED[1:]], "has the target"),
        ([replace(ASKED[0], method="POST"), *ASKED[1:]], "became a POST"),
        ([replace(ASKED[0], fields=[]), *ASKED[1:]], "has the field []"),
        ([replace(ASKED[0], fields=ASKED[1].fields), *ASKED[1:]], "has the field ['own-c000001-1']"),
        (
            [replace(ASKED[0], fields=[*ASKED[0].fields, ("x-a", "own-c000001-1")]), *ASKED[1:]],
            "another request's",
        ),
        ([ASKED[0], *ASKED], "was carried out 2 times"),
        ([ASKED[1], ASKED[0], ASKED[2]], "was carried out after request 1"),
        ([*ASKED, replace(ASKED[0], target="/attack/c000001-99")], "a request that no client sent"),
        (ASKED[1:], "the origin did not get it"),
        ([replace(ASKED[0], is_whole=False), *ASKED[1:]], "the origin did not get it"),
    ],
)
def test_a_wrong_request_at_the_origin_is_found(asked, text):
    assert text in faults(UPLOADS, asked, b"".join(ANSWERS))


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ([*ANSWERS, ANSWERS[0]], "and more answers"),
        ([ANSWERS[1], ANSWERS[0], ANSWERS[2]], "got the answer of another request"),
        ([ANSWERS[0], ANSWERS[1], answer(200, b"x" * 1000)], "got wrong bytes"),
        ([refusal(), *ANSWERS[1:]], "which is right, was answered 400"),
        ([answer(500, REFUSAL), *ANSWERS[1:]], "was answered 500"),
        (
            [
                answer(200, b"", b"Connection: close", b"ETag: " + tag_of(UPLOADS[0].body).encode()),
                *ANSWERS[1:],
            ],
            "behind an answer that ends",
        ),
        ([ANSWERS[0], b"nonsense"], "bytes that are no answer"),
        (ANSWERS[:2], "which is right, got no answer"),
        ([*ANSWERS[:2], ANSWERS[2][:-1]], "got a part of its answer"),
    ],
)
def test_a_wrong_answer_is_found(answers, text):
    assert text in faults(UPLOADS, ASKED, b"".join(answers))


def test_a_request_that_must_not_be_carried_out_may_only_be_refused():
    sent = sent_of("lengths that differ", "upload")
    assert faults(sent, [], refusal(b"Connection: close"), Ending.CLOSED) == ""
    assert "was carried out" in faults(
        sent, [asked_of(sent[0])], refusal(b"Connection: close"), Ending.CLOSED
    )
    # Nothing behind it may be carried out, because nobody knows where it ends.
    told = faults(sent, [asked_of(sent[1])], refusal() + success(sent[1]))
    assert "request 1 (upload) was carried out, behind 'lengths that differ'" in told


def test_a_request_of_doubtful_form_may_be_carried_out_as_meant_or_be_refused():
    sent = sent_of("folded value", "upload")
    behind = refusal() + success(sent[1])
    assert faults(sent, [asked_of(sent[1])], behind) == ""
    both = [asked_of(one) for one in sent]
    assert faults(sent, both, b"".join(map(success, sent))) == ""
    other = replace(both[0], body=sent[0].body[:-1])
    assert "has the body" in faults(sent, [other, both[1]], b"".join(map(success, sent)))


def test_a_connection_that_neither_goes_on_nor_ends_is_found():
    sent = sent_of("no size", "upload")
    assert "neither goes on nor ends" in faults(sent, [], b"", afterwards=Ending.CLOSED)
    assert "though the client has closed" in faults(sent, [], b"", afterwards=Ending.OPEN)
    # The proxy may wait for the end of a head that it cannot see.
    hidden = sent_of("bare LF everywhere")
    assert faults(hidden, [], b"", afterwards=Ending.CLOSED) == ""


@pytest.mark.parametrize("row", [*CLEAN, *ODD], ids=lambda row: row.name)
def test_each_row_makes_the_same_request_each_time(row):
    first, again, other = (build(row, "c000001", 0, HOST, Random(seed)) for seed in (1, 1, 2))
    assert first == again
    assert ("{evil}" in row.template) == (first.wire != other.wire) or "{" in row.template
    assert b"{" not in first.wire
    assert b"|" not in first.wire


@pytest.mark.parametrize("row", CLEAN, ids=lambda row: row.name)
def test_clean_requests_are_as_strict_as_those_of_the_proxy(row):
    one = build(row, "c000001", 0, HOST, Random(1))
    head, _, body = one.wire.partition(b"\r\n\r\n")
    asked = parse(head + b"\r\n\r\n")
    assert (asked.method, asked.target) == (one.method, one.target)
    assert asked.values("x-amz-meta-own") == one.own
    if asked.values("content-length"):
        assert int(asked.values("content-length")[0]) == len(body) == len(one.body)


def test_a_seed_makes_the_same_plans_and_segments():
    first, again, other = (
        [(plan.name, plan.how) for plan, _ in zip(plans(Random(seed)), range(2000), strict=False)]
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    wires = [b"GET / HTTP/1.1\r\n\r\n", b"more"]
    for how in ("whole", "bytes", "random", 3):
        cut = segments(wires, how, Random(1))
        assert b"".join(cut) == b"".join(wires)
        assert all(cut)
    assert segments(wires, 100, Random(1)) is None
