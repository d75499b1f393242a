"""Proxies of several processes in a cluster with page ownership, and a real Redis or Valkey. Workers relay
reads to the owners. Workers answer hits of their own proxy's objects as long as the lease lasts.

With three processes only workers accept connections. So a proxy whose coordinator SIGSTOP has stopped gives
no other answers.
"""

import http.client
import os
import re
import signal
import socket
import time
import urllib.error
from contextlib import contextmanager

import pytest

from tests.support.served import opened, wait_for
from tests.support.workers import wait_for_workers, worker_pids

from .owned import KEYS, SECRET, Traffic, cluster, get, put, put_until, sent_bodies, settled, shares

LEASE_S = 6.0
CALM_S = 2.0
"""The lease in tests that stop no process. Proxies that start have their shares after three leases."""
SHORT_S = 0.5
LONG = 3 << 20
IDS = re.compile(rb"<(RequestId|HostId)>[^<]*<")
OWN = {"x-amz-request-id", "x-amz-id-2", "date", "x-shade-node"}


def body_of(key):
    return key.encode() * 500


@pytest.fixture
def two(join, late_writes_end_soon):
    """Start two proxies of three processes each. The fixture's parameter is the lease in seconds."""

    def start(lease_s):
        proxies = [join(s3__workers="3", cluster__lease=f"{lease_s:g} s") for _ in range(2)]
        for proxy in proxies:
            wait_for_workers(proxy)
        settled(*proxies)
        return proxies

    return start


@contextmanager
def stopped(*proxies):
    """Stop the coordinators of ``proxies`` until the block ends."""
    for proxy in proxies:
        proxy.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for proxy in proxies:
            proxy.process.send_signal(signal.SIGCONT)


def read_all(proxies, keys=KEYS, times=1):
    for _ in range(times):
        for proxy in proxies:
            for key in keys:
                get(proxy, key)


def just_leased(*proxies):
    """Wait until all proxies have just received a new lease."""
    wait_for(lambda: all(cluster(proxy)["lease_s"] > 0.7 * LEASE_S for proxy in proxies))


def answer(proxy, method, path, fields):
    """Return status, header fields and body of an answer. Fields that differ from process to process are left
    out.
    """
    connection = http.client.HTTPConnection(proxy.s3.removeprefix("http://"), timeout=20)
    connection.request(method, path, headers=fields)
    found = connection.getresponse()
    body = found.read()
    connection.close()
    own = [(name.lower(), value) for name, value in found.getheaders() if name.lower() not in OWN]
    return found.status, sorted(own), IDS.sub(b"", body)


def test_workers_answer_hits_of_all_shares_without_their_coordinators(two, origin):
    a, b = two(LEASE_S)
    read_all((a, b), times=4)
    just_leased(a, b)
    with stopped(a, b):
        for near in (a, b):
            began_s, nodes = time.monotonic(), set()
            for key in KEYS[:10]:
                body, fields = get(near, key, timeout_s=LEASE_S)
                assert (body, fields["x-shade-cache"]) == (body_of(key), "ram")
                nodes.add(fields.get("x-shade-node", "own"))
            assert len(nodes) == 2
            assert time.monotonic() - began_s < LEASE_S / 4, "the machine is too slow for this test"
    assert sent_bodies(origin) == len(KEYS)


def test_each_read_and_each_relayed_request_is_counted_once(two):
    a, b = two(CALM_S)
    read_all((a, b), times=3)
    wait_for(lambda: sum(one.stats()["totals"]["requests"] for one in (a, b)) == 6 * len(KEYS))
    for near, owner, share in ((a, b, shares([a, b])[1]), (b, a, shares([a, b])[0])):
        node, asked = cluster(owner)["node"], 3 * len(share)
        wait_for(
            lambda near=near, node=node, asked=asked: (
                sum(row["requests"] for row in near.stats()["cluster"]["relayed"] if row["peer"] == node)
                == asked
            )
        )
    counts = [one.stats()["requests"]["by_operation"]["GetObject"]["statuses"] for one in (a, b)]
    assert counts == [{"200": 3 * len(KEYS)}] * 2


def test_a_worker_answers_nothing_of_its_share_once_the_lease_is_over(two):
    """A worker answers no object of its own proxy once the lease is over. Its coordinator is stopped, so the
    other proxy takes the objects over and accepts writes.
    """
    a, b = two(SHORT_S)
    keys = shares([a, b])[0][:6]
    for key in keys:
        put(b, key, b"old")
    read_all((a,), keys, times=6)
    with stopped(a):
        time.sleep(2 * SHORT_S)
        for key in keys:
            put_until(b, key, b"new")
        for key in keys * 2:
            try:
                assert get(a, key, timeout_s=0.5)[0] == b"new"
            except OSError:
                continue  # The worker waits for its coordinator.
    settled(a, b)
    assert {get(proxy, key)[0] for proxy in (a, b) for key in keys} == {b"new"}


ASKED = [
    ("GET", "", {}),
    ("GET", "", {"Range": "bytes=10-99"}),
    ("GET", "", {"Range": "bytes=-7"}),
    ("GET", "", {"Range": "bytes=999999-"}),
    ("GET", "", {"Range": "bytes=0-1,4-5"}),
    ("GET", "", {"If-None-Match": "*"}),
    ("GET", "", {"If-Match": '"another"'}),
    ("GET", "", {"x-amz-checksum-mode": "ENABLED"}),
    ("GET", "?response-content-type=text/plain", {}),
    ("GET", "?partNumber=1", {}),
    ("HEAD", "", {}),
    ("HEAD", "-missing", {}),
    ("GET", "-missing", {}),
    ("GET", "?uploadId=none", {}),
    ("GET", "?acl", {}),
]


