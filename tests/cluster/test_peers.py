"""The patience of a node with other nodes, and the choice of nodes that reads no longer ask."""

import asyncio

import pytest

from shadeproxy.cluster import peers as module
from shadeproxy.cluster.peer_requests import REGION
from shadeproxy.cluster.peers import MOST_MEMORY_BYTES, NOT_ASKED, Peers, PeerState, peer_timeouts
from shadeproxy.cluster.view import NodeFacts
from shadeproxy.core.errors import ConfigError
from tests.support.clock import ManualClock

B = NodeFacts(node="b", weight=1.0, peer="127.0.0.1:1")


@pytest.fixture
async def peers():
    peers = Peers("a", "c", ["secret"], clock=ManualClock(), least_patience_s=1.0)
    yield peers
    await peers.aclose()


async def test_patience_follows_the_slowest_answers_of_late_within_bounds(peers):
    peer = peers.find(B)
    assert peer.patience_s == 1.0
    for seconds, patience_s in ((0.01, 1.0), (0.9, 2.7), (20.0, 10.0), (0.01, 1.0)):
        for _ in range(512):
            peer.answered(seconds)
        assert peer.patience_s == pytest.approx(patience_s)


async def test_one_slow_answer_in_many_changes_nothing(peers):
    peer = peers.find(B)
    for number in range(512):
        peer.answered(9.0 if number % 256 == 0 else 0.01)
    assert peer.patience_s == 1.0


async def test_memory_follows_the_longest_answers_of_late_within_bounds(peers):
    peer = peers.find(B)
    for size_bytes, least, most in (
        (100_000, 100_001, 140_000),
        (900_000, 900_001, 1_000_000),
        (1 << 21, 1 << 20, MOST_MEMORY_BYTES),
        (1000, 1001, 20_000),
    ):
        peer.answered(0.01, size_bytes)
        assert size_bytes == 1000 or peer.memory_bytes >= least, "the next answer may be as long"
        for _ in range(256):
            peer.answered(0.01, size_bytes)
        assert least <= peer.memory_bytes <= most


async def test_three_failures_in_five_seconds_skip_a_node_for_two(peers):
    peer, clock = peers.find(B), peers._clock
    for _ in range(6):
        peer.failed()
        assert not peer.skipped
        clock.advance(3.0)
    peer.answered(0.1)
    for _ in range(2):
        peer.failed()
    assert not peer.skipped
    peer.failed()
    assert peer.skipped
    clock.advance(1.9)
    assert peer.skipped
    clock.advance(0.2)
    assert not peer.skipped
    peer.failed()
    assert peer.skipped, "it has not answered since"


async def test_a_node_at_a_new_address_is_another_server(peers):
    peer = peers.find(B)
    assert peers.find(B) is peer
    moved = NodeFacts(node="b", weight=1.0, peer="127.0.0.1:2")
    assert peers.find(moved) is not peer
    peers.retain([moved])
    assert peers.find(B) is not peer


def test_a_cluster_without_a_secret_has_no_peers():
    with pytest.raises(ConfigError, match=r"cluster\.secret"):
        Peers("a", "c", [], clock=ManualClock())


@pytest.mark.parametrize("has_left", [False, True])
async def test_a_request_that_never_ends_does_not_keep_the_proxy_from_ending(peers, monkeypatch, has_left):
    monkeypatch.setattr(module, "_CLOSE_S", 0.01)
    peer = peers.find(B)
    peer.enter()
    if has_left:
        peers.retain([])
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await peers.aclose()
    assert not peers._closing


async def test_the_state_of_a_node_that_was_asked(peers):
    assert peers.states() == {}
    peer = peers.find(B)
    assert peers.states() == {"b": NOT_ASKED}
    for number in range(200):
        peer.answered(0.5 if number % 50 == 0 else 0.01)
    assert peers.states() == {"b": PeerState(False, 0.5, 200)}
    for _ in range(3):
        peer.failed()
    assert peers.states()["b"].skipped


async def test_writes_wait_no_longer_for_a_node_that_is_gone(peers, monkeypatch):
    monkeypatch.setattr(module, "_LATE_ANSWER_S", 0.0)
    peer, began = peers.find(B), asyncio.Event()

    async def wait():
        async with peer.while_there():
            began.set()
            await asyncio.Event().wait()

    for nodes, away in (([B], ["b"]), ([], [])):
        peers.retain([B])
        began.clear()
        waiting = asyncio.create_task(wait())
        await began.wait()
        peers.retain([B], away=["c"])
        await asyncio.sleep(0)
        assert not waiting.done()
        peers.retain(nodes, away=away)
        late = asyncio.create_task(wait())
        done, _ = await asyncio.wait([waiting, late], timeout=5)
        assert done == {waiting, late}
        assert [type(task.exception()) for task in (waiting, late)] == [TimeoutError, TimeoutError]


async def test_writes_at_a_node_that_is_back_wait_as_long_as_before(peers, monkeypatch):
    monkeypatch.setattr(module, "_LATE_ANSWER_S", 0.2)
    peer = peers.find(B)

    async def wait():
        async with peer.while_there():
            await asyncio.sleep(0.4)

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    peers.retain([B], away=["b"])
    peers.retain([B])
    await asyncio.wait_for(waiting, 5)


async def test_an_answer_that_a_node_gave_before_it_was_gone_still_counts(peers):
    peer, answer = peers.find(B), asyncio.Event()

    async def wait():
        async with peer.while_there():
            await answer.wait()

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    peers.retain([B], away=["b"])
    await asyncio.sleep(0.01)
    answer.set()
    await asyncio.wait_for(waiting, 5)


@pytest.mark.parametrize(("origin_read_s", "read_s"), [(5.0, 60.0), (30.0, 60.0), (90.0, 180.0)])
def test_another_node_may_wait_for_its_origin_before_it_answers(origin_read_s, read_s):
    assert peer_timeouts(origin_read_s).read_s == read_s


async def test_another_node_is_asked_in_one_region_whatever_the_origin_names(peers):
    endpoint = peers.find(B).origin._endpoint
    assert not endpoint.learn_region("b", "eu-west-1", asked=REGION)
