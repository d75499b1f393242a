"""The rows of the bench about page ownership: their pure functions, and their helpers with real servers."""

import http.client
import re
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import closing, suppress

import numpy as np
import pytest

from shadeproxy.cluster.rendezvous import Rendezvous
from shadeproxy.simulate.workloads import importance, uniform
from shadeproxy_bench.counted_origin import PART_BYTES, Counts, counts_at
from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.lockstep import Meeting, read_all, together
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.owned import LEASE_S, hash_of, owned, rendezvous, until
from shadeproxy_bench.requests import plain_requests
from shadeproxy_bench.server import listening
from shadeproxy_bench.suites import cluster_outage
from shadeproxy_bench.suites.cluster_failures import Readers
from shadeproxy_bench.suites.cluster_ratios import Ranks, play
from shadeproxy_bench.suites.cluster_reads import cold, require_hits, warm
from shadeproxy_bench.suites.cluster_shares import moved, moves
from shadeproxy_bench.suites.cluster_writes import Sender, difference, multipart, put_latencies, upload_rate
from tests.support.redis_server import needs_redis


@pytest.fixture
def source(stack, tmp_path):
    command = [sys.executable, "-m", "shadeproxy_bench.counted_origin"]
    return stack.enter_context(listening("origin", command, tmp_path))


@pytest.fixture
def sender_to(stack):
    """Return a function that connects to a server. The connection closes when the test ends."""
    return lambda server: stack.enter_context(closing(Sender(server)))


@pytest.fixture(scope="module")
def two():
    with owned(2, ram_bytes=32 << 20) as cluster:
        yield cluster


def exchanges(server, pieces):
    return list(zip(plain_requests(pieces, server.authority), (one.body() for one in pieces), strict=True))


def node(name, *, weight=1.0, away=False):
    return {"node": name, "weight": weight, "away": away}


def test_the_origin_counts_bodies_apart_from_heads(source, sender_to):
    sender, piece = sender_to(source), Piece(1000, 3)
    assert sender.must("GET", piece.path) == bytes(piece.body())
    assert sender.must("GET", piece.path) == bytes(piece.body())
    assert sender.send("HEAD", piece.path) == (200, b"")
    assert sender.send("GET", "/bench/other")[0] == 404
    sender.must("PUT", piece.path, bytes(piece.body()))
    assert counts_at(source.url) == Counts(gets=2, heads=1, bytes=2000, writes=1, stored={piece.path})


def test_the_origin_compares_each_part_of_an_upload(source, sender_to):
    assert upload_rate(source, 1) > 0
    assert counts_at(source.url).writes == 10, "eight parts, begin and end"
    sender, piece = sender_to(source), Piece(2 * PART_BYTES, 1)
    first, second = (bytes(piece.body()[at : at + PART_BYTES]) for at in (0, PART_BYTES))
    sender.must("PUT", f"{piece.path}?partNumber=2&uploadId=u", second)
    with pytest.raises(BenchError, match="was answered 400"):
        sender.must("PUT", f"{piece.path}?partNumber=2&uploadId=u", first)


@needs_redis
def test_the_row_of_multipart_uploads_says_what_bounds_it(two, tmp_path):
    relay = [sys.executable, "-m", "shadeproxy_bench.bare_relay", str(two.source.port)]
    with listening("bare", relay, tmp_path) as bare:
        found = multipart(two, two.source, bare, 1, rounds=1)
    assert found.ours > 0
    assert found.reference
    assert "a relay that only copies bytes: " in found.note
    assert "ms of CPU a MB: asked " in found.note


def test_all_readers_read_their_own_objects(source):
    pieces = [[Piece(1000, 10 * rank + number) for number in range(5)] for rank in range(3)]
    meeting = Meeting(3)
    found = read_all(
        [source] * 3, [together(exchanges(source, own), meeting, every=2) for own in pieces], meeting
    )
    assert [one.requests for one in found] == [5, 5, 5]


