"""An origin and two proxies in front of it, one plain and one over TLS. All get the same requests.

In one form of the suite each of the two proxies owns no object, and relays to a second proxy, which owns
every object.
"""

import ssl
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shadeproxy.core.sigv4 import Credentials
from shadeproxy.core.tracing import NODE_FIELD
from tests.support.certificate import write_certificate
from tests.support.non_owner import assert_only_relayed, start_non_owner
from tests.support.redis_server import redis_server
from tests.support.served import Served

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

ALONE = "alone"
FORMS = (ALONE, "through a proxy that owns nothing")
"""The forms of the suite. In the first form each asked proxy caches. In the second it relays to the owner."""


@dataclass(frozen=True)
class Proxy:
    """A proxy that the suite asks. ``caching`` is the proxy that caches for it: the asked proxy itself, or
    the owner. ``node`` is the owner's node id, or None if the asked proxy is in no cluster.
    """

    name: str
    peer: Peer
    caching: Served
    node: str | None = None

    def forget(self, bucket: str) -> None:
        """Purge every object of ``bucket``, so that the next read is cold."""
        self.caching.call("POST", "/v1/purge", {"uri": f"s3://{bucket}"})


@dataclass
class Sides:
    """An origin and its proxies. ``bucket`` is a bucket that exists at the origin."""

    origin: Peer
    proxies: tuple[Proxy, ...]
    bucket: str

    @property
    def alone(self) -> bool:
        """Return whether each asked proxy caches the objects itself."""
        return all(proxy.node is None for proxy in self.proxies)

    def compare(self, request: Request, expected: Comparable, *, warm_by: Request) -> None:
        """Ask each proxy once while the object is cold, and twice after ``warm_by`` has read the object.

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
                    source = answer.field("x-shade-cache")
                    assert source != "origin", f"{turn} and not a hit"
                    node = None if source == "bypass" else proxy.node
                    assert answer.field(NODE_FIELD) == node, f"{turn}, {source}"
            assert proxy.peer.connections - opened <= 1, "the connection was not kept"


@contextmanager
def make_sides(
    serve: Any, endpoint: str, credentials: Credentials, directory: Path, form: str = ALONE
) -> Iterator[Sides]:
    """Start an origin's proxies. ``serve`` is the fixture that starts a proxy. ``endpoint`` is the origin's
    URL, "http://host:port".
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
    tls = {
        "s3__tls__cert": str(certificate.cert),
        "s3__tls__key": str(certificate.key),
        "cluster__peer_ca_file": str(certificate.authority),
    }
    with ExitStack() as stack:
        engine = stack.enter_context(redis_server(directory)).url if form != ALONE else ""

        def proxy(name: str, context: ssl.SSLContext | None, late_write_s: float, **more: str) -> Proxy:
            more |= settings
            if engine:
                more["cluster__name"] = name
                pair = start_non_owner(serve, engine, config, environment, late_write_s=late_write_s, **more)
                stack.callback(assert_only_relayed, pair)
                asked, caching, node = pair
            else:
                asked = caching = serve(config, environment, **more)
                node = None
            peer = stack.enter_context(Peer(asked.s3.partition("://")[2], CLIENT, tls=context))
            return Proxy(name, peer, caching, node)

        plain = proxy("plain", None, 0.2)
        # The owner behind this proxy checks each object with the origin before it answers.
        secure = proxy("tls", certificate.client_context(), 600.0, **tls)
        origin = stack.enter_context(Peer(endpoint.partition("://")[2], credentials))
        bucket = f"diff-{uuid.uuid4().hex[:10]}"
        created = origin.send(Request("PUT", f"/{bucket}", body=b""))
        assert created.status == 200, created
        yield Sides(origin, (plain, secure), bucket)
