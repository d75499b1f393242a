"""Proxies that share their pages, as processes, with a real Redis or Valkey. Fixtures, and helpers to observe
them.

The origin is a proxy of its own, without a cache: an S3 server on which the tests count requests.
"""

import json
import urllib.request

import pytest

from shadeproxy.demo.cluster import settled as is_settled
from tests.support.cluster_serve import LATE_WRITE, PROGRAM, assert_ends_quiescent
from tests.support.redis_server import redis_server
from tests.support.served import opened, wait_for

COUNT = 40
SECRET = "a secret of at least sixteen"
LEASE_S = 0.5
KEYS = [f"{n:03d}" for n in range(COUNT)]
RULES = """
[[rules]]
bucket = "*"
cache = {cache}
freshness = "ttl"
ttl = "1 h"
"""
OWNED = """
[cluster]
name = "c"
pages = "owned"
secret = "env:CLUSTER_SECRET"
listen = "127.0.0.1:0"
lease = "500 ms"
"""


@pytest.fixture
def late_writes_end_soon(monkeypatch):
    """Let proxies answer without a check soon after their start, and not after a minute. Only then does a
    test of a lease's end show anything.
    """
    monkeypatch.setenv(LATE_WRITE, "0.2")


@pytest.fixture
def engine(tmp_path):
    folder = tmp_path / "redis"
    folder.mkdir()
    with redis_server(folder) as server:
        yield server


@pytest.fixture
def origin(serve, bucket_directory, tmp_path):
    for key in KEYS:
        (bucket_directory / "data" / key).write_bytes(key.encode() * 500)
    config = tmp_path / "origin.toml"
    config.write_text(RULES.format(cache="false"))
    return serve(config, origin__kind="file", origin__path=str(bucket_directory))


@pytest.fixture
def join(serve, engine, origin, tmp_path, monkeypatch):
    """Start a proxy of the cluster; settings as in ``serve``, and ``secret``: its cluster.secret. Those that
    run at the end of the test must end quiescent.
    """
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    config = tmp_path / "member.toml"
    config.write_text(RULES.format(cache="true") + OWNED)
    started = []

    def start(**settings):
        usual = {
            "program": PROGRAM,
            "origin__endpoint": origin.s3,
            "origin__region": "us-east-1",
            "cluster__engine": engine.url,
            "prefetch__enabled": "false",
        }
        environment = {"CLUSTER_SECRET": settings.pop("secret", SECRET)}
        proxy = serve(config, environment=environment, **(usual | settings))
        started.append(proxy)
        return proxy

    yield start
    for proxy in started:
        assert_ends_quiescent(proxy)


@pytest.fixture
def three(join):
    proxies = [join() for _ in range(3)]
    settled(*proxies)
    return proxies


def cluster(proxy):
    return proxy.get("/v1/cluster")


def settled(*proxies):
    """Wait until all proxies have one settled view with all of them, and a lease."""
    wait_for(lambda: is_settled([cluster(proxy) for proxy in proxies]))


def get(proxy, key, *, timeout_s=10):
    """Return the body of an object, and the header of the answer."""
    with opened(f"{proxy.s3}/data/{key}", timeout_s=timeout_s) as answer:
        return answer.read(), answer.headers


def put(proxy, key, body, *, timeout_s=20):
    """Write an object. Raises HTTPError."""
    request = urllib.request.Request(f"{proxy.s3}/data/{key}", data=body, method="PUT")
    with opened(request, timeout_s=timeout_s) as answer:
        assert answer.status == 200


def owner_of(key, proxies):
    node = json.loads(proxies[0].call("GET", f"/v1/cluster/owner/data/{key}"))["home"]
    return next(proxy for proxy in proxies if cluster(proxy)["node"] == node)


def shares(proxies):
    """Return the keys of each proxy's share, in the order of the proxies."""
    owners = {key: owner_of(key, proxies) for key in KEYS}
    return [[key for key in KEYS if owners[key] is proxy] for proxy in proxies]


def sent_bodies(origin):
    """Return how many objects the origin has sent."""
    found = origin.stats()["requests"]["by_operation"].get("GetObject", {"statuses": {}})
    return sum(found["statuses"].values())