def test_a_reader_that_fails_ends_the_others(source):
    wrong = [[(request, Piece(1000, 9).body()) for request, _ in exchanges(source, [Piece(1000, 1)] * 3)]]
    right = exchanges(source, [Piece(1000, 1)] * 3)
    meeting, began = Meeting(2), time.monotonic()
    with pytest.raises(BenchError, match="wrong bytes"):
        read_all([source] * 2, [together(one, meeting) for one in (right, *wrong)], meeting)
    assert time.monotonic() - began < 30, "the other reader does not wait until its patience ends"


def test_no_reader_is_ahead_of_the_slowest():
    places, leads, meeting = [0, 0], [], Meeting(2)

    def go(reader):
        for place in together(range(20), meeting, every=4):
            places[reader] = place
            if reader:
                time.sleep(0.002)
            else:
                leads.append(place - places[1])

    slow = threading.Thread(target=go, args=(1,))
    slow.start()
    go(0)
    slow.join()
    assert max(leads) <= 4
    meeting.fail()
    with pytest.raises(BenchError, match="another reader failed"):
        next(together("a", meeting))


def test_shares_do_not_depend_on_the_order_of_nodes():
    nodes = [node("b", weight=2.0), node("a"), node("c")]
    hashes = np.array([hash_of(Piece(1000, number)) for number in range(1000)], np.uint64)
    found = [rendezvous(one) for one in (nodes, nodes[::-1])]
    assert found[0].nodes == ("a", "b", "c")
    assert found[0].weights == (1.0, 2.0, 1.0)
    assert (found[0].find_many(hashes) == found[1].find_many(hashes)).all()


def test_moves_between_nodes_that_stay_are_counted_separately():
    hashes = np.random.default_rng(0).integers(0, 2**64, 20_000, dtype=np.uint64)
    few, many = Rendezvous(["a", "b"], [1.0] * 2), Rendezvous(["a", "b", "c"], [1.0] * 3)
    for found in (moved(few, many, hashes), moved(many, few, hashes)):
        assert found.all == pytest.approx(1 / 3, rel=0.05)
        assert found.between == 0
    other = moved(many, Rendezvous(["a", "b", "c"], [1.0, 1.0, 3.0]), hashes)
    assert other.between == other.all > 0.1
    share, between = moves(hashes=20_000, most=3)
    assert share.ours == pytest.approx(1.0, abs=0.1)
    assert between.ours == 0


def test_each_rank_has_its_share_of_every_epoch():
    trace = uniform(41, 3)
    ranks = Ranks.of(trace, 4)
    assert [[len(order) for order in epoch] for epoch in ranks.orders] == [[10] * 4] * 3
    assert ranks.counted == 80
    assert [one for pair in zip(*ranks.orders[1], strict=True) for one in pair] == list(trace.ids[41:81])
    assert ranks.weights is None
    assert Ranks.of(importance(40, 2), 4).weights.shape == (2, 40)


def test_a_difference_is_of_percentiles_and_has_an_a_a_spread():
    reference = [float(number) for number in range(101)]
    found = difference([one + 2 for one in reference], reference, 50.0)
    assert found.ours == pytest.approx(2.0)
    assert found.note == "52.00 ms beside 50.00 ms, 101 writes each; A/A 0.00 ms"
    tail = difference([0.0] * 90 + [9.0] * 10, [0.0] * 100, 99.0)
    assert tail.ours == pytest.approx(9.0)
    assert "A/A 1.00 ms" in difference([0.0, 0.0], [1.0, 2.0], 50.0).note


def test_waiting_has_an_end():
    assert until(lambda: True, "it is so") < 1
    with pytest.raises(BenchError, match="until it is so"):
        until(lambda: False, "it is so", limit_s=0.05)


def member_at(server):
    return type("Member", (), {"served": server})


