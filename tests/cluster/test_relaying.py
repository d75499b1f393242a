"""Reads and writes through a node that does not own the object. The owner answers, or else the origin."""

import asyncio
import base64
import hashlib
import re
import time
from contextlib import asynccontextmanager

import pytest

from shadeproxy.cluster import peers
from shadeproxy.cluster.node_stats import ask_for_stats
from shadeproxy.cluster.relay_counts import RelayEnd
from shadeproxy.cluster.view import NodeFacts
from shadeproxy.core.clock import SystemClock
from shadeproxy.core.errors import Misdirected, ObjectChanged, OriginError
from shadeproxy.core.tracing import RELAYED
from shadeproxy.core.types import ObjectRef, Span
from shadeproxy.engine.rules import Rule
from shadeproxy.origin.base import ForwardRequest
from shadeproxy.origin.memory import Barrier, MemoryOrigin
from tests.support.relaying import PAGE, cluster, counted, listening

BODY = bytes(i * 7 % 251 for i in range(3 * PAGE + 100))
OK, FALLBACK, MISDIRECTED, REFUSED, BROKEN = RelayEnd
_OWN = {b"x-shade-cache", b"x-shade-node"}


@pytest.fixture
def origin():
    origin = MemoryOrigin(chunk_bytes=1000)
    meta = (("Content-Type", "image/png"), ("x-amz-meta-a", "b c"))
    origin.put("b", "b-small", b"some bytes", headers=meta)
    origin.put("b", "b-large", BODY, headers=meta)
    origin.put("b", "b-raw/1", BODY, headers=meta)
    origin.put("b", "a-own", b"of a")
    return origin


@pytest.fixture
async def nodes(tmp_path, origin):
    async with cluster(tmp_path, "a", "b", origin=origin, rules=(Rule("b", "b-raw/", cache=False),)) as nodes:
        yield nodes


def fields_of(answer):
    return {pair for pair in answer.fields if pair[0] not in _OWN}


ETAG = '"9d0f3e3d4f8b0f6ac3a5bd3c0c9d1c2b"'


@pytest.mark.parametrize(
    ("method", "path", "fields"),
    [
        ("GET", "/b/b-small", ()),
        ("HEAD", "/b/b-small", ()),
        ("GET", "/b/b-large", ()),
        ("HEAD", "/b/b-large", ("Range: bytes=5-9",)),
        ("GET", "/b/b-large", ("Range: bytes=4000-9000",)),
        ("GET", "/b/b-large", ("Range: bytes=-7",)),
        ("GET", "/b/b-large", ("Range: bytes=99999-",)),
        ("GET", "/b/b-small", ("If-None-Match: *",)),
        ("GET", "/b/b-small", (f"If-Match: {ETAG}",)),
        ("GET", "/b/b-small", ("x-amz-checksum-mode: ENABLED",)),
        ("GET", "/b/b-small?x-id=GetObject", ()),
        ("GET", "/b/b-small", ("x-shade-job: train;epoch=3;rank=0",)),
        ("GET", "/b/b-none", ()),
        ("HEAD", "/b/b-none", ()),
        ("GET", "/none/b-none", ()),
        ("GET", "/b/b-raw/1", ("Range: bytes=10-20",)),
    ],
)
async def test_an_answer_is_that_of_the_owner(nodes, origin, method, path, fields):
    a, b = nodes
    await b.ask(path, *fields, method=method)
    await b.engine._filling.flights.drain()
    direct = await b.ask(path, *fields, method=method)
    relayed = await a.ask(path, *fields, method=method)
    assert (relayed.status, relayed.body, relayed.cut) == (direct.status, direct.body, False)
    assert fields_of(relayed) == fields_of(direct)
    assert relayed.field(b"x-shade-node") == b"b"
    assert relayed.field(b"x-shade-cache") == direct.field(b"x-shade-cache")
    assert a.results() == counted(OK)
    assert len(a.engine.cache.resident_pages()[0]) == 0, "only the owner caches the object"


