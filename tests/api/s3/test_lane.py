"""The fast lane gives the same answers as a task, byte for byte, whatever the pieces in which the
bytes of a request arrive.
"""

import asyncio
import itertools

import pytest

from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.rules import Rule
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy_bench.reliability.kit.faulty_origin import FaultyOrigin
from tests.support.clock import ManualClock
from tests.support.engine import PAGE
from tests.support.s3.lane import SIZES, Watched, answers, request, same, talk

RANGES = [
    None,
    "bytes=0-0",
    "bytes=1-",
    "bytes=-1",
    f"bytes={PAGE - 1}-{PAGE}",
    "bytes=5-2",
    "bytes=0-999999",
    "bytes=0-1,3-4",
    "items=0-1",
    f"bytes={9 * PAGE}-",
    "bytes=-0",
    "Bytes=0-1",
    "bytes= 0-1",
]
CONDITIONS = [
    None,
    "If-Match: *",
    'If-Match: "nope"',
    "If-None-Match: *",
    'If-None-Match: "nope"',
    "If-Modified-Since: Thu, 01 Jan 2099 00:00:00 GMT",
    "If-Unmodified-Since: Thu, 01 Jan 1970 00:00:00 GMT",
    'If-Range: "nope"',
    "x-amz-checksum-mode: ENABLED",
    "Cache-Control: no-cache",
    "x-shade-job: j;epoch=1",
]


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_both_lanes_send_the_same_bytes(two, name, method):
    for spec, condition in itertools.product(RANGES, CONDITIONS):
        fields = [f"Range: {spec}"] if spec else []
        fields += [condition] if condition else []
        data = request(f"/b/{name}", *fields, method=method)
        general = await talk(two.task_port, data)
        for _ in range(2):
            assert same(await talk(two.port, data)) == same(general), fields


@pytest.mark.parametrize("form", ["{}", "{},{}", '"x",{}', "{} ", " {}", "W/{}", "{}x", '"{}"', ""])
@pytest.mark.parametrize("name", ["one", "page", "two"])
async def test_both_lanes_understand_if_match_alike(two, name, form):
    etag = two.origin.buckets["b"][name].meta.etag
    for bare in (etag, etag.strip('"')):
        fields = [f"If-Match: {form.replace('{}', bare)}"]
        for part in ([], ["Range: bytes=0-0"], ["range: bytes=0-0"]):
            for _ in range(2):
                data = request(f"/b/{name}", *fields, *part)
                assert same(await talk(two.port, data)) == same(await talk(two.task_port, data)), data


@pytest.mark.parametrize("part", [[], ["Range: bytes=0-0"]], ids=["whole", "part"])
async def test_a_get_of_the_cached_version_is_answered_from_memory(two, compiled, part):
    etag = two.origin.buckets["b"]["page"].meta.etag
    data = request("/b/page", f"If-Match: {etag}", *part, close=False)
    first, *later = [same(await talk(two.port, data, count=1)) for _ in range(4)]
    assert later == [first] * 3
    assert two.lane.known == 3
    assert two.lane.compiled == (3 if compiled else 0)
    other = request("/b/page", 'If-Match: "other"', *part, close=False)
    for _ in range(2):
        assert (await talk(two.port, other, count=1)).startswith(b"HTTP/1.1 412 ")
    assert two.lane.known == 3


async def test_a_version_that_was_replaced_no_longer_matches(two):
    etag = two.origin.buckets["b"]["one"].meta.etag
    data = request("/b/one", f"If-Match: {etag}", close=False)
    for _ in range(3):
        assert (await talk(two.port, data, count=1)).startswith(b"HTTP/1.1 200 ")
    two.origin.put("b", "one", b"new")
    two.engine._outdated(ObjectRef("b", "one"))
    for _ in range(3):
        assert (await talk(two.port, data, count=1)).startswith(b"HTTP/1.1 412 ")
        await talk(two.port, request("/b/one", close=False), count=1)


