"""The control listener withstands callers that send too much, and web pages in a user's browser."""

import asyncio

import pytest

from shadeproxy.api.control.routes import ROUTES

TAKE_BODIES = [route for route in ROUTES if route.body]
NAMES = {"{dataset}": "d", "{job}": "j", "{epoch}": "0", "{bucket}": "b", "{key}": "k"}


def path_of(route) -> str:
    path = route.path
    for name, value in NAMES.items():
        path = path.replace(name, value)
    return path


@pytest.mark.parametrize(
    ("route", "kind"),
    [(route, kind) for route in TAKE_BODIES for kind in route.body],
    ids=lambda value: value if isinstance(value, str) else f"{value.method} {value.path}",
)
async def test_a_body_without_end_is_refused_by_every_call(client, context, route, kind):
    """A body without end would fill the memory of the proxy."""
    sent = 0

    async def body():
        nonlocal sent
        while sent < 1 << 30:
            yield b"1" * (1 << 18)
            sent += 1 << 18
            await asyncio.sleep(0)

    headers = {"Content-Type": kind}
    try:
        async with client.request(route.method, path_of(route), data=body(), headers=headers) as answer:
            status = answer.status
    except (ConnectionError, OSError):
        status = 413  # The listener closed the connection before the body had come.
    assert status in {400, 404, 413}
    assert sent < 300 << 20
    assert (await client.get("/healthz")).status == 200


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_no_answer_lets_a_page_of_another_origin_read_it(client, route):
    headers = {
        "Origin": "http://evil.example",
        "Access-Control-Request-Method": route.method,
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    async with client.request("OPTIONS", path_of(route), headers=headers) as answer:
        assert answer.status >= 400
        assert not [name for name in answer.headers if name.lower().startswith("access-control-")]
    if route.method == "GET":
        async with client.get(path_of(route), headers={"Origin": "http://evil.example"}) as answer:
            assert not [name for name in answer.headers if name.lower().startswith("access-control-")]


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
@pytest.mark.parametrize("route", TAKE_BODIES, ids=lambda route: f"{route.method} {route.path}")
async def test_what_a_form_can_send_without_asking_changes_nothing(client, backend, route, kind):
    """A web page can make a browser send these three content types to any address without a preflight.

    The browser then names the page's origin, and the proxy refuses the call by it.
    """
    async with client.request(
        route.method,
        path_of(route),
        data=b'{"uri": "s3://b/"}',
        headers={"Content-Type": kind, "Origin": "http://evil.example"},
    ) as answer:
        assert answer.status == 403
    assert backend.purges == []


@pytest.mark.parametrize(
    "path",
    [
        "/v1/objects/b/%2e%2e/%2e%2e/%2e%2e/v1/stats",
        "/v1/objects/b/..%2f..%2fstats",
        "/v1/objects/b/k%00",
        "/v1/objects/%2e%2e/stats",
    ],
)
async def test_a_key_is_a_key_whatever_it_looks_like(client, refused, path):
    from yarl import URL

    answer = await client.session.get(URL(f"http://127.0.0.1:{client.port}{path}", encoded=True))
    assert answer.status in {400, 404}
    assert "totals" not in await answer.text()


async def test_long_names_of_jobs_cannot_fill_the_memory(client):
    """A job's name of more than 128 characters is refused, because the proxy keeps names in memory."""
    async with client.put("/v1/jobs/" + "j" * 129, json={"dataset": "d"}) as answer:
        assert answer.status == 400
