"""Attacks of web pages on a listener that asks for no signature: DNS rebinding, and writes from
another site.
"""

import asyncio

import pytest

from shadeproxy.api.s3 import ClientKey, S3Server
from shadeproxy.core.types import ObjectRef
from shadeproxy.origin.base import ForwardResponse
from tests.support.clock import ManualClock
from tests.support.s3.clients import ACCESS, SECRET, signed
from tests.support.s3.lane import Watched, answers, request, talk
from tests.support.s3.lanes import TaskLane
from tests.support.s3.watching import watched

EVIL = "evil.example"
KNOWN = [
    "localhost",
    "localhost:9000",
    "LOCALHOST.",
    "a.localhost:80",
    "127.0.0.1:9000",
    "127.8.9.1",
    "[::1]:9000",
    "[::ffff:127.0.0.1]",
    "s3.local",
    "b.s3.local:9000",
    "S3.Local.",
]
FOREIGN = [
    EVIL,
    "evil.example:9000",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "notlocalhost",
    "0.0.0.0",
    "10.0.0.1",
    "[::]",
    "[fe80::1]",
    "s3.local.evil.example",
    "xs3.local",
    "a@localhost",
    "localhost:x",
    "[::1",
    "127.1",
    "",
    "localhost, evil.example",
]


def read(target, host, *fields, close=True):
    return request(target, *fields, close=close).replace(b"Host: s3.local", f"Host: {host}".encode())


def status_of(answer):
    return int(answer[9:12])


@pytest.fixture(params=["fast", "task"])
async def port(request, make_proxy, compiled):
    """Yield the port of a warm proxy with anonymous access and no clients, once for each lane."""
    proxy = await make_proxy(lane=Watched, clients=(), compiled=compiled, base_domains=("s3.local",))
    proxy.origin.put("b", "k", b"secret")
    await proxy.get("/b/k")
    if request.param == "fast":
        yield proxy.port
        return
    server = S3Server(
        proxy.handler, TaskLane(proxy.engine, proxy.handler, clock=proxy.clock, jobs=proxy.seen)
    )
    yield (await server.listen("127.0.0.1", 0))[1]
    await server.shutdown(1.0)


@pytest.mark.parametrize("host", KNOWN)
async def test_names_of_this_machine_and_of_the_settings_are_served(port, host):
    target = "/k" if host.startswith("b.") else "/b/k"
    answer = await talk(port, read(target, host))
    assert status_of(answer) == 200, answer
    assert answer.endswith(b"\r\n\r\nsecret")


@pytest.mark.parametrize("host", FOREIGN)
async def test_a_foreign_name_is_refused_and_the_setting_named(port, host):
    answer = await talk(port, read("/b/k", host))
    assert status_of(answer) == 403, answer
    assert b"secret" not in answer
    assert b"add the name to s3.domains, or sign as one of [[auth.clients]]" in answer


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/"),
        ("GET", "/b"),
        ("GET", "/b/none"),
        ("HEAD", "/b/k"),
        ("PUT", "/b/k"),
        ("DELETE", "/b/k"),
        ("POST", "/b?delete"),
        ("OPTIONS", "/b/k"),
        ("GET", "/b/k?versionId=1"),
    ],
)
async def test_every_call_under_a_foreign_name_is_refused(port, method, target):
    data = read(target, EVIL, "Content-Length: 0").replace(b"GET", method.encode(), 1)
    assert status_of(await talk(port, data)) == 403


async def test_no_host_at_all_is_refused(port):
    data = b"GET /b/k HTTP/1.0\r\n\r\n"
    assert status_of(await talk(port, data)) in {400, 403}