async def test_the_fast_lane_did_answer(two, compiled):
    """The fast lane answers the requests of the test above, which would else compare the general lane with
    itself.
    """
    for name in ("one", "page", "two"):
        for _ in range(3):
            await talk(two.port, request(f"/b/{name}", close=False), count=1)
    assert two.lane.answered == 9
    assert two.lane.known == 4  # Second and third reads of one-page objects.
    assert two.lane.compiled == (4 if compiled else 0)
    await talk(two.port, request("/b/many", "Range: bytes=1-5", close=False), count=1)
    await talk(two.port, request("/b/many", f"Range: bytes={PAGE}-{PAGE + 5}", close=False), count=1)
    assert two.lane.known == 5


TARGETS = [
    "/b/one?response-content-type=text/plain",
    "/b/one?versionId=1",
    "/b/one?foo=bar",
    "/b/one?acl",
    "/b/nokey",
    "/nobucket/k",
    "/b/",
    "/b",
    "/",
    "/b/one%20",
    "/b/on%65",
    "//b/one",
    "/b//one",
    "/b/./one",
    "/b/%zz",
    "/b/one#x",
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "BREW"])
async def test_what_is_no_plain_read_is_left_to_the_general_lane(two, target, method):
    data = request(target, "Content-Length: 0", method=method)
    assert same(await talk(two.port, data)) == same(await talk(two.task_port, data))


