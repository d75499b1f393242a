"""The request cache forgets a request head when a reload changes the client or the upstream behind it.

In each test, a client sends the same bytes again and again on one connection, which stays open during
reloads.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from aiohttp import web

from shadeproxy.api.s3 import COMPILED, compiled
from shadeproxy.app.proxy import Proxy
from shadeproxy.config import Settings
from shadeproxy.core.sigv4 import EMPTY_SHA256, Credentials, sign_request

HEAD = """
[origin.credentials]
access_key_env = "OWN_KEY"
secret_key_env = "OWN"
[auth]
"""
UPSTREAM = 'upstream = {{ access_key = "{}", secret_env = "{}" }}'
ENVIRONMENT = {"OWN_KEY": "OWN", "OWN": "o", "ALICE": "alice-secret", "BOB": "bob-secret", "A": "a", "B": "b"}


def config(*clients: str) -> str:
    return HEAD + "".join(f"[[auth.clients]]\n{client}\n" for client in clients)


def client(name: str, upstream: str = "") -> str:
    text = f'access_key = "{name}"\nsecret_env = "{name.upper()}"\n'
    return text + (UPSTREAM.format(upstream, upstream) if upstream else "")


class Accounts:
    """An origin that returns another object to each access key, under the same name.

    ``denied``: the keys that may not read.
    """

    def __init__(self, greeting: str = "of") -> None:
        self.greeting = greeting
        self.denied: set[str] = set()
        self.url = ""

    def body_of(self, key: str) -> bytes:
        return f"{self.greeting} {key}".encode().ljust(100, b".")

    async def serve(self, request: web.Request) -> web.Response:
        found = re.search(r"Credential=([^/]+)/", request.headers.get("Authorization", ""))
        key = found[1] if found else "nobody"
        if key in self.denied:
            return web.Response(status=403, text="<Error><Code>AccessDenied</Code></Error>")
        body, asked = self.body_of(key), request.http_range
        fields = {"ETag": f'"{self.greeting}-{key}"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        if "Range" not in request.headers:
            return web.Response(body=body, headers=fields)
        start, stop = asked.start or 0, min(asked.stop or len(body), len(body))
        fields["Content-Range"] = f"bytes {start}-{stop - 1}/{len(body)}"
        return web.Response(status=206, body=body[start:stop], headers=fields)


class Head:
    """A request head that is sent again and again, on one connection for each proxy."""

    def __init__(self, name: str = "", secret: str = "", more: str = "") -> None:
        fields = [("host", "localhost")]
        if name:
            fields += sign_request(
                method="GET", raw_path="/data/k", raw_query="", headers=fields, payload_hash=EMPTY_SHA256,
                credentials=Credentials(name, secret), region="us-east-1", now_s=time.time(),
            )  # fmt: skip
        lines = "".join(f"{field}: {value}\r\n" for field, value in fields)
        self.bytes = f"GET /data/k HTTP/1.1\r\n{lines}{more}\r\n".encode()
        self._connections: dict[Proxy, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    async def send(self, proxy: Proxy) -> tuple[int, bytes]:
        """Send the head. Return status and body of the answer; the body of an error is left out."""
        if proxy not in self._connections:
            host, _, port = proxy.s3_address.rpartition(":")
            self._connections[proxy] = await asyncio.open_connection(host, int(port))
        reader, writer = self._connections[proxy]
        writer.write(self.bytes)
        async with asyncio.timeout(20):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = re.search(r"content-length: (\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
        status = int(head[9:12])
        return status, body if status in {200, 206} else b""

    async def close(self) -> None:
        for _, writer in self._connections.values():
            writer.close()


Start = Callable[..., Awaitable[tuple[Proxy, Accounts, Callable[..., Awaitable[None]]]]]


@pytest.fixture(params=[False, True], ids=["interpreted", "compiled"])
def form(request, monkeypatch) -> bool:
    if request.param and not COMPILED:
        pytest.skip("the lane was not compiled when it was installed")
    monkeypatch.setattr(compiled, "COMPILED", request.param)
    return request.param


@pytest.fixture
async def start(tmp_path, monkeypatch, form) -> AsyncIterator[Start]:
    """Yield a function that starts a proxy in front of an origin.

    The function returns the proxy, the origin, and a function that reloads the proxy.
    """
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    async with AsyncExitStack() as stack:

        async def begin(text: str, *, names: str = "account", greeting: str = "of"):
            origin = Accounts(greeting)
            runner = web.ServerRunner(web.Server(origin.serve))
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            folder = tmp_path / greeting
            await asyncio.to_thread(folder.mkdir)
            file = folder / "config.toml"
            overrides = [
                "s3.listen=127.0.0.1:0", "control.listen=127.0.0.1:0",
                f"origin.endpoint=http://127.0.0.1:{runner.addresses[0][1]}",
                f"origin.bucket_names={names}", f"cache.ram.path={folder}/ram",
                "cache.ram.capacity=64 MiB", "cache.disk.capacity=0", f"state.path={folder}/state",
            ]  # fmt: skip

            def load(text: str = text) -> Settings:
                file.write_text(text)
                return Settings.load(file, overrides)

            async def reload(text: str) -> None:
                await proxy.reloader.reload(lambda: load(text))
                assert proxy.reloader.status.reload_error == ""

            proxy = Proxy(await asyncio.to_thread(load))
            await proxy.start()
            stack.push_async_callback(proxy.stop)
            assert (proxy.reloader.targets.lane.hits is not None) is form
            return proxy, origin, reload

        yield begin


async def settled(proxy: Proxy, head: Head) -> tuple[int, bytes]:
    """Send a head five times, and return the answer, which must be the same each time.

    Afterwards the request cache knows all that it can know of the head.
    """
    answers = {await head.send(proxy) for _ in range(5)}
    assert len(answers) == 1, answers
    return answers.pop()


def answered(proxy: Proxy) -> int:
    """Return how many requests the compiled lane has answered."""
    hits = proxy.reloader.targets.lane.hits
    return 0 if hits is None else hits.answered


async def test_a_client_that_gets_an_upstream_of_its_own(start, form):
    proxy, origin, reload = await start(config(client("alice")))
    head, other = Head("alice", "alice-secret"), Head()
    part = Head("alice", "alice-secret", more="Range: bytes=0-8\r\n")
    try:
        for upstream, whose in (("", "OWN"), ("A", "A"), ("B", "B"), ("", "OWN"), ("B", "B")):
            await reload(config(client("alice", upstream)))
            before = answered(proxy)
            for _ in range(2):
                assert await settled(proxy, head) == (200, origin.body_of(whose)), whose
                assert await settled(proxy, part) == (206, origin.body_of(whose)[:9]), whose
                assert await settled(proxy, other) == (200, origin.body_of("OWN"))
            assert (answered(proxy) > before) is (form and not upstream), "else nothing was remembered"
    finally:
        for one in (head, part, other):
            await one.close()


async def test_a_key_that_counted_as_anonymous_becomes_that_of_a_client(start):
    proxy, origin, reload = await start(config(client("alice")))
    right, wrong = Head("bob", "bob-secret"), Head("bob", "guessed")
    try:
        for _ in range(2):
            await reload(config(client("alice")))
            assert await settled(proxy, right) == (200, origin.body_of("OWN"))
            assert await settled(proxy, wrong) == (200, origin.body_of("OWN"))
            await reload(config(client("alice"), client("bob", "B")))
            assert await settled(proxy, right) == (200, origin.body_of("B"))
            assert await settled(proxy, wrong) == (403, b"")
    finally:
        await right.close()
        await wrong.close()


async def test_rights_at_the_origin_count_from_the_reload_on(start):
    """A reload may give a client an upstream of its own, to which the origin denies the object.

    Bucket names are global here, so both upstreams mean the same object.
    """
    proxy, origin, reload = await start(config(client("alice")), names="global")
    origin.denied = {"A"}
    head = Head("alice", "alice-secret")
    try:
        for _ in range(2):
            await reload(config(client("alice")))
            assert await settled(proxy, head) == (200, origin.body_of("OWN"))
            await reload(config(client("alice", "A")))
            assert await settled(proxy, head) == (403, b"")
    finally:
        await head.close()


async def test_the_same_head_at_two_listeners(start):
    """The same head gets the right object at each of two proxies in one process, whose origins differ."""
    (one, first, _), (two, second, _) = [
        await start(config(client("alice")), greeting=greeting) for greeting in ("first", "second")
    ]
    heads = [Head(), Head("alice", "alice-secret")]
    try:
        for _ in range(3):
            for head in heads:
                assert await settled(one, head) == (200, first.body_of("OWN"))
                assert await settled(two, head) == (200, second.body_of("OWN"))
    finally:
        for head in heads:
            await head.close()