async def test_what_is_remembered_under_one_name_answers_under_no_other(make_proxy, compiled):
    """A request under a foreign Host is refused, even if the request cache knows the rest of its bytes."""
    proxy = await make_proxy(lane=Watched, clients=(), compiled=compiled, base_domains=("good.example",))
    proxy.origin.put("b", "k", b"secret")
    invocation = "amz-sdk-invocation-id: 6d0a4f5c-5b0e-4f3f-b9c5-000000000001"
    for extra in ((), ("Range: bytes=0-1",), (invocation,), (invocation, "range: bytes=0-1")):
        good, evil = (
            read("/b/k", host, *extra, close=False) for host in ("good.example:9000", "evil.example:9000")
        )
        for _ in range(3):
            await talk(proxy.port, good, count=1)
        before = proxy.lane.known
        assert status_of(await talk(proxy.port, good, count=1)) in {200, 206}
        assert proxy.lane.known == before + 1, "it was to come from memory"
        for _ in range(3):
            assert status_of(await talk(proxy.port, evil, count=1)) == 403
        assert proxy.lane.known == before + 1
        # On one connection, a foreign Host follows a hit.
        found = answers(await talk(proxy.port, good + evil + good, count=3))
        assert [status_of(head) for head, _ in found] in ([200, 403, 200], [206, 403, 206])


async def test_a_name_that_is_no_longer_known_is_forgotten(make_proxy, compiled):
    """After a reload that ends anonymous access, the request cache no longer answers unsigned requests."""
    proxy = await make_proxy(lane=Watched, clients=(), compiled=compiled)
    proxy.origin.put("b", "k", b"secret")
    for _ in range(3):
        await talk(proxy.port, read("/b/k", "localhost", close=False), count=1)
    proxy.handler._authenticator.adopt((ClientKey(ACCESS, SECRET),), anonymous=False)
    proxy.lane.forget(remembers=True)
    assert status_of(await talk(proxy.port, read("/b/k", "localhost", close=False), count=1)) == 403


async def test_a_signature_is_served_under_every_name(make_proxy, compiled):
    """A signed request is served under every Host, because a web page cannot sign.

    Unsigned requests to the same proxy are anonymous, and only served under a known Host.
    """
    proxy = await make_proxy(lane=Watched, compiled=compiled, clock=ManualClock(), base_domains=())
    proxy.origin.put("b", "k", b"secret")
    for _ in range(3):
        now_s = proxy.clock.now_s()
        data = signed("/b/k", key=ACCESS, secret=SECRET, now_s=now_s)  # signed for Host: s3.local
        assert status_of(await talk(proxy.port, data, count=1)) == 200
        assert status_of(await talk(proxy.port, read("/b/k", "s3.local"))) == 403
        stranger = signed("/b/k", key="nobody", secret="x", now_s=now_s)
        assert status_of(await talk(proxy.port, stranger, count=1)) == 403
    assert status_of(await talk(proxy.port, read("/b/k", "localhost"))) == 200


async def test_a_preflight_is_about_a_request_that_a_client_may_sign(make_proxy):
    anonymous_proxy, engine = await watched(make_proxy, base_domains=())
    engine.answer = ForwardResponse(200, (("Access-Control-Allow-Origin", "http://a.example"),), nothing())
    data = read("/b/k", "s3.example", "Origin: http://a.example", "Access-Control-Request-Method: PUT")
    assert status_of(await anonymous_proxy.raw(data.replace(b"GET", b"OPTIONS", 1))) == 200


async def nothing():
    for piece in ():
        yield piece


# ---------------------------------------------------------------------- writes from another site

CROSS = [
    ("Origin: http://evil.example",),
    ("Origin: null",),
    ("Origin: http://localhost:3000", "Sec-Fetch-Site: same-site"),
    ("Sec-Fetch-Site: cross-site",),
    ("sec-fetch-site: same-site",),
    ("Origin: http://localhost", "Sec-Fetch-Site: cross-site"),
]
WRITES = [
    ("PUT", "/b/k", b"new"),
    ("POST", "/b?delete", b"<Delete><Object><Key>k</Key></Object></Delete>"),
    ("POST", "/b/k?uploads", b""),
    ("DELETE", "/b/k", b""),
    ("DELETE", "/b", b""),
    ("PUT", "/new", b""),
    ("POST", "/b/k?restore", b""),
]


