"""Reads that a worker relays to another node: the client gets the answer that the coordinator would give."""

import asyncio
import time

import pytest

from shadeproxy.api.s3 import ClientKey
from shadeproxy.cluster.view import NodeFacts
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy.origin.pool import ConnectionPool
from tests.support.relaying import PAGE, cluster, listening
from tests.support.relaying_worker import worker_of
from tests.support.s3.clients import signed
from tests.support.s3.scripted import CUT, PAUSE, WAIT, ScriptedServer

pytestmark = pytest.mark.timeout(60)
BODY = bytes(i * 7 % 251 for i in range(3 * PAGE + 100))
LONG = BODY * 200
_CHANGING = {b"x-shade-cache"}


@pytest.fixture
def origin():
    origin = MemoryOrigin(chunk_bytes=100_000)
    meta = (("Content-Type", "image/png"), ("x-amz-meta-a", "b c"), ("x-amz-checksum-crc32", "AAAAAA=="))
    for key, body in (("b-small", b"some bytes"), ("b-large", BODY), ("b-long", LONG), ("b-empty", b"")):
        origin.put("b", key, body, headers=meta)
    origin.put("b", "a-own", b"own bytes", headers=meta)
    return origin


async def warm(worker):
    """Have the worker open a connection to the other node, and keep it idle."""
    while not worker.relayed:
        assert (await worker.ask("/b/b-small")).status == 200
        await asyncio.sleep(0.01)
    worker.relayed.clear()


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


async def test_answers_are_those_of_the_coordinator(tmp_path, origin):
    async with cluster(tmp_path, "a", "b", origin=origin) as (a, _), worker_of(a) as worker:
        await warm(worker)
        for path, wanted in (
            ("/b/b-small", ""),
            ("/b/b-large", ""),
            ("/b/b-large", "bytes=5-9"),
            ("/b/b-large", "bytes=-7"),
            ("/b/b-large", "bytes=99999-"),
            ("/b/b-large", "bytes=x"),
            ("/b/b-long", ""),
            ("/b/b-long", f"bytes=3-{len(LONG) - 5}"),
            ("/b/b-empty", ""),
            ("/b/b-none", ""),
            ("/b/b-small?partNumber=1", ""),
            ("/b/a-own", ""),
            ("/none/b-none", ""),
        ):
            more = [f"Range: {wanted}"] if wanted else []
            for method in ("GET", "HEAD"):
                for _ in range(2):
                    ours = await worker.ask(path, *more, method=method)
                    theirs = await a.ask(path, *more, method=method)
                    assert (ours.status, ours.cut, ours.body) == (theirs.status, theirs.cut, theirs.body)
                    assert [pair for pair in ours.fields if pair[0] not in _CHANGING] == [
                        pair for pair in theirs.fields if pair[0] not in _CHANGING
                    ]
        # The worker itself answers plain reads only: of whole objects and of ranges, short and long.
        ended = {one["bytes_sent"] for one in worker.requests.ended if one["relayed_to"] == "b"}
        assert ended == {10, len(BODY), 5, 7, len(LONG), len(LONG) - 7}
        assert {str(row.result) for row in worker.counts.rows()} == {"ok"}


async def test_many_requests_of_one_connection(tmp_path, origin):
    async with cluster(tmp_path, "a", "b", origin=origin) as (a, _), worker_of(a) as worker:
        await warm(worker)
        before, client = worker.passed_on, await worker.client()
        for _ in range(5):
            for path, body in (("/b/b-large", BODY), ("/b/b-long", LONG), ("/b/b-small", b"some bytes")):
                assert (await client.get(path)).body == body
        assert len(worker.relayed) == 15
        assert worker.passed_on == before


async def test_without_an_idle_connection_the_coordinator_reads_and_one_is_opened(tmp_path, origin):
    async with cluster(tmp_path, "a", "b", origin=origin) as (a, _), worker_of(a) as worker:
        assert (await worker.ask("/b/b-large")).body == BODY
        assert (worker.relayed, worker.passed_on) == ([], 1)
        (peer,) = worker.peers._peers.values()
        await until(lambda: peer.has_idle)
        assert (await worker.ask("/b/b-large")).body == BODY
        assert (worker.relayed, worker.passed_on) == (["/b/b-large"], 1)