async def test_an_object_that_is_cached_by_its_owner_is_read_from_the_origin_once(nodes, origin):
    a, _ = nodes
    for _ in range(3):
        answer = await a.ask("/b/b-large")
        assert answer.body == BODY
    assert answer.field(b"x-shade-cache") == b"ram"
    pages = [span for ref, span, _ in origin.reads if ref.key == "b-large"]
    assert len(pages) == len(set(pages)) == 4
    (row,) = a.counts.rows()
    assert (row.node, row.requests, row.bytes) == ("b", 3, 3 * len(BODY))
    assert row.seconds > 0


async def test_the_owner_counts_the_read_with_its_job_and_the_near_node_counts_a_request(nodes):
    a, b = nodes
    await a.ask("/b/b-small", "x-shade-job: train;epoch=3;rank=1")
    await a.ask("/b/b-small", "x-shade-job: train;epoch=3;rank=1")
    for node in nodes:
        node.engine.access_log.flush()
    # The request cache of b answers the second read, and its hits are counted many at a time.
    assert b.peer_requests.ended[0]["job"].job == "train"
    assert b.peer_requests.ended[0]["job"].epoch == 3
    read = b.engine._counting._stats.snapshot()
    assert read["buckets"]["b"]["requests"] == 2
    assert "b" not in a.engine._counting._stats.snapshot()["buckets"]
    assert [request["source"] for request in a.requests.ended] == ["bypass", "bypass"]


async def test_reads_that_go_past_every_cache_go_straight_to_the_origin(nodes):
    a, _ = nodes
    for path, *fields in (
        ("/b/b-small?response-content-type=text/plain",),
        ("/b/b-small", "x-amz-request-payer: requester"),
        ("/b/b-small", "Origin: http://a.example"),
        ("/b/a-own",),
        ("/b?list-type=2",),
    ):
        answer = await a.ask(path, *fields)
        assert answer.status == 200
        assert answer.field(b"x-shade-node") == b""
    answer = await a.ask("/b/b-small", body=b"x")
    assert (answer.status, answer.field(b"x-shade-node")) == (200, b""), "a body cannot be sent twice"
    assert a.results() == {}


async def test_the_upstream_and_the_namespace_of_the_client_reach_the_owner(nodes, origin):
    a, _ = nodes
    ref = ObjectRef("b", "b-small", "an account; of its own")
    async with a.engine._past.open(ref, upstream="client;1") as read:
        assert b"".join([piece async for piece in read.chunks]) == b"some bytes"
    assert {upstream for key, _, upstream in origin.reads if key == ref} == {"client;1"}


async def test_a_span_is_read_from_the_owner(nodes, origin):
    a, b = nodes
    ref = ObjectRef("b", "b-large")
    async with a.engine._past.open(ref, span=Span(5, 5000)) as read:
        assert read.meta.size == len(BODY)
        assert b"".join([piece async for piece in read.chunks]) == BODY[5:5000]
    assert a.results() == counted(OK)
    assert len(b.peer_requests.ended) == 1


# ---------------------------------------------------------------------- writes


async def test_a_write_is_executed_by_the_owner(nodes, origin):
    a, b = nodes
    assert (await b.ask("/b/b-small")).body == b"some bytes"
    put = await a.ask("/b/b-small", "Content-Type: text/plain", "x-amz-meta-k: v", method="PUT", body=b"new")
    assert put.status == 200
    assert put.field(b"x-shade-node") == b"b"
    for node in nodes:
        read = await node.ask("/b/b-small")
        assert read.body == b"new"
        assert read.field(b"x-amz-meta-k") == b"v"
    assert [one["operation"] for one in b.peer_requests.ended] == ["PutObject", "GetObject"]
    copy = await a.ask("/b/b-copy", "x-amz-copy-source: /b/a-own", method="PUT")
    assert copy.status == 200
    assert b"CopyObjectResult" in copy.body
    assert (await a.ask("/b/b-copy")).body == b"of a"
    assert (await a.ask("/b/b-copy", method="DELETE")).status == 204
    assert (await b.ask("/b/b-copy")).status == 404
    assert len(a.engine.cache.resident_pages()[0]) == 0