@pytest.mark.parametrize(
    "head",
    [
        b"GET /b/one HTTP/1.0\r\nHost: h\r\n\r\n",
        b"GET /b/one HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n",
        b"GET /b/one HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc",
        b"GET /b/one HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        b"GET /b/one HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\nConnection: close\r\n\r\n",
        b"GET /b/one HTTP/1.1\r\nHost: h\r\nX: a\nY: b\r\nConnection: close\r\n\r\n",
        b"GET /b/one HTTP/1.1\r\nHost: h\r\nX: \xc3\xa9\r\nConnection: close\r\n\r\n",
        b"GET /b/one HTTP/1.1\r\nHost: h\r\nX: a\tb\r\nConnection: close\r\n\r\n",
        b"GET http://h/b/one HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"GET /b/one HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"GET /b/one HTTP/1.1\r\nhOsT:h\r\nconnection:CLOSE\r\n\r\n",
        b"\r\nGET /b/one HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"GET /b/one HTTP/1.1\r\nHost: h\r\nRange: bytes=0-0\r\nRange: bytes=0-0\r\n\r\n",
        b"GET /b/one HTTP/1.1\r\nHost: h\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"GET  /b/one HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"get /b/one HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    ],
)
async def test_odd_heads_mean_the_same_in_both_lanes(two, head):
    await talk(two.port, request("/b/one", close=False), count=1)
    async with asyncio.timeout(5):
        expected = same(await talk(two.task_port, head, count=1))
        assert same(await talk(two.port, head, count=1)) == expected


@pytest.mark.parametrize(
    "head",
    [
        b"GET /b/one HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"GET /b/one HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"PUT /b/n HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\nConnection: upgrade\r\nContent-Length: 1\r\n\r\na",
    ],
)
async def test_an_offer_of_another_protocol_is_ignored(two, head):
    for port in (two.task_port, two.port):
        received = await talk(port, head + request("/b/one"))
        (first, _), (second, body) = answers(received)
        assert (first[9:12], second[9:12], body) == (b"200", b"200", b"\0")


@pytest.mark.parametrize("length", [b"", b"Content-Length: 41\r\n"])
async def test_nothing_is_answered_behind_a_connect(two, length):
    """The bytes behind it may belong to the tunnel that the client hopes for."""
    for port in (two.task_port, two.port):
        head = b"CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\n%b\r\n" % length
        ((first, _),) = answers(await talk(port, head + request("/b/two", close=False)))
        assert b"\r\nConnection: close" in first


async def test_requests_cut_at_any_byte_and_merged_are_answered_in_order(two):
    names = ["page", "one", "empty", "two", "page"]
    data = b"".join(request(f"/b/{name}", close=False) for name in names)
    expected = same(await talk(two.task_port, data, count=len(names)))
    assert same(await talk(two.port, data, count=len(names))) == expected
    for cut in range(1, len(data), 7):
        assert same(await talk(two.port, data, pieces=(cut,), count=len(names))) == expected, cut


async def test_lanes_change_between_two_requests_of_a_connection(two):
    put = b"PUT /b/new HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n"
    get, missing = request("/b/one", close=False), request("/b/nokey", close=False)
    new = request("/b/new", close=False)
    data = get + put + b"hello" + new + get + missing + get + put + b"world" + new + get
    whole = answers(await talk(two.port, data, count=9))
    assert [head[9:12] for head, _ in whole] == [b"200"] * 4 + [b"404"] + [b"200"] * 4
    assert (whole[2][1], whole[7][1]) == (b"hello", b"world")
    for cut in range(5, len(data), 41):
        cut_up = answers(await talk(two.port, data, pieces=(cut,), count=9))
        assert (cut_up[2][1], cut_up[7][1]) == (b"hello", b"world")


async def test_after_a_chunked_body_the_fast_lane_answers_again(two):
    get = request("/b/one", close=False)
    chunked = get[:-2] + b"Transfer-Encoding: chunked\r\n\r\n5\r\nworld\r\n0\r\n\r\n"
    await talk(two.port, get, count=1)
    before, cuts = two.lane.answered, range(5, len(chunked + get), 7)
    for cut in cuts:
        bodies = [body for _, body in answers(await talk(two.port, chunked + get, pieces=(cut,), count=2))]
        assert bodies == [b"\0", b"\0"]
    assert two.lane.answered == before + len(cuts)


@pytest.mark.parametrize(
    "field",
    [b"X: \xc3\xa9", b"X:\ta\tb \t", b"TE: trailers", b"Trailer: x", b"Upgrade: h2c",
     b"Connection: keep-alive, x", b"X:"],
)  # fmt: skip
async def test_a_head_with_unusual_fields_is_answered_too(two, field):
    get = request("/b/one", close=False)
    odd = get[:-2] + field + b"\r\n\r\n"
    await talk(two.port, get, count=1)
    for cut in range(5, len(odd + get), 7):
        bodies = [body for _, body in answers(await talk(two.port, odd + get, pieces=(cut,), count=2))]
        assert bodies == [b"\0", b"\0"]


_SIGNED = "x-amz-content-sha256: "
_FRAMED = (
    _SIGNED + "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    "x-amz-decoded-content-length: 5",
    "Content-Encoding: aws-chunked",
)
_FIVE = b"5\r\nhello\r\n0\r\n\r\n"
UPLOADS = {
    "length": (["Content-Length: 5"], b"hello"),
    "nothing": (["Content-Length: 0"], b""),
    "long": (["Content-Length: 3000000"], b"x" * 3_000_000),
    "no length": ([], b""),
    "chunks": (["Transfer-Encoding: chunked"], _FIVE),
    "framed": ([*_FRAMED, f"Content-Length: {len(_FIVE)}"], _FIVE),
    "framed in chunks": (
        [*_FRAMED, "Transfer-Encoding: chunked"], b"%x\r\n%b\r\n0\r\n\r\n" % (len(_FIVE), _FIVE),
    ),
    "framed wrongly": ([*_FRAMED, "Content-Length: 5"], b"hello"),
    "wrong digest": (["Content-Length: 5", _SIGNED + "0" * 64], b"hello"),
    "wrong hash form": (["Content-Length: 5", _SIGNED + "nothing"], b"hello"),
    "unknown form": (["Content-Length: 5", _SIGNED + "STREAMING-UNKNOWN"], b"hello"),
    "wrong md5": (["Content-Length: 5", "Content-MD5: AAAA"], b"hello"),
    "wrong signature": (
        ["Content-Length: 3000000", "Authorization: AWS4-HMAC-SHA256 nothing"], b"x" * 3_000_000,
    ),
    "two lengths": (["Content-Length: 5", "Content-Length: 5"], b"hello"),
    "length and chunks": (["Content-Length: 5", "Transfer-Encoding: chunked"], _FIVE),
    "two codings": (["Transfer-Encoding: gzip, chunked"], _FIVE),
    "waits, and sends all": (["Content-Length: 5", "Expect: 100-continue"], b"hello"),
    "expects another thing": (["Content-Length: 5", "Expect: 200-ok"], b"hello"),
    "trailers": (["Transfer-Encoding: chunked", "Trailer: x"], b"5\r\nhello\r\n0\r\nx: y\r\n\r\n"),
}  # fmt: skip


STORED = {"length", "long", "framed", "framed in chunks", "waits, and sends all", "expects another thing"}
EMPTY = {"nothing", "no length"}
NOT_HTTP = {"two lengths", "length and chunks", "two codings"}


@pytest.mark.parametrize("name", UPLOADS)
@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "GET", "HEAD", "OPTIONS"])
async def test_no_byte_of_a_body_is_taken_for_a_request(two, name, method):
    fields, body = UPLOADS[name]
    inside = request("/b/one", method="DELETE") if name == "long" else b""
    body = inside + body[len(inside) :]
    received = await talk(two.port, request("/b/new", *fields, method=method) + body)
    statuses = [int(head[9:12]) for head, _ in answers(received)]
    stored = two.origin.buckets["b"].get("new")
    assert "one" in two.origin.buckets["b"]
    assert statuses[:-1] == ([100] if method == "PUT" and name.startswith("waits") else [])
    if name in NOT_HTTP:
        assert statuses == [400]
    if method == "PUT" and name in STORED | EMPTY:
        sent = b"" if name in EMPTY else body if name == "long" else b"hello"
        assert (statuses[-1], stored.body) == (200, sent)
    else:
        assert stored is None
        assert statuses[-1] in ({400, 411, 501} if method == "PUT" else {204, 400, 404, 501})


