"""An origin and two proxies in front of it, one plain and one over TLS. All get the same requests."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shadeproxy.core.sigv4 import Credentials
from tests.support.certificate import write_certificate

from .compare import Comparable, assert_same
from .wire import PAGE_BYTES, Peer, Request

CLIENT = Credentials("trainer", "differential/Secret+1")
_CONFIG = """
[origin.credentials]
access_key_env = "ORIGIN_KEY"
secret_key_env = "ORIGIN_SECRET"
[auth]
anonymous = false
[[auth.clients]]
access_key = "trainer"
secret_env = "TRAINER_SECRET"
"""


@dataclass(frozen=True)
class Proxy:
    """A proxy, and its control listener."""

    name: str
    peer: Peer
    served: Any

    def forget(self, bucket: str) -> None:
        """Make every object of ``bucket`` cold."""
        self.served.call("POST", "/v1/purge", {"uri": f"s3://{bucket}"})


@dataclass
class Sides:
    """An origin and its proxies. ``bucket`` exists at the origin."""

    origin: Peer
    proxies: tuple[Proxy, ...]
    bucket: str

    def compare(self, request: Request, expected: Comparable, *, warm_by: Request) -> None:
        """Ask each proxy while the object is cold, and twice after ``warm_by`` has read it.

        Raises AssertionError at the first answer that is not ``expected``.
        """
        for proxy in self.proxies:
            proxy.forget(self.bucket)
            opened = proxy.peer.connections
            assert_same(request, expected, proxy.peer.send(request), f"{proxy.name}, cold")
            warmed = proxy.peer.send(warm_by)
            for turn in ("warm", "warm again"):
                answer = proxy.peer.send(request)
                assert_same(request, expected, answer, f"{proxy.name}, {turn}")
                if warmed.status == 200 and answer.status < 300:
                    assert answer.field("x-shade-cache") != "origin", f"{turn} and not a hit"
            assert proxy.peer.connections - opened <= 1, "the connection was not kept"


@contextmanager
def make_sides(serve: Any, endpoint: str, credentials: Credentials, directory: Path) -> Iterator[Sides]:
    """Start the proxies. ``serve``: the fixture that starts one. ``endpoint``: "http://host:port" of the
    origin.
    """
    config = directory / "differential.toml"
    config.write_text(_CONFIG)
    certificate = write_certificate(directory)
    environment = {
        "ORIGIN_KEY": credentials.access_key,
        "ORIGIN_SECRET": credentials.secret_key,
        "TRAINER_SECRET": CLIENT.secret_key,
    }
    settings = {
        "origin__endpoint": endpoint,
        "origin__addressing": "path",
        "cache__page_size": str(PAGE_BYTES),
    }
    tls = {"s3__tls__cert": str(certificate.cert), "s3__tls__key": str(certificate.key)}
    with ExitStack() as stack:
        proxies = []
        for name, more, context in (("plain", {}, None), ("tls", tls, certificate.client_context())):
            served = serve(config, environment, **settings, **more)
            peer = stack.enter_context(Peer(served.s3.partition("://")[2], CLIENT, tls=context))
            proxies.append(Proxy(name, peer, served))
        origin = stack.enter_context(Peer(endpoint.partition("://")[2], credentials))
        bucket = f"diff-{uuid.uuid4().hex[:10]}"
        created = origin.send(Request("PUT", f"/{bucket}", body=b""))
        assert created.status == 200, created
        yield Sides(origin, tuple(proxies), bucket)
