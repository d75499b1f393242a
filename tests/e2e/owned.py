"""Fixtures and helpers for clusters with page ownership: proxies as processes, and a real Redis or Valkey.

The origin of the cluster is one more proxy without a cache. It is an S3 server whose statistics count the
requests.
"""

import http.client
import json
import threading
import time
import urllib.error
import urllib.request

import pytest

from shadeproxy.demo.cluster import settled as is_settled
from tests.support.cluster_serve import LATE_WRITE, PROGRAM, assert_ends_quiescent
from tests.support.redis_server import redis_server
from tests.support.served import opened, wait_for

COUNT = 40
SECRET = "a secret of at least sixteen"
LEASE_S = 0.5
CALM = {"cluster__lease": "3 s", "cluster__peer_timeout": "3 s"}
"""Settings for tests in which no lease may lapse, and no proxy may give up another one. With the others, both
happen on a machine that is so busy that a proxy does not run for half a second.
"""
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
    """Shorten the time in which late writes may still arrive, from a minute to a moment. Until it is over, a
    new proxy checks each answer with the origin. So a test of a lease's end would show nothing.
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
    """Start a proxy of the cluster. Settings are given as to ``serve``, and ``secret`` is its cluster.secret.
    At the end of the test all running proxies must stop quiescent.
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
    """Wait until all proxies have the same settled view, which names all of them, and each has a lease."""
    wait_for(lambda: is_settled([cluster(proxy) for proxy in proxies]))


def get(proxy, key, *, timeout_s=10):
    """Return the body of an object, and the header fields of the answer."""
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
    """Return, for each proxy in turn, the keys that this proxy owns."""
    owners = {key: owner_of(key, proxies) for key in KEYS}
    return [[key for key in KEYS if owners[key] is proxy] for proxy in proxies]


def sent_bodies(origin):
    """Return how many objects the origin has sent so far."""
    found = origin.stats()["requests"]["by_operation"].get("GetObject", {"statuses": {}})
    return sum(found["statuses"].values())


def put_until(proxy, key, body, limit_s=30.0):
    """Repeat a write as long as the answer is 500 or 503. Return the seconds until it succeeded."""
    began_s = time.monotonic()
    while True:
        try:
            put(proxy, key, body)
        except urllib.error.HTTPError as error:
            if error.code not in {500, 503} or time.monotonic() - began_s > limit_s:
                raise
            time.sleep(0.02)
        else:
            return time.monotonic() - began_s


class Traffic:
    """Clients that write and read at the proxies. Each key has one writer, which writes growing numbers.

    ``stale`` lists answers that were older than the last write acknowledged before the read began.
    ``failures`` lists reads that failed twice, and writes with an answer other than success, 500 or 503.
    """

    def __init__(self, readers, writer, keys):
        self.stale, self.failures = [], []
        self.acked, self.reads, self.writes = dict.fromkeys(keys, 0), 0, 0
        self._done = threading.Event()
        self._tasks = [threading.Thread(target=self._read, args=(one, keys)) for one in readers]
        self._tasks += [threading.Thread(target=self._write, args=(writer, keys))]

    def __enter__(self):
        for task in self._tasks:
            task.start()
        self.goes_on(writes=True)
        return self

    def __exit__(self, *_):
        self._done.set()
        for task in self._tasks:
            task.join()

    def goes_on(self, *, writes=False):
        """Wait until clients have read further objects. With ``writes``, also wait until they have written
        some.
        """
        reads, written = self.reads, self.writes
        wait_for(lambda: self.reads > reads + 60 and (not writes or self.writes > written + 10))

    def _write(self, proxy, keys):
        number = 0
        while not self._done.is_set():
            number += 1
            key = keys[number % len(keys)]
            try:
                put(proxy, key, f"{number} ".encode() * 300)
            except urllib.error.HTTPError as error:
                if error.code not in {500, 503}:
                    self.failures.append(f"write {error.code} {error.read()}")
            except OSError as error:
                self.failures.append(f"write {error!r}")
            else:
                self.acked[key] = number
                self.writes += 1
            time.sleep(0.005)

    def _read(self, proxy, keys):
        while not self._done.is_set():
            for key in keys:
                self._look(proxy, key)
                time.sleep(0.002)  # Readers without a pause would take all CPU from the proxies.

    def _look(self, proxy, key):
        for last in (False, True):
            acked = self.acked[key]
            try:
                body, fields = get(proxy, key)
            except (OSError, http.client.HTTPException) as error:
                if last:
                    self.failures.append(f"read {error!r}")
                continue
            words = set(body.split())
            if len(words) != 1 or (acked and int(words.pop()) < acked):
                self.stale.append((key, acked, body[:20], fields["x-shade-cache"], fields["x-shade-node"]))
            self.reads += 1
            return

    def assert_right(self):
        assert self.stale == []
        assert self.failures == [], self.failures
