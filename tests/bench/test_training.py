"""The model of a training loop, and the rows of the bench that use it. The tests compare counts,
never times.
"""

import asyncio
from contextlib import suppress

import pytest

from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.loader import Epoch, Loader
from shadeproxy_bench.suites.stall import link_bound, origin_bytes, stalled
from shadeproxy_bench.training import ALL, DIRECT, ORDER, Load, Run, train

TINY = Load(128, 1000, 4096.0, 0.002)


def request(piece, server):
    return f"GET {piece.path} HTTP/1.1\r\nHost: {server.authority}\r\n\r\n".encode()


def test_the_consumer_takes_every_batch_in_order(make_origin, pieces):
    server, taken = make_origin(), []

    async def note(batch):
        taken.append(batch)

    loader = Loader(server.address, workers=3, batch=16, rate_per_s=1000.0)
    epoch = asyncio.run(loader.epoch([request(piece, server) for piece in pieces], note))
    assert taken == [0, 1, 2]
    assert epoch.compute_s == pytest.approx(len(pieces) / 1000)
    assert epoch.wall_s >= epoch.compute_s
    assert 0 < epoch.stall_s < epoch.wall_s


def test_an_answer_that_is_no_object_ends_the_epoch(make_origin):
    server = make_origin()
    loader = Loader(server.address, workers=1, batch=1, rate_per_s=1000.0)
    with pytest.raises(BenchError, match=r"the loader was answered b'HTTP/1\.1 404"):
        asyncio.run(loader.epoch([b"GET /bench/none HTTP/1.1\r\nHost: h\r\n\r\n"]))


@pytest.fixture
def busy_for(monkeypatch):
    """Return a function that reads one object from a server which first answers 503 ``refusals`` times. The
    function returns the number of requests.
    """
    monkeypatch.setattr("shadeproxy_bench.loader.PAUSE_S", 0.0)

    async def run(refusals):
        count = 0

        async def answer(reader, writer):
            nonlocal count
            with suppress(EOFError):
                while await reader.readuntil(b"\r\n\r\n"):
                    count += 1
                    status = b"503 Slow Down" if count <= refusals else b"200 OK"
                    writer.write(b"HTTP/1.1 %b\r\nContent-Length: 4\r\n\r\nbody" % status)
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1") as server:
            address = server.sockets[0].getsockname()[:2]
            await Loader(address, workers=1, batch=1, rate_per_s=1e6).epoch([b"GET /a/b HTTP/1.1\r\n\r\n"])
        return count

    return lambda refusals: asyncio.run(run(refusals))


def test_a_request_that_is_answered_503_is_sent_again(busy_for):
    assert busy_for(3) == 4


def test_a_request_that_is_always_answered_503_ends_the_epoch(busy_for):
    with pytest.raises(BenchError, match=r"the loader was answered b'HTTP/1\.1 503 Slow Down"):
        busy_for(1000)


def test_direct_reads_everything_from_the_origin_again():
    run = train(TINY, DIRECT, epochs=2)
    assert run.origin_bytes == 128 * 1000
    assert run.prefetch == {}


def test_without_prefetching_nothing_comes_ahead():
    run = train(TINY, ORDER, epochs=2)
    assert run.prefetch["issued"] == 0
    assert 0 < run.origin_bytes <= 128 * 1000


def test_with_an_announced_order_samples_come_ahead():
    """With an announced order, pages are prefetched before they are read. There are more samples than the
    workers read ahead, so the workers alone do not explain the prefetched pages.
    """
    run = train(TINY._replace(samples=2048), ALL, epochs=2)
    assert run.prefetch["used"] > 0


def run_of(wall_s, stall_s, origin=800, issued=10):
    later = [Epoch(wall_s, stall_s, wall_s - stall_s)] * 2
    return Run(Epoch(9.0, 4.5, 4.5), later, origin, {"issued": issued, "wasted": 1})


def test_the_stall_is_a_share_of_the_later_epochs():
    found = stalled([run_of(10.0, 0.1), run_of(10.0, 0.3), run_of(10.0, 0.2)], run_of(10.0, 8.4))
    assert (found.ours, found.reference) == (pytest.approx(2.0), pytest.approx(84.0))
    assert found.note.startswith("worst epoch 3.0 %; first epochs 50.0 %; of 30 prefetched pages 3 wasted")


def test_a_link_bound_epoch_is_judged_by_what_is_slower():
    load = Load(10, 100, 1.0, 0.0, link_bytes_per_s=100.0)
    assert link_bound(load, [run_of(2.0, 0.0)]).reference == 8.0, "the link carries 800 bytes"
    found = link_bound(load, [run_of(10.0, 0.0)])
    assert (found.ours, found.reference) == (20.0, 20.0), "it computes"
    assert "40.0% of what was read was missed" in found.note


def test_bytes_of_the_origin_are_told_as_shares_of_what_was_read():
    load = Load(10, 100, 1.0, 0.0)
    found = origin_bytes(load, run_of(1.0, 0.0, 1700), run_of(1.0, 0.0, 1600))
    assert (found.ours, found.reference) == (0.0017, 0.0016)
    assert found.note.startswith("85.0% of what was read, 80.0% by eviction")