@pytest.fixture
def opened(monkeypatch):
    """Return a list to which the pool of each connection is appended when the connection is opened."""
    opened, connect = [], ConnectionPool._connect

    async def note(pool, address):
        opened.append(pool)
        return await connect(pool, address)

    monkeypatch.setattr(ConnectionPool, "_connect", note)
    return opened


async def test_missing_objects_cost_no_connections(tmp_path, origin, opened):
    async with cluster(tmp_path, "a", "b", origin=origin) as (a, _), worker_of(a) as worker:
        await warm(worker)
        (peer,) = worker.peers._peers.values()
        for _ in range(6):
            assert (await worker.ask("/b/b-none")).status == 404
            await until(lambda: peer.has_idle)
        assert worker.relayed == ["/b/b-none"] * 6
        assert opened.count(peer._gets.pool) == 1


async def test_clients_beyond_the_connections_close_none_of_them(tmp_path, origin, opened):
    async with (
        cluster(tmp_path, "a", "b", origin=origin) as (a, _),
        worker_of(a, max_connections=2) as worker,
    ):
        await warm(worker)
        clients = [await worker.client() for _ in range(8)]
        for _ in range(4):
            for client in clients:
                client.ask("/b/b-large")
            for client in clients:
                assert (await client.answer()).body == BODY
        (peer,) = worker.peers._peers.values()
        assert 1 <= opened.count(peer._gets.pool) <= 2


async def test_without_memory_for_a_whole_answer_it_goes_piece_by_piece_or_by_the_coordinator(
    tmp_path, origin
):
    async with (
        cluster(tmp_path, "a", "b", origin=origin) as (a, _),
        worker_of(a, budget_bytes=200_000) as worker,
    ):
        await warm(worker)
        clients = [await worker.client() for _ in range(4)]
        for client in clients:
            client.ask("/b/b-large")
        for client in clients:
            assert (await client.answer()).body == BODY


HEAD = b'HTTP/1.1 200 OK\r\nETag: "e"\r\n'
WHOLE = HEAD + b"Content-Length: 10\r\n\r\nfrom peers"


@pytest.fixture
async def scripted(tmp_path, origin):
    """Yield a worker with an idle connection to another node, and the scripted server that acts
    as this node.
    """
    server = ScriptedServer()
    server.scripts = {"/b/b-small": [[WHOLE]]}
    async with (
        listening(server.serve) as address,
        cluster(tmp_path, "a", origin=origin, patience_s=0.2) as (a,),
    ):
        a.view.facts["b"] = NodeFacts(node="b", weight=1.0, peer=address)
        async with worker_of(a, patience_s=0.2) as worker:
            await warm(worker)
            yield worker, server
        server.go_on.set()
        await server.end()


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        ([HEAD + b"Content-Length: 10\r\n\r\nhalf", PAUSE, b"-whole"], 200, b"half-whole"),
        # A worker does not understand chunks: the coordinator asks the node again, and passes its answer on.
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"], 200, b"abc"),
        ([b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone"], 404, b"none"),
        # In the next cases nothing was sent to the client before the failure, so the origin answers.
        ([CUT], 200, b"some bytes"),
        ([HEAD + b"Content-Length: 10\r\n\r\n", CUT], 200, b"some bytes"),
        ([b"HTTP/1.1 421 Misdirected\r\nContent-Length: 0\r\n\r\n"], 200, b"some bytes"),
        ([b"not http\r\n\r\n", CUT], 200, b"some bytes"),
    ],
)
async def test_answers_that_are_not_plain(scripted, answer, status, body):
    worker, server = scripted
    server.scripts["/b/b-small"] = [answer]
    found = await worker.ask("/b/b-small")
    assert (found.status, found.body, found.cut) == (status, body, False)
    assert worker.relayed == ["/b/b-small"]


async def test_a_silent_node_is_given_up(scripted):
    worker, server = scripted
    server.scripts["/b/b-small"] = [[WAIT]]
    assert (await worker.ask("/b/b-small")).body == b"some bytes"
    (peer,) = worker.peers._peers.values()
    assert len(peer._failed_s) == 1


