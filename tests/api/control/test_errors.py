import pytest
import structlog
from aiohttp import ServerDisconnectedError, web
from aiohttp.test_utils import TestClient, TestServer

from shadeproxy.api.control.errors import STATUS, answer_error, translate_errors
from shadeproxy.core.errors import (
    InvalidRequest,
    OriginAnswer,
    Overloaded,
    RangeNotSatisfiable,
    ShadeProxyError,
)

BUG = "the proxy failed; its log has the details"


def tree(kind=ShadeProxyError):
    if kind.__module__ == ShadeProxyError.__module__:  # Other errors belong to the S3 listener.
        yield kind
    for child in kind.__subclasses__():
        yield from tree(child)


@pytest.mark.parametrize("kind", sorted(set(tree()), key=lambda kind: kind.__name__))
def test_every_error_class_has_a_row(kind):
    assert kind in STATUS


@pytest.mark.parametrize("kind", list(STATUS))
def test_every_row_makes_an_answer(kind):
    if kind is RangeNotSatisfiable:
        error = kind(3)
    elif kind is OriginAnswer:
        error = kind(404, "NoSuchKey")
    else:
        error = kind("what happened")
    answer = answer_error(error)
    assert answer.status == STATUS[kind][0]
    assert ("Retry-After" in answer.headers) == (answer.status == 503)


def test_overloaded_says_when_to_come_back():
    assert answer_error(Overloaded("full", retry_after_s=7)).headers["Retry-After"] == "7"


def test_the_hint_is_told():
    assert b'"hint":"change this"' in answer_error(InvalidRequest("no", hint="change this")).body


async def test_a_bug_is_told_without_its_details():
    async def broken(_request):
        raise RuntimeError("secret detail")

    app = web.Application(middlewares=[translate_errors])
    app.router.add_get("/", broken)
    with structlog.testing.capture_logs() as lines:
        async with TestClient(TestServer(app)) as client:
            answer = await client.get("/?X-Amz-Signature=abc")
            body = await answer.json()
    assert answer.status == 500
    assert body == {"error": {"code": "internal", "message": BUG, "hint": ""}}
    assert [(line["event"], line["path"]) for line in lines] == [("control call failed", "/")]
    assert "abc" not in str(lines)


async def test_a_caller_that_hangs_up_before_the_answer_begins_is_no_failure_of_ours():
    """Such a caller causes no line in the log. For example, a training process is killed while the proxy
    prepares its batch.
    """

    async def late(request):
        request.transport.close()
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        return response

    app = web.Application(middlewares=[translate_errors])
    app.router.add_get("/", late)
    with structlog.testing.capture_logs() as lines:
        async with TestClient(TestServer(app)) as client:
            with pytest.raises(ServerDisconnectedError):
                await client.get("/")
    assert lines == []