async def test_the_parts_of_an_upload_go_straight_and_its_end_by_the_owner(nodes, origin):
    a, b = nodes
    await b.ask("/b/b-small")
    begun = await a.ask("/b/b-small?uploads", method="POST")
    upload = re.search(rb"<UploadId>([^<]+)<", begun.body)[1].decode()
    part = await a.ask(f"/b/b-small?partNumber=1&uploadId={upload}", method="PUT", body=b"the part")
    assert b.peer_requests.ended == []
    etag = part.field(b"etag").decode()
    document = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>"
    end = await a.ask(
        f"/b/b-small?uploadId={upload}", method="POST", body=f"{document}</CompleteMultipartUpload>".encode()
    )
    assert end.status == 200, end.body
    assert [one["operation"] for one in b.peer_requests.ended] == ["CompleteMultipartUpload"]
    assert (await b.ask("/b/b-small")).body == b"the part"


def delete_of(*keys, quiet=False):
    objects = "".join(f"<Object><Key>{key}</Key></Object>" for key in keys)
    return f"<Delete>{objects}{'<Quiet>true</Quiet>' if quiet else ''}</Delete>".encode()


async def delete(node, *keys, quiet=False):
    body = delete_of(*keys, quiet=quiet)
    digest = base64.b64encode(hashlib.md5(body).digest()).decode()
    return await node.ask("/b?delete", f"Content-MD5: {digest}", method="POST", body=body)


def keys_in(answer, element):
    return set(re.findall(rf"<{element}><Key>([^<]*)</Key>".encode(), answer.body))


ODD = "b-&lt;&amp; &#233;&#13;"


@pytest.mark.parametrize("quiet", [False, True])
async def test_a_list_of_keys_is_deleted_by_each_of_their_writers(tmp_path, origin, quiet):
    async with cluster(tmp_path, "a", "b", "c", origin=origin) as nodes:
        a, b, c = nodes
        origin.put("b", "c-1", b"of c")
        origin.put("b", "b-<& \u00e9\r", b"odd")
        for node, key in ((a, "a-own"), (b, "b-small"), (c, "c-1")):
            assert (await node.ask(f"/b/{key}")).status == 200
        answer = await delete(a, "a-own", "b-small", "c-1", ODD, "a-own", quiet=quiet)
        assert answer.status == 200
        named = re.findall(rb"<Deleted><Key>([^<]*)</Key>", answer.body)
        assert len(named) == (0 if quiet else 5)
        del named[3:4]
        listed = [] if quiet else [b"a-own", b"b-small", b"c-1", b"a-own"]
        assert named == listed, "the order of the list, in which a key may be twice"
        assert quiet or "\u00e9".encode() in answer.body
        assert keys_in(answer, "Error") == set()
        assert sorted(origin.buckets["b"]) == ["b-large", "b-raw/1"]
        for node, key in ((a, "a-own"), (b, "b-small"), (c, "c-1")):
            assert (await node.ask(f"/b/{key}")).status == 404
        assert [len(node.peer_requests.ended) for node in nodes] == [0, 1, 1]


@pytest.mark.parametrize("quiet", [False, True])
async def test_keys_of_a_writer_that_is_gone_are_errors_of_the_answer(tmp_path, origin, quiet):
    async with cluster(tmp_path, "a", "b", "c", origin=origin) as nodes:
        a, _, c = nodes
        origin.put("b", "c-1", b"of c")
        await c.stop_listening_for_peers()
        answer = await delete(a, "a-own", "b-small", "c-1", quiet=quiet)
        assert answer.status == 200
        assert keys_in(answer, "Deleted") == (set() if quiet else {b"a-own", b"b-small"})
        assert keys_in(answer, "Error") == {b"c-1"}
        assert b"<Code>ServiceUnavailable</Code>" in answer.body
        assert "c-1" in origin.buckets["b"]
        alone = await delete(a, "c-1")
        assert alone.status == 503
        assert alone.field(b"retry-after") == b"1"