@pytest.mark.parametrize("length", [10, 5_000_000])
async def test_a_body_that_breaks_off_cuts_the_client(scripted, length):
    worker, server = scripted
    server.scripts["/b/b-small"] = [[HEAD + b"Content-Length: %d\r\n\r\nhalf" % length, PAUSE, CUT]]
    found = await worker.ask("/b/b-small")
    assert (found.status, found.body, found.cut) == (200, b"half", True)
    assert {str(row.result): row.requests for row in worker.counts.rows()}["broken"] == 1


@pytest.mark.parametrize("length", [10, 5_000_000])
async def test_a_client_that_leaves_ends_the_read(scripted, length):
    worker, server = scripted
    server.scripts["/b/b-small"] = [[HEAD + b"Content-Length: %d\r\n\r\nhalf" % length, WAIT]]
    client = await worker.client()
    client.ask("/b/b-small")
    await server.reached.wait()
    await client.reader.readuntil(b"half")
    await client.close()
    await until(lambda: worker.requests.ended[-1]["status"] == 499)
    (peer,) = worker.peers._peers.values()
    assert peer._users == 0


async def test_a_client_that_leaves_as_a_long_answer_begins_holds_no_connection(scripted, monkeypatch):
    worker, server = scripted
    server.scripts["/b/b-small"] = [[HEAD + b"Content-Length: 5000000\r\n\r\nhalf", WAIT]]
    stream, left = worker.relays.stream, []

    def leave(outlet, *begun):
        made = stream(outlet, *begun)
        # In one turn, the event loop learns that the client has left and that the answer has come.
        outlet.cut()
        outlet.connection_lost(None)
        made.cancel()
        left.append(made)
        return made

    monkeypatch.setattr(worker.relays, "stream", leave)
    client = await worker.client()
    client.ask("/b/b-small")
    await until(lambda: left and left[0]._task.done())
    (peer,) = worker.peers._peers.values()
    assert peer._users == 0
    assert [one["status"] for one in worker.requests.ended].count(499) == 1


async def test_a_client_that_is_slow_holds_a_long_answer_back(scripted):
    worker, server = scripted
    body = bytes(64 << 20)
    server.scripts["/b/b-small"] = [[HEAD + b"Content-Length: %d\r\n\r\n" % len(body), body]]
    client = await worker.client()
    client.ask("/b/b-small")
    await until(lambda: any(one.paused for one in worker.open))
    connection = next(one for one in worker.open if one.paused)
    waiting = connection._client.get_write_buffer_size()
    await asyncio.sleep(0.1)
    assert connection._client.get_write_buffer_size() == waiting < 1 << 21
    assert (await client.answer()).body == body


async def test_clients_with_an_upstream_of_their_own_are_the_coordinators(tmp_path, origin, monkeypatch):
    async with cluster(tmp_path, "a", "b", origin=origin) as (a, _), worker_of(a) as worker:
        await warm(worker)
        before = worker.passed_on
        monkeypatch.setattr("shadeproxy.api.s3.worker_relays.SHARED", "another")
        assert (await worker.ask("/b/b-small")).body == b"some bytes"
        assert (worker.relayed, worker.passed_on) == ([], before + 1)


async def test_a_client_with_an_upstream_of_its_own_is_not_remembered(tmp_path, origin):
    """A client with an upstream of its own is always passed on to the coordinator.

    For this client the origin decides on rights, also for objects that are cached and were sent to others.
    """
    own = ClientKey("own", "own-secret", upstream="another")
    async with cluster(tmp_path, "a", "b", origin=origin, clients=(own,)) as (a, _), worker_of(a) as worker:
        worker.lane._handler._authenticator.adopt((own,), anonymous=True)
        await warm(worker)
        for _ in range(3):
            assert (await worker.ask("/b/a-own")).body == b"own bytes"
        for path, body in (("/b/b-small", b"some bytes"), ("/b/a-own", b"own bytes")) * 2:
            before, client = worker.passed_on, await worker.client()
            client.writer.write(signed(path, key=own.access_key, secret=own.secret_key, now_s=time.time()))
            assert (await client.answer()).body == body
            assert worker.passed_on == before + 1
