"""The judge of answers in a fuzz run: the answers that it accepts, and those that it refuses."""

import hashlib

import pytest

from shadeproxy_bench.reliability.kit.answers import Unreadable, is_whole, next_answer, read_answers

OWN = b"x-amz-request-id: 1\r\nx-shade-cache: ram\r\nDate: now\r\n"
ERROR = b"<Error><Code>A</Code></Error>"


def answer(status, *fields, body=b""):
    return (
        b"HTTP/1.1 %d Some Reason\r\n" % status + OWN + b"".join(f + b"\r\n" for f in fields) + b"\r\n" + body
    )


def sized(status, body, *fields):
    return answer(status, b"Content-Length: %d" % len(body), *fields, body=body)


def statuses(data, *, may_be_head=False):
    return [(one.status, one.whole) for one in read_answers(data, may_be_head=may_be_head)]


def test_answers_follow_each_other():
    tag = b'ETag: "%b"' % hashlib.md5(b"body").hexdigest().encode()
    data = sized(200, b"body", tag) + answer(204) + sized(404, ERROR) + answer(304)
    assert statuses(data) == [(200, True), (204, True), (404, True), (304, True)]
    assert statuses(b"HTTP/1.1 100 Continue\r\n\r\n" + answer(204)) == [(204, True)]
    chunked = answer(200, b"Transfer-Encoding: chunked", body=b"2\r\nab\r\n0\r\n\r\n")
    assert statuses(chunked + answer(204)) == [(200, True), (204, True)]
    assert statuses(chunked[:-5]) == [(200, False)]
    assert statuses(answer(200, b"Connection: close", body=b"to the end")) == [(200, True)]
    assert statuses(sized(206, b"bc", b"Content-Range: bytes 1-2/9")) == [(206, True)]


def test_a_cut_answer_is_told_from_a_whole_one():
    whole = sized(200, b"0123456789")
    assert [statuses(whole[:stop])[0][1] for stop in range(1, len(whole))] == [False] * (len(whole) - 1)
    assert statuses(answer(200, b"Content-Length: 5") + answer(204), may_be_head=True) == [
        (200, True),
        (204, True),
    ]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"nothing", "no answer begins"),
        (b"HTTP/1.1 999 X\r\n\r\n", "no status line"),
        (answer(200, b"no colon"), "no field"),
        (sized(200, b"a", b"Content-Length: 2"), "twice"),
        (answer(200, b"Content-Length: 1", b"Transfer-Encoding: chunked"), "beside"),
        (answer(200, body=b"abc"), "no client can tell"),
        (b"HTTP/1.1 204 X\r\n\r\n", "without x-amz-request-id"),
        (sized(200, b"body", b'ETag: "' + b"0" * 32 + b'"'), "not that of its ETag"),
        (sized(206, b"abc", b"Content-Range: bytes 1-2/9"), "of 3 bytes"),
        (sized(400, b"<Error>\xff</Error>"), "no XML"),
        (sized(400, b"<Error/>"), "names no code"),
        (sized(204, b"abc"), "no answer begins"),
        (answer(200, b"Transfer-Encoding: chunked", body=b"1\r\nabc\r\n"), "longer than it says"),
    ],
)
def test_what_contradicts_itself_is_refused(data, text):
    with pytest.raises(Unreadable, match=text):
        list(read_answers(data, may_be_head=False))


def made(head, body=b"", *, status=b"200 OK"):
    own = b"x-amz-request-id: 1\r\nx-shade-cache: ram\r\nDate: now\r\n"
    return b"HTTP/1.1 " + status + b"\r\n" + head + own + b"\r\n" + body


@pytest.mark.parametrize(
    ("data", "method", "status", "body", "rest"),
    [
        (made(b"Content-Length: 4\r\n", b"body") + b"more", b"GET", 200, b"body", b"more"),
        (made(b"Content-Length: 4\r\n") + b"more", b"HEAD", 200, None, b"more"),
        (made(b"", status=b"204 No Content") + b"more", b"DELETE", 204, None, b"more"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + made(b"Content-Length: 0\r\n"), b"PUT", 200, b"", b""),
        (made(b"Transfer-Encoding: chunked\r\n", b"4\r\nbody\r\n0\r\n\r\n"), b"GET", 200, b"body", b""),
    ],
)
def test_the_next_answer_is_that_to_its_request(data, method, status, body, rest):
    answer, behind = next_answer(data, method)
    assert (answer.status, answer.body, answer.whole, behind) == (status, body, True, rest)
    assert is_whole(data, method)
    assert not is_whole(data[: data.index(b"\r\n\r\n")], method)


@pytest.mark.parametrize(
    ("data", "whole"),
    [
        (made(b"Content-Length: 4\r\n", b"bod"), False),
        (made(b"Transfer-Encoding: chunked\r\n", b"3\r\nbod\r\n"), False),
        (made(b"Transfer-Encoding: chunked\r\n", b"3\r\nbo"), False),
        (made(b"Connection: close\r\n", b"bod"), False),
        (b"", False),
        (b"nonsense", True),
    ],
)
def test_an_answer_is_whole_when_nothing_more_can_come(data, whole):
    assert is_whole(data, b"GET") is whole