async def test_an_upload_does_not_keep_the_connection_from_the_fast_lane(two):
    put = b"PUT /b/new HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"
    reader, writer = await asyncio.open_connection("127.0.0.1", two.port)
    before = two.lane.answered
    for data in (put, request("/b/one", close=False), put, request("/b/one", close=False)):
        writer.write(data)
        received = b""
        while not answers(received):
            received += await reader.read(65536)
    writer.close()
    assert two.lane.answered == before + 2


async def test_a_client_that_does_not_read_holds_a_bounded_amount(two):
    count = 3000
    data = request("/b/page", close=False) * count
    reader, writer = await asyncio.open_connection("127.0.0.1", two.port, limit=1 << 16)
    writer.write(data)
    await asyncio.sleep(0.2)
    (connection,) = [one for one in two.server.connections if one.transport.get_write_buffer_size()]
    assert connection.transport.get_write_buffer_size() < 1 << 20
    assert len(connection._held) < 1 << 20
    received = bytearray()
    while len(received) < count * PAGE and (piece := await reader.read(1 << 20)):
        received += piece
    while len(answers(bytes(received))) < count:
        received += await reader.read(1 << 20)
    writer.close()
    bodies = {body for _, body in answers(bytes(received))}
    assert bodies == {bytes(i * 7 % 251 for i in range(PAGE))}


async def test_a_client_that_shut_its_sending_side_gets_its_answer(two):
    reader, writer = await asyncio.open_connection("127.0.0.1", two.port)
    writer.write(request("/b/page", close=False))
    writer.write_eof()
    assert answers(await reader.read(-1))[0][1] == bytes(i * 7 % 251 for i in range(PAGE))
    writer.close()


async def test_a_miss_is_streamed_and_the_connection_goes_on(two):
    two.origin.put("b", "cold", b"x" * (3 * PAGE))
    data = request("/b/cold", close=False) + request("/b/one", close=False)
    before = two.lane.answered
    cold, warm = answers(await talk(two.port, data, count=2))
    assert cold[1] == b"x" * (3 * PAGE)
    assert b"x-shade-cache: origin" in cold[0]
    assert b"x-shade-cache: ram" in warm[0]
    assert two.lane.answered == before + 1