# ---------------------------------------------------------------------- failures


async def test_a_node_that_is_gone_costs_reads_nothing_but_its_cache_and_stops_writes(nodes, origin):
    a, b = nodes
    assert (await a.ask("/b/b-small")).field(b"x-shade-node") == b"b"
    await b.stop_listening_for_peers()
    read = await a.ask("/b/b-small")
    assert (read.status, read.body) == (200, b"some bytes")
    assert read.field(b"x-shade-cache") == b"origin"
    assert read.field(b"x-shade-node") == b""
    assert a.results() == counted(OK, FALLBACK)
    put = await a.ask("/b/b-small", method="PUT", body=b"new")
    assert put.status == 503
    assert put.field(b"retry-after") == b"1"
    assert b"node b" in put.body
    assert origin.buckets["b"]["b-small"].body == b"some bytes"
    assert a.results() == counted(OK, FALLBACK, REFUSED)


@asynccontextmanager
async def beside(tmp_path, origin, serve, **options):
    """Yield node a of a cluster. The function ``serve`` answers in place of node b."""
    async with listening(serve) as address, cluster(tmp_path, "a", origin=origin, **options) as (a,):
        a.view.facts["b"] = NodeFacts(node="b", weight=1.0, peer=address)
        yield a


async def test_a_silent_node_is_given_up_after_the_time_for_peers_and_soon_not_asked(tmp_path, origin):
    asked = []

    async def silent(reader, writer):
        while True:
            await reader.readuntil(b"\r\n\r\n")
            asked.append(1)

    async with beside(tmp_path, origin, silent, patience_s=0.05) as a:
        for _ in range(5):
            read = await asyncio.wait_for(a.ask("/b/b-small"), 2)
            assert read.body == b"some bytes"
            assert read.field(b"x-shade-cache") == b"origin"
        assert len(asked) == 3
        assert a.peers.skipped() == {"b": True}
        assert a.results() == {"fallback": 5}


