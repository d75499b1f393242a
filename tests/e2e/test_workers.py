"""A proxy of several processes gives the answers of a proxy of one. No answer has a wrong byte, whichever
process dies.
"""

import json
import os
import signal
import socket
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.support import served as support
from tests.support.overwriting import SIZE, Load, ask, body_of, connect, get, put
from tests.support.workers import wait_for_workers, worker_pids

wait_for = partial(support.wait_for, limit_s=60.0)

OWN = {"x-amz-request-id", "x-amz-id-2", "date"}  # Fields that differ with the process or the time.


def plain(answer):
    status, headers, body = answer
    return status, {name: value for name, value in headers.items() if name.lower() not in OWN}, body


def read_until_cached(served, path) -> int:
    """Read an object until a read is a hit, and return how many reads that took. Two need not suffice: the
    second one may join the first on its way to the cache.
    """
    reads = 0

    def is_hit():
        nonlocal reads
        reads += 1
        status, fields, _ = ask(served, path)
        assert status == 200
        return fields["x-shade-cache"] == "ram"

    wait_for(is_hit)
    return reads


@pytest.fixture
def workers(serve, bucket_directory):
    def start(count: int = 2, **settings: str):
        served = serve(
            origin__kind="file", origin__path=str(bucket_directory), s3__workers=str(count), **settings
        )
        wait_for_workers(served)
        return served

    return start


@pytest.fixture
def alone(workers):
    """Run a proxy whose coordinator can be stopped, so that only its worker answers. ``reads``: how often
    objects were read.
    """
    served = workers()
    served.reads = 0
    for n in range(3):
        put(served, f"/data/{n}", body_of(str(n), 1))
        served.reads += read_until_cached(served, f"/data/{n}")
    yield served
    if served.process.poll() is None:
        served.process.send_signal(signal.SIGCONT)


ASKED = [
    ("GET", "/data/0", {}),
    ("GET", "/data/1", {"Range": "bytes=10-99"}),
    ("GET", "/data/1", {"Range": "bytes=-7"}),
    ("GET", "/data/2", {"If-None-Match": "*"}),
    ("HEAD", "/data/2", {}),
]


def test_a_worker_answers_hits_as_the_coordinator_does(alone):
    expected = [plain(ask(alone, path, method, **fields)) for method, path, fields in ASKED]
    count = alone.reads + 3  # Three of the requests here read bytes.
    wait_for(lambda: alone.stats()["totals"]["requests"] == count)
    before = alone.stats()["totals"]
    alone.process.send_signal(signal.SIGSTOP)
    with connect(alone) as connection:
        for _ in range(3):
            for (method, path, fields), answer in zip(ASKED, expected, strict=True):
                assert plain(get(connection, path, method, **fields)) == answer
    alone.process.send_signal(signal.SIGCONT)
    wait_for(lambda: alone.stats()["totals"]["requests"] == count + 9)
    after = alone.stats()["totals"]
    assert after["hits_ram"] == before["hits_ram"] + 9
    assert after["bytes"] == before["bytes"] + 3 * (SIZE + 90 + 7)


def test_what_is_no_hit_goes_through_the_coordinator_on_the_same_connection(alone):
    alone.process.send_signal(signal.SIGSTOP)
    with connect(alone) as connection:
        assert get(connection, "/data/0")[2] == body_of("0", 1)
        alone.process.send_signal(signal.SIGCONT)
        for n in range(3):
            assert get(connection, f"/data/none{n}")[0] == 404
            assert get(connection, f"/data/{n}")[2] == body_of(str(n), 1)
            assert get(connection, f"/data/none{n}", "HEAD")[0] == 404
            assert get(connection, f"/data/{n}", **{"Cache-Control": "no-cache"})[0] == 200
        status, _, listing = get(connection, "/data?list-type=2")
        assert (status, listing.count(b"<Key>")) == (200, 3)
        connection.request("PUT", "/data/0", body_of("0", 2))
        assert connection.getresponse().read() == b""
        assert get(connection, "/data/0")[2] == body_of("0", 2)


@pytest.mark.parametrize("disk", ["0", "4 MiB"])
def test_overwriting_and_eviction_never_show_an_old_or_a_torn_body(workers, disk):
    served = workers(3, cache__ram__capacity="1 MiB", cache__disk__capacity=disk)
    load = Load(served)
    time.sleep(6)
    wait_for(lambda: len({who for source, who in list(load.read) if source in {"ram", "disk"}}) > 1)
    load.end()
    assert not load.failures


def test_a_worker_that_is_killed_loses_its_connections_only_and_is_replaced(workers):
    served = workers(3)
    load = Load(served)
    first = worker_pids(served)
    for _ in range(3):
        time.sleep(0.5)
        os.kill(worker_pids(served)[0], signal.SIGKILL)
        wait_for(lambda: len(worker_pids(served)) == 2)
    load.end()
    assert set(worker_pids(served)) != set(first)
    assert ask(served, "/data/0")[0] == 200


