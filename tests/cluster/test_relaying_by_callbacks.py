"""Reads that another node answers. By callbacks or by a task, the client sees the same."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from shadeproxy.api.s3.pending_read import PendingRead
from shadeproxy.cluster.view import NodeFacts
from shadeproxy.core.errors import OriginUnavailable
from shadeproxy.core.types import ObjectRef
from shadeproxy.origin.memory import MemoryOrigin
from tests.support.callback_reads import Reads
from tests.support.relaying import CLUSTER_SECRET, PAGE, cluster, listening
from tests.support.s3.scripted import CUT, PAUSE, WAIT, Client, ScriptedServer

BODY = bytes(i * 7 % 251 for i in range(3 * PAGE + 100))
LONG = BODY * 200
_CHANGING = {b"x-shade-cache"}


@pytest.fixture
def origin():
    origin = MemoryOrigin(chunk_bytes=100_000)
    meta = (("Content-Type", "image/png"), ("x-amz-meta-a", "b c"), ("x-amz-checksum-crc32", "AAAAAA=="))
    origin.put("b", "b-small", b"some bytes", headers=meta)
    origin.put("b", "b-large", BODY, headers=meta)
    origin.put("b", "b-long", LONG, headers=meta)
    origin.put("b", "b-empty", b"", headers=meta)
    origin.put("b", "b-a b", b"with a space", headers=meta)
    return origin


def watched(node):
    """Return a list that receives the path of each read by callbacks that begins at ``node``."""
    begun, start = [], node.relays.start

    def start_and_note(peer, ref, path, **options):
        connection = start(peer, ref, path, **options)
        if connection is not None:
            begun.append(path)
        return connection

    node.relays.start = start_and_note
    return begun


async def warm(node, *fields):
    """Send requests until the node knows this client and has an idle connection to the other node."""
    for _ in range(3):
        assert (await node.ask("/b/b-small", *fields)).status == 200


@pytest.mark.parametrize("fields", [(), ("x-shade-job: train;epoch=1",), ("x-amz-checksum-mode: ENABLED",)])
@pytest.mark.parametrize("compiled", [False, True])
async def test_both_forms_give_the_same_answers(tmp_path, origin, fields, compiled):
    async with (
        cluster(tmp_path / "1", "a", "b", origin=origin, compiled=compiled) as (by_callbacks, _),
        cluster(tmp_path / "2", "a", "b", origin=origin, fast=False) as (by_task, _),
    ):
        begun = watched(by_callbacks)
        for node in (by_callbacks, by_task):
            await warm(node, *fields)
        for path, wanted in (
            ("/b/b-small", ""),
            ("/b/b-large", ""),
            ("/b/b-large", "bytes=5-9"),
            ("/b/b-large", "bytes=4000-"),
            ("/b/b-large", "bytes=-7"),
            ("/b/b-large", "bytes=99999-"),
            ("/b/b-large", "bytes=x"),
            ("/b/b-long", ""),
            ("/b/b-empty", ""),
            ("/b/b-a%20b", ""),
            ("/b/b-none", ""),
            ("/none/b-none", ""),
        ):
            more = (*fields, *([f"Range: {wanted}"] if wanted else []))
            for _ in range(2):
                ours, theirs = await by_callbacks.ask(path, *more), await by_task.ask(path, *more)
                assert (ours.status, ours.cut) == (theirs.status, theirs.cut)
                assert [pair for pair in ours.fields if pair[0] not in _CHANGING] == [
                    pair for pair in theirs.fields if pair[0] not in _CHANGING
                ]
                assert ours.body == theirs.body
                assert ours.field(b"x-shade-node") == b"b"
        assert len(begun) > 15
        assert by_callbacks.results() == by_task.results()
        assert sum(row.bytes for row in by_callbacks.counts.rows()) == sum(
            row.bytes for row in by_task.counts.rows()
        )
        (peer,) = by_callbacks.peers._peers.values()
        assert peer._users == 0
        assert by_callbacks.handler._relayed.taken_bytes == 0


async def test_many_requests_of_one_connection(tmp_path, origin):
    async with cluster(tmp_path, "a", "b", origin=origin) as (a, _):
        await warm(a)
        begun = watched(a)
        client = await a.client()
        for _ in range(5):
            for path, body in (("/b/b-large", BODY), ("/b/b-long", LONG), ("/b/b-small", b"some bytes")):
                assert (await client.get(path)).body == body
        assert len(begun) == 15


async def test_an_answer_announces_the_end_of_its_connection(tmp_path, origin):
    async with cluster(tmp_path, "a", "b", origin=origin) as (a, _):
        await warm(a)
        begun = watched(a)
        answer = await a.ask("/b/b-large", "Connection: close")
        assert answer.field(b"connection") == b"close"
        assert answer.body == BODY
        assert begun == ["/b/b-large"]


HEAD = b'HTTP/1.1 200 OK\r\nETag: "e"\r\n'
WHOLE = HEAD + b"Content-Length: 10\r\n\r\nfrom peers"


@pytest.fixture
async def scripted(tmp_path, origin):
    """Yield a node, and the server that stands for the other node and follows a script. The connection
    between them is idle.
    """
    server = ScriptedServer()
    server.scripts = {"/b/b-small": [[WHOLE]]}
    async with (
        listening(server.serve) as address,
        cluster(tmp_path, "a", origin=origin, patience_s=0.2) as (a,),
    ):
        a.view.facts["b"] = NodeFacts(node="b", weight=1.0, peer=address)
        await warm(a)
        server.begun = watched(a)
        assert (await a.ask("/b/b-small")).body == b"from peers"
        assert len(server.begun) == 1
        yield a, server
        (peer,) = a.peers._peers.values()
        assert peer._users == 0
        assert a.handler._relayed.taken_bytes == 0
        server.go_on.set()
        await server.end()


@pytest.mark.parametrize(
    ("answer", "status", "body", "results"),
    [
        ([HEAD + b"Content-Length: 10\r\n\r\nhalf", PAUSE, b"-whole"], 200, b"half-whole", {"ok": 5}),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"], 200, b"abc", {"ok": 5}),
        # The client has received nothing yet, so the origin answers.
        ([CUT], 200, b"some bytes", {"ok": 4, "fallback": 1}),
        ([b"HTTP/1.1 200", CUT], 200, b"some bytes", {"ok": 4, "fallback": 1}),
        ([HEAD + b"Content-Length: 4\r\n\r\nmore than said"], 200, b"some bytes", {"ok": 4, "fallback": 1}),
        ([b"HTTP/1.1 421 No\r\nContent-Length: 0\r\n\r\n"], 200, b"some bytes", {"ok": 4, "misdirected": 1}),
        (
            [b"HTTP/1.1 403 No\r\nx-shade-refused: NotOfCluster\r\nContent-Length: 0\r\n\r\n"],
            200,
            b"some bytes",
            {"ok": 4, "refused": 1},
        ),
        ([WHOLE.replace(b'ETag: "e"', b"x-shade-refused: x")], 200, b"some bytes", {"ok": 4, "refused": 1}),
        ([b"HTTP/1.1 202 Yes\r\nContent-Length: 0\r\n\r\n"], 503, None, None),
        ([b"HTTP/1.1 206 Yes\r\nContent-Range: bytes 0-0/9\r\nContent-Length: 1\r\n\r\nx"], None, None, None),
    ],
)
async def test_answers_that_are_not_plain(scripted, answer, status, body, results):
    a, server = scripted
    server.scripts["/b/b-small"] = [answer]
    got = await a.ask("/b/b-small")
    assert len(server.begun) == 2
    if status is not None:
        assert got.status == status
    if body is not None:
        assert got.body == body
    if results is not None:
        if CUT in answer and len(answer) == 1:
            results = {"ok": 4, "fallback": 1}
        assert a.results() == results


async def test_a_body_that_breaks_off_cuts_the_client(scripted):
    a, server = scripted
    server.scripts["/b/b-small"] = [[HEAD + b"Content-Length: 10\r\n\r\nhalf", PAUSE, CUT]]
    got = await a.ask("/b/b-small")
    assert (got.status, got.body, got.cut) == (200, b"half", True)
    assert a.results() == {"ok": 4, "broken": 1}


async def test_a_silent_node_is_given_up(scripted):
    a, server = scripted
    server.scripts["/b/b-small"] = [[WAIT, WHOLE]]
    got = await asyncio.wait_for(a.ask("/b/b-small"), 5)
    assert got.body == b"some bytes"
    assert got.field(b"x-shade-cache") == b"origin"
    assert a.results() == {"ok": 4, "fallback": 1}


async def test_a_range_that_was_not_asked_for_is_no_answer(scripted):
    a, server = scripted
    server.scripts["/b/b-small"] = [
        [b"HTTP/1.1 206 Yes\r\nContent-Range: bytes 0-3/10\r\nContent-Length: 4\r\n\r\nsome"]
    ]
    got = await a.ask("/b/b-small", "Range: bytes=4-7")
    assert got.status == 503


async def test_a_client_that_leaves_ends_the_read(scripted):
    a, server = scripted
    server.scripts["/b/b-small"] = [[HEAD + b"Content-Length: 10\r\n\r\nhalf", WAIT]]
    client = await a.client()
    client.ask("/b/b-small")
    await server.reached.wait()
    await client.reader.readuntil(b"half")
    await client.close()
    (peer,) = a.peers._peers.values()
    async with asyncio.timeout(5):
        while peer._users:
            await asyncio.sleep(0.01)


async def test_a_client_that_is_slow_holds_its_answer_and_gets_it(tmp_path, origin):
    body = bytes(range(256)) * 4000
    origin.put("b", "b-mega", body)
    async with cluster(tmp_path, "a", "b", origin=origin, send_bytes=8192) as (a, _):
        await warm(a)
        assert (await a.ask("/b/b-mega")).body == body
        client = await Client.open(f"127.0.0.1:{a.port}", receive_bytes=4096)
        begun = watched(a)
        client.ask("/b/b-mega")
        await client.reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.2)
        assert begun
        assert len(body) < a.handler._relayed.taken_bytes < len(body) + 4096
        assert await client.reader.readexactly(len(body)) == body
        await asyncio.sleep(0.05)
        assert a.handler._relayed.taken_bytes == 0
        await client.close()


async def test_a_short_answer_does_not_keep_the_memory_for_a_long_one(tmp_path, origin, monkeypatch):
    """A short answer does not keep memory that was taken for a long one. If a client takes no bytes, the data
    written to it stays in memory, even after the read has ended.
    """
    origin.put("b", "b-mega", bytes(1_000_000))
    written, write_pieces = [], PendingRead.write_pieces
    async with cluster(tmp_path, "a", "b", origin=origin) as (a, _):
        await warm(a)
        assert len((await a.ask("/b/b-mega")).body) == 1_000_000

        def note(self, pieces):
            written.append(type(pieces[-1]))
            write_pieces(self, pieces)

        monkeypatch.setattr(PendingRead, "write_pieces", note)
        begun = watched(a)
        assert (await a.ask("/b/b-small")).body == b"some bytes"
        assert written == [bytes]
        assert len((await a.ask("/b/b-mega")).body) == 1_000_000
        assert set(written[1:]) == {memoryview}
        assert begun == ["/b/b-small", "/b/b-mega"]


async def test_a_read_beyond_the_memory_for_whole_answers_is_relayed_in_pieces(tmp_path, origin):
    async with cluster(tmp_path, "a", "b", origin=origin) as (a, _):
        await warm(a)
        assert a.handler._relayed.try_take(64 << 20)
        assert (await a.ask("/b/b-large")).body == BODY
        a.handler._relayed.give(64 << 20)
        assert a.results() == {"ok": 4}


@pytest.mark.parametrize("cause", ["view", "stop"])
async def test_an_answer_that_no_task_takes_gives_its_connection_back(scripted, cause):
    """An answer that no task takes over gives its connection back. After the head of the answer, and before a
    task reads the body, the object may move to this node, or the node may stop. A connection that is not
    given back would block the end of the proxy for ever.
    """
    a, server = scripted
    server.scripts["/b/b-small"] = [[HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"]]
    find, begun = a.relays.find, server.begun

    def find_and_change(ref):
        if cause == "view":
            a.view.reader = lambda _ref: None
        else:
            a.engine._closing = True
        return peer

    peer = find(ObjectRef("b", "b-small"))
    a.relays.find = find_and_change
    got = await a.ask("/b/b-small")
    assert len(begun) == 2
    assert (got.status, got.body) == (200, b"some bytes") if cause == "view" else got.status == 503
    a.engine._closing = False
    assert peer._users == 0


async def test_a_client_that_joined_a_read_of_another_node_is_sent_on(tmp_path, origin):
    """A client that has joined another node's read gets its answer from the owner if the read fails. Another
    node reads a page here, and this read fails because the object has moved. The waiting client is not that
    node, so its request may be sent on.
    """
    asked, go_on, reads = asyncio.Event(), asyncio.Event(), Reads(lambda _ref: (b"", ""))
    reads.ready = False

    class Down:
        @asynccontextmanager
        async def open(self, _ref, **_options):
            asked.set()
            await go_on.wait()
            raise OriginUnavailable("down")
            yield

    async with cluster(tmp_path, "a", "b", origin=origin) as (a, b):
        filling = b.engine._filling
        b.engine._callback_reads = filling._callback_reads = reads
        filling.filler._origin = Down()
        relayed, direct = await a.client(), await b.client()
        relayed.ask("/b/b-small")
        await asked.wait()
        direct.ask("/b/b-small")
        (flight,) = filling.flights.all()
        async with asyncio.timeout(5):
            while len(flight.followers) < 2:
                await asyncio.sleep(0.01)
        for node in (a, b):
            node.view.owner_of = lambda _ref: "a"
        go_on.set()
        for client in (relayed, direct):
            answer = await client.answer()
            assert (answer.status, answer.body) == (200, b"some bytes")
        assert answer.field(b"x-shade-node") == b"a"


async def test_a_new_secret_signs_at_once(tmp_path, origin):
    async with cluster(tmp_path, "a", "b", origin=origin, secrets={"b": ("newer", CLUSTER_SECRET)}) as (a, _):
        await warm(a)
        a.peers.adopt(("newer",))
        begun = watched(a)
        assert (await a.ask("/b/b-small")).field(b"x-shade-node") == b"b"
        assert begun
