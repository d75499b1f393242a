"""A proxy that has no room for one more manifest now: the SDK sends the manifest again after a pause."""

import json
import logging
import pickle
import socket
import ssl
import threading
import time
from contextlib import ExitStack

import pytest

import shadeproxy_sdk as shade
from shadeproxy_sdk import connections, control
from shadeproxy_sdk.errors import Silent
from tests.support.certificate import write_certificate

LONG = 16 << 20
NO_ROOM = {"error": {"code": "overloaded", "message": "others hold all of the memory", "hint": ""}}


class Clock:
    """A clock in place of the module ``time``. Sleeping takes no time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept = []

    def monotonic(self):
        return self.now_s

    def sleep(self, wait_s):
        self.slept.append(wait_s)
        self.now_s += wait_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(control, "time", clock)
    return clock


@pytest.fixture
def fill(proxy):
    """Return ``fill(name, times, after)``. This function makes the proxy refuse so many manifests ``name``,
    with ``after`` as Retry-After.
    """

    def fill(name, times, after="5"):
        def answer(handler, body):
            nonlocal times
            if handler.command == "PUT" and times:
                times -= 1
                handler.reply(503, json.dumps(NO_ROOM).encode(), **{"Retry-After": after})
                return
            told = proxy.register(name, body) if handler.command == "PUT" else proxy.summary(name)
            handler.reply(404 if told is None else 200, json.dumps(told or {}).encode())

        proxy.more[f"datasets/{name}"] = answer

    return fill


@pytest.fixture(params=["http", "https"])
def busy(request, tmp_path, monkeypatch):
    """The address of a server that reads the body of each request only 1.5 s after its head."""
    context = None
    if request.param == "https":
        certificate = write_certificate(tmp_path)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.authority))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate.cert, certificate.key)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            if context is not None:
                connection = context.wrap_socket(connection, server_side=True)
            with connection:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += connection.recv(100)
                time.sleep(1.5)
                left = LONG - len(head.partition(b"\r\n\r\n")[2])
                while left:
                    left -= len(connection.recv(1 << 16))
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"{request.param}://127.0.0.1:{server.getsockname()[1]}"
        thread.join(timeout=10)


@pytest.fixture
def silent():
    """The port of a host that answers no connection, because its backlog is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as stack:
        for _ in range(4):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(server.getsockname())
        yield server.getsockname()[1]


@pytest.fixture
def sender(monkeypatch):
    monkeypatch.setattr(connections, "MAX_CONNECT_S", 1.0)
    sender = connections.Connections(concurrency=1, pause_s=1.0)
    yield sender
    sender.close()


def test_a_long_body_may_wait_until_the_proxy_reads_it(busy, sender):
    answer = sender.send("PUT", busy, headers={}, body=bytes(LONG), timeout_s=20.0)
    assert (answer.status, answer.body) == (200, b"{}")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_host_that_does_not_answer_keeps_no_long_body_waiting(silent, sender, scheme):
    began_s = time.monotonic()
    with pytest.raises(Silent):
        sender.send("PUT", f"{scheme}://127.0.0.1:{silent}", headers={}, body=bytes(LONG), timeout_s=7.0)
    assert time.monotonic() - began_s < 5.0


def puts(proxy):
    return [path for method, path, _ in proxy.calls if method == "PUT" and path.startswith("datasets/")]


def test_a_job_that_finds_no_room_for_its_manifest_registers_it_after_pauses(
    client, proxy, fill, clock, caplog
):
    fill("mine", 4)
    mine = shade.Manifest.from_entries("mine", [shade.Entry("train", "1/001")])
    job = client.job("run", dataset=mine, interval_s=3600.0)
    assert "mine" in proxy.datasets
    assert "run" in proxy.jobs
    assert puts(proxy) == ["datasets/mine"] * 5
    # The proxy asks for 5 s. The SDK's own pauses double from 1 s on, so that the fourth one is longer.
    for least, slept in zip([5, 5, 5, 8], clock.slept, strict=True):
        assert least <= slept <= 1.5 * least
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
    job.close(0)


def test_a_listing_that_finds_no_room_is_asked_for_again(client, proxy, origin, fill, clock):
    name = client.manifest(bucket="train").name
    lines = proxy.lines(name)
    fill(name, 2, after="")
    get = proxy.more[f"datasets/{name}"]
    proxy.more[f"datasets/{name}"] = lambda handler, body: (
        handler.reply(200, lines) if "format=jsonl" in handler.path else get(handler, body)
    )
    assert len(client.manifest(bucket="train")) == 40
    assert len(clock.slept) == 2
    assert origin.listings == 0


def test_a_job_goes_on_without_a_proxy_that_has_no_room_for_long(client, proxy, fill, clock, caplog):
    fill("mine", 10_000)
    mine = shade.Manifest.from_entries("mine", [shade.Entry("train", "1/001")])
    job = client.job("run", dataset=mine, interval_s=3600.0)
    assert control.REGISTER_TIMEOUT_S - 45 < clock.now_s <= control.REGISTER_TIMEOUT_S
    assert max(clock.slept) <= 45
    (said,) = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert "others hold all of the memory" in said
    assert "training goes on" in said
    job.close(0)


@pytest.mark.parametrize(("after", "wait_s"), [("7", 7.0), ("", 0.0), ("Wed, 21 Oct 2026", 0.0)])
def test_an_error_keeps_the_time_after_which_to_try_again(client, fill, after, wait_s):
    fill("mine", 1, after)
    with pytest.raises(shade.ControlError) as refused:
        client.call("PUT", "/v1/datasets/mine", b"{}")
    assert pickle.loads(pickle.dumps(refused.value)).retry_after_s == wait_s