def write(method, target, body, *fields):
    head = read(target, "localhost", f"Content-Length: {len(body)}", *fields)
    return head.replace(b"GET", method.encode(), 1) + body


@pytest.mark.parametrize("fields", CROSS, ids=" ".join)
@pytest.mark.parametrize(("method", "target", "body"), WRITES, ids=lambda value: str(value)[:12])
async def test_a_page_of_another_site_writes_nothing(make_proxy, fields, method, target, body):
    proxy = await make_proxy(clients=())
    proxy.origin.put("b", "k", b"old")
    await proxy.get("/b/k")
    answer = await proxy.raw(write(method, target, body, *fields))
    assert status_of(answer) == 403, answer
    assert b"let this site write in the CORS rules of the bucket" in answer
    assert proxy.origin.buckets.keys() == {"b"}
    assert proxy.origin.buckets["b"]["k"].body == b"old"
    assert (await proxy.get("/b/k")).endswith(b"old")


async def test_what_is_no_page_of_another_site_writes_as_before(make_proxy):
    proxy = await make_proxy(clients=())
    proxy.origin.put("b", "k", b"old")
    for fields in (
        (),
        ("Sec-Fetch-Site: none",),
        ("Origin: http://localhost", "Sec-Fetch-Site: same-origin"),
    ):
        body = repr(fields).encode()
        assert status_of(await proxy.raw(write("PUT", "/b/k", body, *fields))) == 200
        assert proxy.origin.buckets["b"]["k"].body == body


ALLOWED = [
    ("Access-Control-Allow-Origin", "http://app.example"),
    ("Access-Control-Allow-Methods", "GET, PUT"),
]


@pytest.mark.parametrize(
    ("status", "headers", "is_let"),
    [
        (200, ALLOWED, True),
        (200, [("access-control-allow-origin", "*"), ("access-control-allow-methods", "PUT")], True),
        (200, ALLOWED[:1], False),
        (200, [ALLOWED[0], ("Access-Control-Allow-Methods", "GET, PUTT")], False),
        (200, [("Access-Control-Allow-Origin", "http://other.example"), ALLOWED[1]], False),
        (200, [], False),
        (403, ALLOWED, False),
    ],
)
async def test_the_bucket_s_own_rules_may_let_a_site_write(make_proxy, status, headers, is_let):
    proxy, engine = await watched(make_proxy, clients=())
    engine.answer = ForwardResponse(status, tuple(headers), nothing())
    answer = await proxy.raw(write("PUT", "/b/d/k", b"new", "Origin: http://app.example"))
    asked = engine.requests[0]
    assert (asked.method, asked.ref, asked.raw_path, asked.body) == (
        "OPTIONS",
        ObjectRef("b", ""),
        "/b",
        None,
    )
    assert dict(asked.headers) == {
        "Origin": "http://app.example",
        "Access-Control-Request-Method": "PUT",
    }
    assert [one.method for one in engine.requests[1:]] == (["PUT"] if is_let else [])
    assert status_of(answer) == (status if is_let else 403)
    assert ("enter", (ObjectRef("b", "d/k"),)) in engine.events if is_let else engine.events == ["forward"]


async def test_a_signed_write_needs_no_leave_of_the_site(make_proxy):
    proxy, engine = await watched(make_proxy, clock=None)
    client = proxy.boto()

    def from_a_page():
        client.meta.events.register(
            "before-send.s3", lambda request, **_: request.headers.update(Origin="http://evil.example")
        )
        client.put_object(Bucket="b", Key="k", Body=b"new")

    await asyncio.to_thread(from_a_page)
    assert proxy.origin.buckets["b"]["k"].body == b"new"
    assert [one.method for one in engine.requests] == ["PUT"]