async def test_an_answer_that_breaks_off_cuts_the_client(tmp_path, origin):
    async def broken(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 20000\r\n\r\n' + bytes(10_000))
        await writer.drain()

    async with beside(tmp_path, origin, broken) as a:
        read = await a.ask("/b/b-small")
        assert read.cut
        assert a.results() == counted(BROKEN)


def breaks_off_after(count, etag):
    """Return a node that sends ``count`` bytes of ``BODY`` with this ETag, and then ends the connection."""

    async def node(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\nETag: %s\r\nContent-Length: %d\r\n\r\n" % (etag.encode(), len(BODY))
        )
        writer.write(BODY[:count])
        await writer.drain()

    return node


async def read_past_the_cache(node, key):
    async with node.engine._past.open(ObjectRef("b", key)) as read:
        return b"".join([bytes(piece) async for piece in read.chunks])


@pytest.mark.parametrize("count", [0, 1, 5000, len(BODY) - 1])
async def test_the_rest_of_a_body_that_breaks_off_is_read_from_the_origin(tmp_path, origin, count):
    etag = (await origin.head(ObjectRef("b", "b-large"))).etag
    async with beside(tmp_path, origin, breaks_off_after(count, etag)) as a:
        assert await read_past_the_cache(a, "b-large") == BODY
        assert [span for _, span, _ in origin.reads] == [Span(count, len(BODY))]
        assert a.results() == counted(BROKEN)


async def test_the_rest_of_another_version_is_never_read(tmp_path, origin):
    async with beside(tmp_path, origin, breaks_off_after(5000, ETAG)) as a:
        with pytest.raises(ObjectChanged):
            await read_past_the_cache(a, "b-large")
    async with beside(tmp_path, origin, breaks_off_after(5000, 'W/"weak"')) as a:
        with pytest.raises(OriginError):
            await read_past_the_cache(a, "b-large")


async def test_a_write_whose_node_gives_no_answer_has_an_unknown_outcome(tmp_path, origin):
    async def gone(reader, writer):
        await reader.readuntil(b"\r\n\r\n")

    async with beside(tmp_path, origin, gone) as a:
        put = await a.ask("/b/b-small", method="PUT", body=b"new")
        assert put.status == 500
        assert b"may have carried out" in put.body
        assert a.results() == counted(BROKEN)


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"])
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_a_write_waits_no_longer_for_a_node_than_the_node_can_confirm_it(
    tmp_path, origin, monkeypatch, method, sent
):
    """A write waits for another node no longer than that node can confirm it. A node that stands still keeps
    its connections. After its lease other nodes may act in its place.
    """
    monkeypatch.setattr(peers, "_LATE_ANSWER_S", 0.5)
    asked = asyncio.Event()

    async def stopped(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)
        asked.set()
        await reader.read()

    async with beside(tmp_path, origin, stopped) as a:
        writing = asyncio.create_task(a.ask("/b/b-small", method=method, body=b"new"))
        await asked.wait()
        a.peers.retain(a.view.facts.values(), away=["b"])
        answer = await asyncio.wait_for(writing, 10)
        assert answer.cut if sent else (answer.status == 500 and b"may have carried out" in answer.body)
        assert a.results() == counted(BROKEN)


@pytest.mark.parametrize(
    ("head", "wanted"),
    [
        (
            b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-3/10\r\nContent-Length: 4\r\n",
            "bytes=4-7",
        ),
        (b"HTTP/1.1 206 Partial Content\r\nContent-Length: 4\r\n", "bytes=4-7"),
        (b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-3/10\r\nContent-Length: 4\r\n", ""),
        (b"HTTP/1.1 202 Accepted\r\nContent-Length: 4\r\n", ""),
        (b"HTTP/1.1 304 Not Modified\r\n", ""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n", ""),
    ],
)
async def test_an_answer_that_does_not_fit_the_request_is_no_success(tmp_path, origin, head, wanted):
    async def lying(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + b"\r\nlies")
        await writer.drain()

    async with beside(tmp_path, origin, lying) as a:
        read = await a.ask("/b/b-small", *([f"Range: {wanted}"] if wanted else []))
        # The node recognises a broken answer before it uses the answer's head.
        assert read.cut or read.status == 503 or (read.status, read.body) == (200, b"some bytes")


async def test_another_secret_stops_writes_and_no_read(tmp_path, origin):
    async with cluster(tmp_path, "a", "b", origin=origin, secrets={"b": ("another",)}) as (a, _):
        read = await a.ask("/b/b-small")
        assert (read.status, read.body) == (200, b"some bytes")
        assert a.results() == counted(REFUSED)
        put = await a.ask("/b/b-small", method="PUT", body=b"new")
        assert put.status == 503
        reason = "NotOfCluster, cluster.secret or the clocks of both machines differ: give both the same"
        assert f"refused it ({reason}): nothing was written".encode() in put.body
        assert origin.buckets["b"]["b-small"].body == b"some bytes"


class _Ahead(SystemClock):
    now_s = staticmethod(lambda: time.time() + 3600.0)


class _Behind(SystemClock):
    now_s = staticmethod(lambda: time.time() - 480.0)


async def test_a_clock_that_is_minutes_behind_stops_nothing(nodes, origin):
    a, _ = nodes
    a.peers._clock = a.relays._clock = _Behind()
    assert (await a.ask("/b/b-small", method="PUT", body=b"new")).status == 200
    assert (await a.ask("/b/b-small")).body == origin.buckets["b"]["b-small"].body == b"new"
    assert a.results() == {"ok": 2}


async def test_a_clock_that_is_an_hour_ahead_stops_writes_with_the_reason_and_no_read(nodes, origin):
    a, _ = nodes
    a.peers._clock = a.relays._clock = _Ahead()
    for _ in range(2):
        read = await a.ask("/b/b-small")
        assert (read.status, read.body) == (200, b"some bytes")
    assert a.results() == {"refused": 2}
    put = await a.ask("/b/b-small", method="PUT", body=b"new")
    assert put.status == 503
    reason = "ClockSkew, the clocks of both machines differ by more than 15 minutes: set them"
    assert f"refused it ({reason}): nothing was written".encode() in put.body
    assert origin.buckets["b"]["b-small"].body == b"some bytes"
    (told,) = await ask_for_stats(a.peers, [a.view.facts["b"]])
    assert told.problem == f"it refused the request: {reason}"


async def test_nodes_with_different_views_read_the_origin_and_write_nothing(nodes, origin):
    a, b = nodes
    b.view.owner_of = lambda _ref: "a"
    read = await a.ask("/b/b-large", "Range: bytes=1-5000")
    assert (read.status, read.body) == (206, BODY[1:5001])
    assert read.field(b"x-shade-cache") == b"origin"
    assert a.results() == counted(MISDIRECTED)
    for body in (b"new", bytes(4 << 20)):
        put = await a.ask("/b/b-small", method="PUT", body=body)
        assert put.status == 503
        assert b"view is changing" in put.body
    assert origin.buckets["b"]["b-small"].body == b"some bytes"
    deleted = await delete(a, "b-small")
    assert deleted.status == 503
    assert "b-small" in origin.buckets["b"]
    assert b.results() == {}
    assert len(a.peer_requests.ended) == 0, "nothing came back to the node that asked"


async def test_a_node_that_the_others_refuse_says_why_it_writes_nothing(nodes, origin):
    a, _ = nodes
    a.view.facts = {}
    for hindered, said in [(False, b"view is changing"), (True, b"has no part in its cluster")]:
        a.view.hindered = hindered
        put = await a.ask("/b/b-small", method="PUT", body=b"new")
        assert (put.status, said in put.body) == (503, True)
    assert origin.buckets["b"]["b-small"].body == b"some bytes"


async def test_a_request_of_another_node_is_never_sent_to_a_third(nodes):
    """A request that came from another node is never sent on to a third node. The view may change between the
    listener's check and the read.
    """
    a, b = nodes
    was = RELAYED.set(True)
    try:
        with pytest.raises(Misdirected):
            read = ForwardRequest("GET", ObjectRef("b", "b-small"), "/b/b-small", reads_current=True)
            async with a.engine._past.forward(read):
                pass
        with pytest.raises(Misdirected):
            async with a.engine._past.open(ObjectRef("b", "b-small")):
                pass
        write = ForwardRequest("DELETE", ObjectRef("b", "b-small"), "/b/b-small", here=frozenset())
        with pytest.raises(Misdirected):
            async with a.engine._past.forward(write):
                pass
    finally:
        RELAYED.reset(was)
    assert b.peer_requests.ended == []


async def test_a_node_that_stops_refuses_and_the_origin_answers(nodes):
    a, b = nodes
    b.engine._closing = True
    read = await a.ask("/b/b-small")
    assert (read.status, read.body) == (200, b"some bytes")
    assert a.results() == counted(REFUSED)
    b.engine._closing = False


async def test_a_client_that_leaves_ends_the_read_of_its_node(nodes, origin):
    a, b = nodes
    origin.gate = Barrier()
    client = await a.client()
    client.ask("/b/b-raw/1")
    await origin.gate.reached.wait()
    await client.close()
    async with asyncio.timeout(5):
        while not b.peer_requests.ended:
            await asyncio.sleep(0.01)
    origin.gate.release()


async def test_connections_to_nodes_that_left_the_view_are_closed_after_their_requests(nodes, origin):
    a, _ = nodes
    origin.gate = Barrier()
    client = await a.client()
    client.ask("/b/b-raw/1")
    await origin.gate.reached.wait()
    a.peers.retain([])
    assert a.peers.skipped() == {}
    origin.gate.release()
    assert (await client.answer()).body == BODY
    await a.peers.aclose()
