"""A proxy that accepts connections and never answers, as a stopped process does. A read waits for it once,
and not a second time.
"""

import multiprocessing
import os
import socket
import threading

import pytest

import shadeproxy_sdk as shade
from shadeproxy_sdk.circuit_breaker import BreakerDecision, CircuitBreaker
from shadeproxy_sdk.connections import Offers

IDS = list(range(40))


class Stopped:
    """A server that accepts connections, records the requests, and answers none of them."""

    def __init__(self):
        self.asked = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._note, args=(connection,), daemon=True).start()

    def _note(self, connection):
        try:
            if head := connection.recv(65536):
                self.asked.append(head.partition(b"\r\n")[0].decode())
        except OSError:
            pass

    def close(self):
        self._listener.close()
        for connection in self._connections:
            connection.close()


@pytest.fixture
def stopped():
    server = Stopped()
    yield server
    server.close()


@pytest.fixture
def clients_of(make_client, origin):
    """Return a function that makes a client. Control and S3 listener of the client are ``server``, and the
    client knows the origin too.
    """

    def make(server):
        fallback = shade.Origin(origin.url)
        return make_client(server.url, s3_endpoint=server.url, timeout_s=1.0, origin=fallback)

    return make


def test_a_later_look_at_a_stopped_proxy_costs_one_wait(manifest, near, clients_of, stopped):
    client = clients_of(stopped)
    assert client.read_many(manifest, IDS) == near.bodies
    for breaker in (client.connections.transport.batch, client.connections.s3_breaker):
        breaker.hurry(0.0)  # Act as if the pause of the circuit breaker were over.
    stopped.asked.clear()
    assert client.read_many(manifest, IDS) == near.bodies
    assert len(stopped.asked) == 1
    assert client.connections.s3_breaker.ask() is BreakerDecision.REFUSE


def test_only_the_control_listener_hangs(manifest, near, make_client, proxy, origin):
    """While only the control listener hangs, samples come from the S3 listener. They come by batch calls
    again once the control listener answers.
    """
    options = {"s3_endpoint": proxy.url, "origin": shade.Origin(origin.url)}
    client = make_client(proxy, timeout_s=0.3, retry_s=0.0, **options)
    proxy.released.clear()
    for _ in range(2):
        assert client.read_many(manifest, IDS[:3]) == near.bodies[:3]
    proxy.released.set()
    assert len(proxy.reads) == 6
    assert client.read_many(manifest, IDS) == near.bodies
    assert len(proxy.reads) == 6
    assert not origin.reads


@pytest.mark.parametrize("asks", ["info", "locate", "batch"])
def test_a_stopped_proxy_costs_a_batch_one_wait_and_one_look(manifest, near, clients_of, asks, stopped):
    client = clients_of(stopped)
    if asks != "info":  # The proxy was stopped only after it had answered ``GET /v1/info``.
        client.connections.transport.offers = Offers(batch=True, locate=asks == "locate", socket=None)
    assert client.read_many(manifest, IDS) == near.bodies
    told = [line.split()[1].partition("?")[0] for line in stopped.asked]
    samples = [path for path in told if not path.startswith("/v1/")]
    assert len(told) - len(samples) == 1
    assert len(samples) <= 1, "the others must not wait once more"
    assert client.read_many(manifest, IDS) == near.bodies
    assert len(stopped.asked) == len(told)


def test_without_an_origin_it_is_an_error_after_one_wait_and_one_look(make_client, manifest, stopped):
    client = make_client(stopped.url, s3_endpoint=stopped.url, timeout_s=1.0)
    with pytest.raises(shade.ReadError, match="does not answer"):
        client.read_many(manifest, IDS)
    assert len(stopped.asked) <= 2


# The threads of the servers run in this process. From Python 3.12 on, a fork in a process with threads gives
# a warning.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_worker_knows_what_its_parent_found(manifest, near, clients_of, stopped):
    """A loader starts new workers in each epoch. They must not all wait for the whole timeout again: one read
    tries the S3 listener, with a short timeout.
    """
    client = clients_of(stopped)
    client.connections.control_breaker.failed(BreakerDecision.ALLOW, "no answer within 1 s")
    child = os.fork()
    if not child:
        os._exit(client.read_many(manifest, IDS) != near.bodies)
    assert os.waitpid(child, 0)[1] == 0
    assert [line.split()[:1] for line in stopped.asked] == [["GET"]]
    assert "/train/" in stopped.asked[0]


def test_a_spawned_worker_knows_what_its_parent_found(manifest, clients_of, stopped):
    client = clients_of(stopped)
    client.connections.control_breaker.failed(BreakerDecision.ALLOW, "no answer within 1 s")
    context = multiprocessing.get_context("spawn")
    # It cannot import functions of this file.
    child = context.Process(target=shade.Client.read_many, args=(client, manifest, IDS))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert [line.split()[:1] for line in stopped.asked] == [["GET"]]
    assert "/train/" in stopped.asked[0]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_worker_reads_from_the_s3_listener_if_only_the_control_listener_hangs(
    manifest, near, make_client, stopped, *, origin, proxy
):
    client = make_client(
        stopped.url, s3_endpoint=proxy.url, timeout_s=1.0, retry_s=60.0, origin=shade.Origin(origin.url)
    )
    client.connections.control_breaker.failed(BreakerDecision.ALLOW, "no answer within 1 s")
    child = os.fork()
    if not child:
        same = client.read(manifest[0]) == near.bodies[0] and client.read_many(manifest, IDS) == near.bodies
        os._exit(not same)
    assert os.waitpid(child, 0)[1] == 0
    assert not stopped.asked
    assert not origin.reads


def test_a_breaker_that_follows_is_open_as_long():
    now = [0.0]
    first, second = (CircuitBreaker(1.0, clock=lambda: now[0]) for _ in range(2))
    assert first.outage is None
    first.failed(BreakerDecision.ALLOW, "silence")
    now[0] = 1.0
    first.failed(first.ask(), "silence")
    second.follow(first.outage)
    assert second.reason == "silence"
    now[0] = 2.9
    assert second.ask() is BreakerDecision.REFUSE
    now[0] = 3.0
    assert second.ask() is BreakerDecision.PROBE
