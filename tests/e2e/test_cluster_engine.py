"""A real Redis that requires TLS, a user name and a password. The user has exactly the rights that
docs/cluster.md names.
"""

import re
import socket
from pathlib import Path

import pytest

from shadeproxy.cluster.log import BEGINNING, ViewId, digest_of
from shadeproxy.cluster.redis_log import RedisLog
from tests.support.certificate import write_certificate
from tests.support.cluster_logs import opened
from tests.support.redis_server import redis_server
from tests.support.served import wait_for

from .owned import CALM, KEYS, cluster, get, put, settled

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
PASSWORD = "hunter2-of-the-engine"


@pytest.fixture
def engine(tmp_path):
    """Run a Redis with a TLS listener and a plain one. Return its URL for the user."""
    folder = tmp_path / "redis"
    folder.mkdir()
    made = write_certificate(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files = ["--tls-cert-file", str(made.cert), "--tls-key-file", str(made.key)]
    trusted = ["--tls-ca-cert-file", str(made.authority), "--tls-auth-clients", "no"]
    with redis_server(folder, "--tls-port", str(port), *files, *trusted) as server:
        (grant,) = re.findall(r"^ACL SETUSER .*$", PAGE.read_text(), re.MULTILINE)
        grant = grant.replace("{trainers}", "{c}").replace("PASSWORD", PASSWORD)
        assert server.command(grant) == b"+OK\r\n"
        server.url, server.authority = f"rediss://shade@127.0.0.1:{port}/0", made.authority
        yield server


@pytest.fixture
def join_secured(join, engine, monkeypatch):
    monkeypatch.setenv("ENGINE_PASSWORD", PASSWORD)
    monkeypatch.setenv("WRONG", f"not-{PASSWORD}")

    def start(**settings):
        usual = {
            "cluster__engine_password": "env:ENGINE_PASSWORD",
            "cluster__engine_ca_file": str(engine.authority),
        }
        return join(**(usual | settings))

    return start


def test_proxies_need_no_more_rights_at_the_engine_than_the_page_says(join_secured, engine):
    two = [join_secured(**CALM) for _ in range(2)]
    settled(*two)
    a, b = two
    for writer in two:
        put(writer, KEYS[0], b"new")
        assert {get(proxy, KEYS[0])[0] for proxy in two} == {b"new"}
    a.call("PUT", "/v1/datasets/d", {"bucket": "data", "prefix": ""})
    a.call("PUT", "/v1/jobs/j", {"dataset": "d", "world_size": 1})
    wait_for(lambda: b.get("/v1/jobs")["jobs"])
    a.call("POST", "/v1/jobs/j/scores", {"ids": [3], "scores": [2]})
    wait_for(lambda: b.call("GET", "/v1/jobs/j/scores") == a.call("GET", "/v1/jobs/j/scores"))
    b.call("PUT", "/v1/jobs/j/epochs/0/order?rank=0", {"ids": list(range(len(KEYS))) * 20_000})
    b.call("POST", "/v1/pin", {"uri": "s3://data/00"})
    wait_for(lambda: a.get("/v1/pins")["pins"])
    a.call("DELETE", "/v1/jobs/j")
    a.call("DELETE", "/v1/datasets/d")
    wait_for(lambda: b.get("/v1/jobs")["jobs"] == [])
    drained = b.call("POST", "/v1/cluster/drain", {"drain": True})
    assert drained
    wait_for(lambda: not cluster(b)["moving"])
    engine.command("FLUSHALL")
    wait_for(lambda: engine.command("DBSIZE") != b":0\r\n")
    wait_for(lambda: all(cluster(proxy)["lease_s"] > 0 for proxy in two))
    for proxy in two:
        assert cluster(proxy)["problem"] == ""
    # Errors are not counted here: on a busy machine, some calls take too long.
    denied = engine.command("ACL LOG").decode(errors="replace")
    assert denied == "*0\r\n", denied


async def test_each_call_of_the_log_is_within_the_rights_that_the_page_names(engine):
    log = RedisLog(engine.url, "c", password=PASSWORD, ca_file=str(engine.authority), timeout_s=10)
    view = await opened(log, "a", "b")
    await log.peek()
    await log.propose(ViewId(view.inc, 1), [])
    await log.retire(view.inc, "b", 1)
    await log.forget(view.inc, "b")
    await log.append("k", b"event")
    await log.append("s:j", b"scores")
    assert await log.read({"k": BEGINNING}, 1.0)
    await log.claim("name", b"1")
    assert await log.names()
    await log.release("name", b"1")
    await log.put_blob(digest_of(b"long"), b"long")
    assert await log.keep_blobs([digest_of(b"long")])
    assert await log.get_blob(digest_of(b"long")) == b"long"
    await log.close()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"cluster__engine_ca_file": ""}, "certificate"),
        ({"cluster__engine_password": "env:WRONG"}, "password"),
        ({"cluster__name": "d"}, "permission"),
    ],
)
def test_a_proxy_that_the_engine_refuses_says_why_and_never_the_password(join_secured, settings, reason):
    proxy = join_secured(**settings)
    problem = wait_for(lambda: one if reason in (one := cluster(proxy)["problem"]) else None)
    (found,) = [one for one in proxy.get("/v1/doctor")["findings"] if "cut off" in one["name"]]
    assert problem in found["cause"]
    assert get(proxy, KEYS[1])[0] == KEYS[1].encode() * 500
    assert PASSWORD not in problem + proxy.log.read_text()
