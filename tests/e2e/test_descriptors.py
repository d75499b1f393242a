"""A proxy has more clients than descriptors. It continues to serve, and recovers by itself when clients
leave.
"""

import http.client
import os
import resource
import signal
import socket
import subprocess
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.certificate import write_certificate
from tests.support.served import log_of, wait_for
from tests.support.workers import wait_for_workers

pytestmark = pytest.mark.new_interpreter

LIMIT = 256


@pytest.fixture
def few_descriptors(monkeypatch):
    """Limit the descriptors of all processes that start from now on. ``LIMIT`` is a hard limit."""
    real = subprocess.Popen

    def start(command, **options):
        return real(["sh", "-c", f'ulimit -n {LIMIT} && exec "$@"', "sh", *command], **options)

    monkeypatch.setattr(subprocess, "Popen", start)


def descriptors(proxy) -> int:
    return descriptors_of(proxy.process.pid)


def descriptors_of(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def body_of(sock: socket.socket, path: str, field: str = "") -> bytes:
    """Ask for ``path``, and return the body of the answer. ``field``: a header field of the request."""
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{field}\r\n".encode())
    answer = http.client.HTTPResponse(sock)
    answer.begin()
    assert answer.status == 200, answer.read()
    return answer.read()


def refusals(proxy) -> int:
    counted = proxy.stats()["requests"]["by_operation"].get("Invalid", {"statuses": {}})
    return counted["statuses"].get("503", 0)


def connect(proxy, count: int, *, to: str = "s3") -> list[socket.socket]:
    address = getattr(proxy, to).partition("://")[2].split(":")
    return [socket.create_connection((address[0], int(address[1])), timeout=20) for _ in range(count)]


def connections(proxy) -> tuple[float, float]:
    """Return the numbers of clients that are connected and that were refused."""
    gauges = proxy.stats()["gauges"]
    return gauges["connections"], gauges["connections_refused"]


def close(sockets: list[socket.socket]) -> None:
    for one in sockets:
        one.close()


def test_clients_never_take_the_last_descriptors(few_descriptors, serve, fake_origin):
    fake_origin.objects = {f"/data/{n}": bytes([n]) * 50_000 for n in range(4)}
    proxy = serve(
        origin__endpoint=fake_origin.url, origin__credentials="anonymous", origin__max_connections="16"
    )
    idle = descriptors(proxy)
    client = proxy.client()
    crowd = connect(proxy, LIMIT + 50)
    wait_for(lambda: proxy.stats()["gauges"]["connections_refused"] > 50)
    assert descriptors(proxy) < LIMIT - 40
    assert proxy.get("/readyz")["warnings"] == ["no more connections are taken"]
    (found,) = [one for one in proxy.get("/v1/doctor")["findings"] if one["name"] == "connections refused"]
    assert f"of {LIMIT} descriptors" in found["cause"]
    assert "LimitNOFILE" in found["remedy"]
    # A supervisor's probe, a call for statistics and clients that connected earlier still get answers.
    assert urllib.request.urlopen(f"{proxy.control}/healthz", timeout=10).status == 200
    first = crowd[0]
    for path in ("/data/0", "/data/1"):
        first.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        answer = http.client.HTTPResponse(first)
        answer.begin()
        assert answer.read() == fake_origin.objects[path]
    with suppress(OSError):
        crowd[-1].sendall(b"GET /data/0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert crowd[-1].recv(1000).startswith(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n")
    close(crowd)
    wait_for(lambda: proxy.stats()["gauges"]["connections"] == 0)
    assert client.get_object(Bucket="data", Key="2")["Body"].read() == fake_origin.objects["/data/2"]
    # Ten descriptors more than in the idle proxy are permitted: a client's connection, idle connections to
    # the origin, and two for each segment.
    wait_for(lambda: descriptors(proxy) <= idle + 10)
    assert proxy.get("/readyz") == {"status": "ready"}
    assert not log_of(proxy, "s3_request_failed")


def test_callers_of_the_control_listener_never_take_the_last_descriptors(few_descriptors, serve, fake_origin):
    fake_origin.objects = {f"/data/{n}": bytes([n]) * 50_000 for n in range(2)}
    proxy = serve(
        origin__endpoint=fake_origin.url, origin__credentials="anonymous", origin__max_connections="16"
    )
    crowd = connect(proxy, LIMIT + 50, to="control")
    client = proxy.client()
    for n in range(2):
        assert (
            client.get_object(Bucket="data", Key=str(n))["Body"].read() == fake_origin.objects[f"/data/{n}"]
        )
    assert descriptors(proxy) < LIMIT - 40
    close(crowd)
    wait_for(lambda: proxy.stats()["gauges"]["connections"] == 1)
    assert not log_of(proxy, "s3_request_failed")


def test_clients_of_workers_never_take_the_last_descriptors(few_descriptors, serve, fake_origin):
    """All processes together have as many clients as one process would have. When a worker is killed, its
    clients are counted no more.
    """
    fake_origin.objects = {f"/data/{n}": bytes([n]) * 50_000 for n in range(4)}
    proxy = serve(
        origin__endpoint=fake_origin.url,
        origin__credentials="anonymous",
        origin__max_connections="16",
        s3__workers="3",
    )
    workers = wait_for_workers(proxy)
    first = connect(proxy, 10)
    for number, one in enumerate(first):
        assert body_of(one, f"/data/{number % 4}") == fake_origin.objects[f"/data/{number % 4}"]
    crowd = connect(proxy, 3 * LIMIT)
    wait_for(lambda: sum(connections(proxy)) == 10 + 3 * LIMIT)
    assert all(descriptors_of(pid) < LIMIT - 40 for pid in (proxy.process.pid, *workers))
    connected, refused = connections(proxy)
    assert refused > 2 * LIMIT
    assert proxy.get("/readyz")["warnings"] == ["no more connections are taken"]
    # Workers report their counts of requests twice a second.
    wait_for(lambda: refusals(proxy) == refused)
    for field in ("", "Cache-Control: no-cache\r\n"):  # a hit, and a request that is relayed
        for one in first:
            assert body_of(one, "/data/0", field) == fake_origin.objects["/data/0"]
    with suppress(OSError):
        crowd[-1].sendall(b"GET /data/0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert crowd[-1].recv(1000).startswith(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n")
    os.kill(workers[0], signal.SIGKILL)
    wait_for(lambda: connections(proxy)[0] < connected)
    wait_for_workers(proxy)
    close([*first, *crowd])
    wait_for(lambda: proxy.stats()["gauges"]["connections"] == 0)
    assert proxy.client().get_object(Bucket="data", Key="2")["Body"].read() == fake_origin.objects["/data/2"]
    assert proxy.get("/readyz") == {"status": "ready"}


@pytest.mark.parametrize("workers", ["1", "3"])
def test_peers_that_make_no_handshake_take_no_more_descriptors_than_clients(
    few_descriptors, serve, fake_origin, tmp_path, workers
):
    fake_origin.objects = {"/data/0": bytes(50_000)}
    certificate = write_certificate(tmp_path)
    proxy = serve(
        origin__endpoint=fake_origin.url,
        origin__credentials="anonymous",
        origin__max_connections="16",
        s3__workers=workers,
        s3__tls__cert=str(certificate.cert),
        s3__tls__key=str(certificate.key),
    )
    pids = [proxy.process.pid, *(wait_for_workers(proxy) if workers != "1" else ())]
    context = certificate.client_context()
    clients = [context.wrap_socket(one, server_hostname="127.0.0.1") for one in connect(proxy, 4)]
    for one in clients:
        assert body_of(one, "/data/0") == bytes(50_000)
    crowd = connect(proxy, 2 * LIMIT)
    wait_for(lambda: proxy.stats()["gauges"]["connections_left"] == 0)
    wait_for(lambda: proxy.stats()["gauges"]["connections_refused"] > LIMIT)
    assert all(descriptors_of(pid) < LIMIT - 40 for pid in pids)
    for one in clients:
        assert body_of(one, "/data/0", "Cache-Control: no-cache\r\n") == bytes(50_000)
    close(crowd)
    wait_for(lambda: proxy.stats()["gauges"]["connections"] == 4)
    close(clients)
    wait_for(lambda: proxy.stats()["gauges"]["connections"] == 0)


def test_with_none_left_it_refuses_and_comes_back(few_descriptors, serve, fake_origin, tmp_path):
    """A proxy without any free descriptor refuses connections, and accepts them again later. Here its limit
    is lowered while it runs.
    """
    fake_origin.objects = {f"/data/{n}": bytes([n]) * 50_000 for n in range(4)}
    proxy = serve(origin__endpoint=fake_origin.url, origin__credentials="anonymous")
    idle = descriptors(proxy)
    resource.prlimit(proxy.process.pid, resource.RLIMIT_NOFILE, (idle + 20, LIMIT))
    crowd = connect(proxy, 50, to="control")
    wait_for(lambda: descriptors(proxy) >= idle + 18)
    assert proxy.process.poll() is None
    close(crowd)
    wait_for(lambda: descriptors(proxy) <= idle + 2)
    assert urllib.request.urlopen(f"{proxy.control}/healthz", timeout=10).status == 200
    assert proxy.client().get_object(Bucket="data", Key="1")["Body"].read() == fake_origin.objects["/data/1"]
    assert proxy.stats()["tiers"]["ram"]["disabled_reason"] == ""
