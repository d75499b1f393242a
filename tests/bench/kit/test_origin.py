"""The answers of the origins of long runs: whole objects, ranges, conditions, and bodies that end too
early.
"""

import asyncio

import pytest

from shadeproxy_bench.reliability.kit.exchanges import Exchange, begin_object, pieces_of
from shadeproxy_bench.reliability.kit.link import Link
from shadeproxy_bench.reliability.kit.origin import OriginConnection, answer_of, object_of

BODY, TAG = b"0123456789", '"tag"'


def asked(**fields):
    """Return status, header fields and body of the answer to a GET. The body is None if the answer
    has none.
    """
    method = fields.pop("method", "GET")
    head, *body = object_of(
        method, fields.pop("body", BODY), TAG, {n.replace("_", "-"): v for n, v in fields.items()}
    )
    first, *lines = head.decode().removesuffix("\r\n\r\n").split("\r\n")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in lines), *body, None


@pytest.mark.parametrize(
    ("fields", "status", "body", "span"),
    [
        ({}, 200, BODY, None),
        ({"range": "bytes=2-4"}, 206, b"234", "bytes 2-4/10"),
        ({"range": "bytes=7-"}, 206, b"789", "bytes 7-9/10"),
        ({"range": "bytes=7-99"}, 206, b"789", "bytes 7-9/10"),
        ({"range": "bytes=-3"}, 206, b"789", "bytes 7-9/10"),
        ({"range": "bytes=-99"}, 206, BODY, "bytes 0-9/10"),
        ({"if_match": TAG, "range": "bytes=0-0"}, 206, b"0", "bytes 0-0/10"),
        ({"body": b""}, 200, b"", None),
    ],
)
def test_an_object_is_answered_whole_or_one_range(fields, status, body, span):
    found, head, got, *_ = asked(**fields)
    assert (found, got, head.get("Content-Range")) == (status, body, span)
    assert head["Content-Length"] == str(len(body))
    assert head["ETag"] == TAG
    assert asked(method="HEAD", **fields) == (found, head, None)


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"range": "bytes=10-12"}, 416, b"InvalidRange"),
        ({"range": "bytes=0-", "body": b""}, 416, b"InvalidRange"),
        ({"if_match": '"other"'}, 412, b"PreconditionFailed"),
    ],
)
def test_a_refusal_names_its_code(fields, status, code):
    found, head, body, *_ = asked(**fields)
    assert found == status
    assert b"<Code>" + code + b"</Code>" in body
    assert "ETag" not in head


async def test_an_upload_that_ends_early_is_no_upload():
    reader = asyncio.StreamReader()
    reader.feed_data(b"abc")
    reader.feed_eof()
    coming = pieces_of(Exchange("PUT", "/", {"content-length": "4"}, reader, None), 2)
    assert [await anext(coming), await anext(coming)] == [b"ab", b"c"]
    with pytest.raises(ConnectionResetError):
        await anext(coming)


def test_the_head_of_a_streamed_object_names_what_follows():
    class Out:
        written = b""

        def write(self, data):
            self.written += data

    out = Out()
    assert begin_object(out, "bytes=5-", 8, TAG) == (5, 8)
    assert b"206 Partial Content" in out.written
    assert b"Content-Length: 3\r\n" in out.written
    assert b"Content-Range: bytes 5-7/8\r\n" in out.written


async def test_an_answer_without_a_body_leaves_the_connection_for_the_next():
    class Connection(OriginConnection):
        def answer(self, method, _target, _fields, body):
            if method == "DELETE":
                return [b"HTTP/1.1 204 No Content\r\n\r\n"]
            return answer_of("200 OK", body, {})

    server = await asyncio.get_running_loop().create_server(lambda: Connection(0.0), "127.0.0.1", 0)
    link = Link(server.sockets[0].getsockname())

    def ask():
        link.send(b"DELETE / HTTP/1.1\r\n\r\nPUT / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody")
        return link.receive().status, link.receive().document

    assert await asyncio.to_thread(ask) == (204, b"body")
    link.close()
    server.close()