def test_failed_reads_are_counted_and_tried_again(source, make_fake):
    with Readers([member_at(source)], [Piece(1000, 1)], tries=1) as readers:
        until(lambda: readers.reads > 3, "it reads")
    assert readers.measured("").ours == 0
    with Readers([member_at(make_fake("refusing"))], [Piece(1000, 1)], tries=3) as readers:
        until(lambda: readers.reads > 1, "it reads")
    found = readers.measured("note")
    assert found.ours == readers.reads == readers.again / 2
    assert "first: /bench/1000/00000001.bin: 503" in found.note
    with pytest.raises(BenchError, match="nothing was read"):
        Readers([], [], tries=1).measured("")


def test_checkpoints_that_fail_are_counted(source, make_fake, monkeypatch):
    monkeypatch.setattr(cluster_outage, "_EVERY_S", 0.01)
    monkeypatch.setattr(cluster_outage, "_TRIES", 1)
    with cluster_outage.Writer(source) as writer:
        until(lambda: len(writer.written) > 1, "it writes")
    counts = counts_at(source.url)
    assert (writer.failures, writer.written) == ([], counts.stored)
    assert len(counts.stored) == counts.writes > 1
    with cluster_outage.Writer(make_fake("closing")) as writer:
        until(lambda: writer.failures, "a write fails")
    assert not writer.written
    assert writer.failures[0].startswith("/bench/8000000/00000000.bin: ")


def test_only_a_body_that_came_whole_and_right_counts_as_stored(source):
    for path, body in (
        (Piece(1000, 1).path, b"x" * 1000),
        (Piece(1000, 2).path, bytes(Piece(1000, 2).body())),
    ):
        request = urllib.request.Request(source.url + path, data=body, method="PUT")
        with suppress(urllib.error.HTTPError), urllib.request.urlopen(request):
            pass
    assert counts_at(source.url).stored == {Piece(1000, 2).path}
    assert counts_at(source.url).writes == 2


@needs_redis
def test_a_cluster_runs_its_rows(two):
    pieces = [Piece(2000, number) for number in range(60)]
    shares = [two.owned_by(place, pieces) for place in (0, 1)]
    assert sorted(shares[0] + shares[1]) == pieces
    assert min(map(len, shares)) > 10
    near, owner = (member.served for member in two.members)
    warm(near, shares[1])
    require_hits(owner, shares[1])
    with pytest.raises(BenchError, match="wanted hits of ram"):
        require_hits(owner, [Piece(2000, 999)])
    assert cold(two, objects=20).ours == 1.0
    p50, p99 = put_latencies(near, owner, shares[1][:4], rounds=2)
    assert "8 writes each" in p50.note
    assert p99.ours >= -1000


@needs_redis
def test_ranks_read_through_their_nodes_and_hits_are_counted_at_the_origin(two):
    hits = play(two, [member.served for member in two.members], Ranks.of(uniform(40, 3), 2))
    assert hits == 100.0, "all fits"
    assert all(member.get("/v1/stats")["cluster"]["relayed"] for member in two.members)
    assert two.members[0].get("/v1/jobs")["jobs"][0]["order"]["epochs"]


@needs_redis
def test_a_killed_proxy_and_a_killed_engine_come_back(two, sender_to, monkeypatch):
    piece = two.owned_by(1, [Piece(3000, number) for number in range(20)])[0]
    killed = sender_to(two.members[1].served)
    two.members[1].kill()
    with pytest.raises((OSError, http.client.HTTPException)):
        killed.send("GET", piece.path)
    assert sender_to(two.members[0].served).must("GET", piece.path) == bytes(piece.body())
    two.members[1].start()
    two.settle(two.members)
    monkeypatch.setattr(cluster_outage, "_EVERY_S", 0.3)
    found = cluster_outage.outage(two, [piece], seconds=LEASE_S + 4)
    assert (found.reads.ours, found.checkpoints.ours) == (0, 0)
    assert re.search(r"answers 200: \d+,.* 503: \d+", found.checkpoints.note)
