"""The proxy keeps learnt read histories over a restart, even after kill -9."""

import signal

import pytest
import urllib3

OBJECTS, LEARNING_ROUNDS = 65, 14


@pytest.fixture
def looped(serve, bucket_directory):
    """Return a function that makes a proxy with room for two thirds of the objects, and reads all objects in
    turn many times.

    With LRU none of these reads would hit.
    """
    for number in range(OBJECTS):
        (bucket_directory / "data" / str(number)).write_bytes(bytes(20_000))

    def make():
        proxy = serve(origin__kind="file", origin__path=str(bucket_directory), cache__ram__capacity="1 MiB")
        for _ in range(LEARNING_ROUNDS):
            hits_of_a_round(proxy)
        return proxy

    return make


def hits_of_a_round(proxy) -> int:
    pool, before = urllib3.PoolManager(), proxy.stats()["totals"]["hits_ram"]
    for number in range(OBJECTS):
        assert pool.request("GET", f"{proxy.s3}/data/{number}").status == 200
    return proxy.stats()["totals"]["hits_ram"] - before


def file_of(proxy):
    return proxy.log.parent / "state" / "histories.bin"


def test_a_restart_costs_no_hits(looped):
    undisturbed, restarted = looped(), looped()
    assert restarted.stop() == 0
    assert file_of(restarted).stat().st_mode & 0o777 == 0o600
    restarted.start_whole()
    assert restarted.stats()["gauges"]["sampled_pages"] == OBJECTS
    hits = [sum(hits_of_a_round(proxy) for _ in range(3)) for proxy in (undisturbed, restarted)]
    assert hits[0] > 0.55 * 3 * OBJECTS
    assert hits[1] == pytest.approx(hits[0], abs=0.02 * 3 * OBJECTS)


def test_a_damaged_file_costs_what_was_learnt_and_one_line(looped):
    proxy = looped()
    proxy.stop()
    file_of(proxy).write_bytes(file_of(proxy).read_bytes()[:-100])
    proxy.start_whole()
    assert proxy.stats()["gauges"]["sampled_pages"] < OBJECTS, "only those that are cached wait in the sample"
    said = [line for line in proxy.log.read_text().splitlines() if "read histories" in line]
    assert len(said) == 1
    assert "read histories left out, learning starts over" in said[0]
    assert "is damaged, or cut off" in said[0]
    assert "state moved aside" in {finding["name"] for finding in proxy.get("/v1/doctor")["findings"]}


def test_kill_9_keeps_what_the_last_start_found(looped):
    proxy = looped()
    before = hits_of_a_round(proxy)
    proxy.stop()
    proxy.start_whole()
    hits_of_a_round(proxy)
    proxy.stop(signal.SIGKILL)
    proxy.start_whole()
    assert proxy.stats()["gauges"]["sampled_pages"] == OBJECTS
    assert hits_of_a_round(proxy) >= 0.9 * before