def test_a_page_that_a_silent_worker_fetches_is_fetched_again(serve, fake_origin):
    """A worker that is silent is killed. Until then, all readers of the page that it fetches wait."""
    body = body_of("cold", 1)
    fake_origin.objects = {"/data/hot": body_of("hot", 1), "/data/cold": body}
    served = serve(origin__endpoint=fake_origin.url, origin__credentials__source="anonymous", s3__workers="2")
    (worker,) = wait_for_workers(served)
    read_until_cached(served, "/data/hot")
    served.process.send_signal(signal.SIGSTOP)
    with connect(served) as connection:
        assert get(connection, "/data/hot")[0] == 200  # So this connection is the worker's.
        served.process.send_signal(signal.SIGCONT)
        fake_origin.gate.clear()
        connection.request("GET", "/data/cold")
        wait_for(lambda: "/data/cold" in [path for _, path, _ in fake_origin.asked])
        os.kill(worker, signal.SIGSTOP)
        fake_origin.gate.set()
        assert ask(served, "/data/cold")[2] == body
        with pytest.raises(ConnectionError):
            connection.getresponse()
    assert [path for _, path, _ in fake_origin.asked].count("/data/cold") == 2
    assert "a worker does not answer and is ended" in served.log.read_text()
    wait_for(lambda: worker_pids(served) not in ([], [worker]))


def test_a_killed_coordinator_takes_its_workers_along_and_a_new_one_starts_at_once(workers):
    served = workers(3)
    load = Load(served)
    for _ in range(2):
        time.sleep(1)
        old = worker_pids(served)
        served.stop(signal.SIGKILL)
        wait_for(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in old))  # noqa: B023 - called here
        served.start()
        wait_for(lambda: len(worker_pids(served)) == 2)
    # The reading threads connect again by themselves, now to the new address.
    time.sleep(2)
    load.end()


def test_a_coordinator_that_is_stopped_holds_up_no_hit_and_no_client_for_ever(workers):
    served = workers(origin__timeouts__first_byte="1s", origin__timeouts__window="1s")
    put(served, "/data/0", body_of("0", 1))
    put(served, "/data/cold", body_of("cold", 1))
    read_until_cached(served, "/data/0")
    served.process.send_signal(signal.SIGSTOP)
    try:
        with connect(served) as connection:
            assert get(connection, "/data/0")[2] == body_of("0", 1)
            status, _, document = get(connection, "/data/cold")
            assert (status, b"<Code>SlowDown</Code>" in document) == (503, True)
            assert get(connection, "/data/0")[2] == body_of("0", 1)
    finally:
        served.process.send_signal(signal.SIGCONT)
    assert ask(served, "/data/cold")[2] == body_of("cold", 1)


def test_no_coordinator_starts_while_a_worker_of_the_last_one_lives(alone):
    (old,) = worker_pids(alone)
    os.kill(old, signal.SIGSTOP)
    alone.stop(signal.SIGKILL)
    with pytest.raises(AssertionError, match=r"is in use by process"):
        alone.start()
    os.kill(old, signal.SIGCONT)
    wait_for(lambda: not Path(f"/proc/{old}/exe").exists())
    alone.start()
    assert ask(alone, "/data/0")[2] == body_of("0", 1)


def test_stopping_ends_idle_connections_and_leaves_no_process(alone):
    old = worker_pids(alone)
    with ExitStack() as open_ones:
        for n in range(20):
            connection = open_ones.enter_context(connect(alone))
            get(connection, "/data/0")
            if n % 2:
                connection.request("PUT", f"/data/new{n}", b"x")
                connection.getresponse().read()
        began = time.monotonic()
        assert alone.stop() == 0
    assert time.monotonic() - began < 20, "idle connections were waited for"
    assert not any(Path(f"/proc/{pid}/exe").exists() for pid in old)
    assert "worker ended" not in json.dumps(alone.log.read_text())


def test_while_a_worker_ends_what_it_sends_nobody_else_is_let_in(workers):
    served = workers(cache__page_size="32 MiB", cache__ram__capacity="80 MiB", cache__inflight="128 MiB")
    body = body_of("big", 1, 24 << 20)
    put(served, "/data/big", body)
    for _ in range(2):
        assert ask(served, "/data/big")[2] == body
    served.process.send_signal(signal.SIGSTOP)
    with connect(served) as slow:
        slow.request("GET", "/data/big")
        answer = slow.getresponse()
        assert answer.headers["x-shade-cache"] == "ram"
        (worker,) = worker_pids(served)
        served.process.send_signal(signal.SIGCONT)
        served.process.send_signal(signal.SIGTERM)
        wait_for(lambda: refuses(served))
        assert Path(f"/proc/{worker}/exe").exists(), "it ended before what it sends"
        assert answer.read() == body
    assert served.process.wait(30) == 0


def refuses(served) -> bool:
    host, _, port = served.s3.removeprefix("http://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_no_client_waits_for_a_worker_that_stands_still_while_the_proxy_ends(workers):
    served = workers()
    (worker,) = worker_pids(served)
    os.kill(worker, signal.SIGSTOP)
    served.process.send_signal(signal.SIGTERM)
    address = served.s3.removeprefix("http://").split(":")

    def refused():
        try:
            with socket.create_connection((address[0], int(address[1])), timeout=1) as client:
                client.sendall(b"GET /data/none HTTP/1.1\r\nHost: localhost\r\n\r\n")
                client.recv(1)
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        return False

    support.wait_for(refused, limit_s=15)
    assert served.process.wait(60) == 0
    assert "a worker does not answer and is ended" in served.log.read_text(), "not at the drain's limit"