def test_answers_through_the_other_proxy_are_those_of_the_owner(two):
    a, b = two(CALM_S)
    key = shares([a, b])[0][0]
    put(a, key, bytes(range(256)) * 100)
    for _ in range(3):
        for method, rest, fields in ASKED:
            own, other = (answer(one, method, f"/data/{key}{rest}", fields) for one in (a, b))
            # The answers to later reads come from the cache, so they must be equal.
            assert [own[0], own[2]] == [other[0], other[2]], (method, rest, fields)
    for method, rest, fields in ASKED:
        own, other = (answer(one, method, f"/data/{key}{rest}", fields) for one in (a, b))
        assert own == other, (method, rest, fields)


def test_long_objects_go_through_a_worker_piece_by_piece(two):
    a, b = two(LEASE_S)
    key, body = shares([a, b])[0][0], os.urandom(LONG)
    put(a, key, body)
    # A worker needs a connection to the other proxy. It opens one at its first read, so each worker of b must
    # get a read, and the kernel chooses the worker.
    for _ in range(24):
        assert get(b, key)[0] == body
    just_leased(a, b)
    with stopped(b), opened(f"{b.s3}/data/{key}", timeout_s=LEASE_S) as sent:
        first = sent.read(1000)
        time.sleep(0.5)  # The client waits, so that all buffers between the proxies are full.
        assert first + sent.read() == body
        part = answer(b, "GET", f"/data/{key}", {"Range": f"bytes=7-{LONG - 3}"})
        assert (part[0], part[2]) == (206, body[7 : LONG - 2])


def test_a_long_answer_that_breaks_off_is_not_taken_for_a_whole_one(two):
    a, b = two(CALM_S)
    key = shares([a, b])[0][0]
    put(a, key, bytes(32 << 20))
    get(b, key)
    with opened(f"{b.s3}/data/{key}", timeout_s=20) as sent:
        sent.read(1000)
        a.stop(signal.SIGKILL)
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            sent.read()


def test_reads_and_writes_are_right_while_processes_are_killed_and_stopped(two):
    a, b = two(SHORT_S)
    keys = [key for share in shares([a, b]) for key in share[:2]]
    with Traffic([a, b], b, keys) as traffic:
        for number in (signal.SIGKILL, signal.SIGSTOP):
            # The coordinator ends a worker that stays stopped.
            os.kill(wait_for_workers(a)[0], number)
            traffic.goes_on()
        # All writes go to proxy b, and killing a worker of b would cut the writer's connection. So this
        # worker goes on soon.
        worker = wait_for_workers(b)[0]
        os.kill(worker, signal.SIGSTOP)
        time.sleep(2 * SHORT_S)
        os.kill(worker, signal.SIGCONT)
        traffic.goes_on()
        with stopped(a):
            time.sleep(3 * SHORT_S)
        settled(a, b)
        traffic.goes_on(writes=True)
    traffic.assert_right()


def test_a_new_worker_knows_the_routes_and_a_new_proxy_gets_its_share(two, join, origin):
    a, b = two(LEASE_S)
    before = worker_pids(a)
    for worker in before:
        os.kill(worker, signal.SIGKILL)
    wait_for(lambda: len(worker_pids(a)) == 2 and not set(before) & set(worker_pids(a)))
    wait_for_workers(a)
    key = shares([a, b])[1][0]
    read_all((a, b), [key], times=6)
    just_leased(a, b)
    with stopped(a):
        assert get(a, key, timeout_s=LEASE_S)[1]["x-shade-node"] == cluster(b)["node"]
    c = join(cluster__lease=f"{LEASE_S:g} s")
    settled(a, b, c)
    key = shares([a, b, c])[2][0]
    for proxy in (a, b, a, b):
        body, fields = get(proxy, key)
        assert (body, fields["x-shade-node"]) == (body_of(key), cluster(c)["node"])


def test_a_new_worker_uses_the_secret_of_its_coordinator(join, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    proxy = join(s3__workers="2", cluster__secret=f"file:{secret}")
    before = wait_for_workers(proxy)
    secret.unlink()
    os.kill(before[0], signal.SIGKILL)
    wait_for(lambda: worker_pids(proxy) and before[0] not in worker_pids(proxy))
    wait_for_workers(proxy)


@pytest.mark.parametrize("processes", ["2", "3"])
def test_the_share_of_a_proxy_that_ends_is_written_until_its_last_client_is_served(
    join, late_writes_end_soon, processes
):
    a, b = (join(s3__workers=processes, cluster__lease=f"{CALM_S:g} s") for _ in range(2))
    for proxy in (a, b):
        wait_for_workers(proxy)
    settled(a, b)
    key, other = shares([a, b])[0][:2]
    put(a, key, bytes(64 << 20))
    with opened(f"{a.s3}/data/{key}", timeout_s=20) as sent:
        sent.read(1000)
        a.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not worker_accepts(a))
        put(b, other, b"new")
        assert len(sent.read()) == (64 << 20) - 1000
    assert a.process.wait(60) == 0
    assert get(b, other)[0] == b"new"


def worker_accepts(proxy):
    """Return whether the proxy still accepts new connections."""
    host, _, port = proxy.s3.removeprefix("http://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionError:
        return False
    return True


def test_a_cluster_of_workers_refuses_what_only_clients_may_ask(two):
    a, _ = two(CALM_S)
    peers = next(one["peer"] for one in cluster(a)["nodes"] if one["node"] == cluster(a)["node"])
    for _ in range(3):
        with pytest.raises(urllib.error.HTTPError) as refused:
            opened(f"http://{peers}/data/{KEYS[0]}", timeout_s=10)
        assert refused.value.code == 403
        assert b"This is the listener of the cluster's proxies for each other" in refused.value.read()