async def test_a_write_through_the_proxy_is_seen_by_the_next_read(two):
    for _ in range(3):
        await talk(two.port, request("/b/page", close=False), count=1)
    await talk(
        two.port, b"PUT /b/page HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nConnection: close\r\n\r\nnew"
    )
    assert answers(await talk(two.port, request("/b/page")))[0][1] == b"new"


async def test_a_page_that_left_is_no_longer_answered_from_memory(two):
    for _ in range(2):
        await talk(two.port, request("/b/page", close=False), count=1)
    two.engine.cache.drop_object(ObjectRef("b", "page"), "test")
    (whole,) = answers(await talk(two.port, request("/b/page")))
    assert b"x-shade-cache: origin" in whole[0]


async def test_hits_are_counted_for_their_job(two):
    for _ in range(3):
        await talk(two.port, request("/b/page", "x-shade-job: j;epoch=2", close=False), count=1)
    reads = two.counted_stats().snapshot()["jobs"]["j"]["epochs"]["2"]
    assert (reads["requests"], reads["hits_ram"], reads["bytes"]) == (3, 3, 3 * PAGE)
    assert two.seen.jobs


async def test_a_ticket_ends_with_the_time_to_live(make_proxy):
    clock = ManualClock()
    proxy = await make_proxy(lane=Watched, clock=clock, rules=(Rule(ttl_s=10.0),))
    proxy.origin.put("b", "k", b"old")
    for _ in range(3):
        assert (await proxy.get("/b/k")).endswith(b"old")
    proxy.origin.put("b", "k", b"new")
    clock.advance(11.0)
    assert (await proxy.get("/b/k")).endswith(b"old"), "served once more while it is checked"
    async with asyncio.timeout(5):
        while not (await proxy.get("/b/k")).endswith(b"new"):
            await asyncio.sleep(0.01)


async def test_shutdown_lets_a_read_end(make_proxy):
    inner = MemoryOrigin()
    inner.put("b", "k", b"x" * 3000)
    origin = FaultyOrigin(inner, delay_s=0.2)
    proxy = await make_proxy(lane=Watched, origin=origin)
    asked = asyncio.create_task(talk(proxy.port, request("/b/k", close=False)))
    await asyncio.sleep(0.05)
    await proxy.server.shutdown(1.0)
    assert answers(await asked)[0][1] == b"x" * 3000


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(make_proxy):
    proxy = await make_proxy(lane=Watched)
    proxy.origin.put("b", "k", b"x")
    proxy.server._keepalive_s = 0.1
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    for _ in range(6):
        writer.write(request("/b/k", close=False))
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(1)
        await asyncio.sleep(0.05)
    writer.write(b"GET /b/k HTTP/1.1\r\nHost: ")
    async with asyncio.timeout(5):
        assert await reader.read() == b"", "half a head keeps no connection open"
    writer.close()


@pytest.mark.parametrize("name", ["my job", "<script>", "x" * 3000])
async def test_what_cannot_be_the_name_of_a_job_is_refused_and_not_counted(two, name):
    good = request("/b/page", close=False)
    for _ in range(2):
        await talk(two.port, good, count=1)
    answer = await talk(two.port, request("/b/page", f"x-shade-job: {name};epoch=2"))
    assert b"HTTP/1.1 400" in answer
    assert b"The x-shade-job header cannot be understood" in answer
    assert two.counted_stats().snapshot()["jobs"] == {}


async def test_reads_of_an_empty_object_count(two):
    etag = two.origin.put("b", "void", b"").etag
    job = "x-shade-job: j;epoch=2;rank=0"
    uncounted = (request("/b/void", "Range: bytes=0-3"), request("/b/void", f"If-None-Match: {etag}"))
    for port in (two.port, two.task_port):
        for raw in (request("/b/void", job), *uncounted, request("/b/void", job)):
            await talk(port, raw)
    reads = two.counted_stats().snapshot()["jobs"]["j"]["epochs"]["2"]
    assert (reads["requests"], reads["bytes"]) == (4, 0)
    assert reads["origin"] + reads["hits_ram"] == 4
