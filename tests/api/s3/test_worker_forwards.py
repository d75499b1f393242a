"""A request that a worker forwards has the same effects as one that a proxy of one process forwards: at the
client, at the origin and in the coordinator.
"""

import asyncio
import base64
import hashlib
import random
import zlib
from typing import Any, NamedTuple

import pytest

from shadeproxy.api.s3 import pending_forward
from shadeproxy.api.s3.relay import WorkerProtocol
from shadeproxy.core.errors import NotOwnerNow, Overloaded, WriteRefused, WriteUnconfirmed
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.read.forward_messages import Failure
from tests.support.s3.cases import SMALL, head, ok
from tests.support.s3.fetching import Wire
from tests.support.s3.forwarding import ForwardingWorker, NoHits, forwarding
from tests.support.s3.scripted import CUT, PAUSE, WAIT, Client, Setup, set_up
from tests.support.s3.uploading import PUT_ANSWER, RecordingServer

pytestmark = pytest.mark.timeout(60)

REF = ObjectRef("b", "k")
BODY = bytes(range(256)) * 300
BIG = BODY * 50
DELETED = b"<Delete><Object><Key>k</Key></Object><Object><Key>other</Key></Object></Delete>"
PARTS = b"<CompleteMultipartUpload></CompleteMultipartUpload>"
RESULT = b"<CompleteMultipartUploadResult></CompleteMultipartUploadResult>"


def md5(body: bytes) -> str:
    return base64.b64encode(hashlib.md5(body).digest()).decode()


def framed(body: bytes, checksum: int) -> bytes:
    """Return an aws-chunked body without signatures, with a trailing CRC32."""
    value = base64.b64encode(checksum.to_bytes(4, "big")).decode()
    return b"%x\r\n%b\r\n0\r\nx-amz-checksum-crc32:%b\r\n\r\n" % (len(body), body, value.encode())


def answer(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def in_chunks(body: bytes, size: int = 50_000) -> bytes:
    """Return ``body`` in chunked transfer coding."""
    pieces = (body[start : start + size] for start in range(0, len(body), size))
    return b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in pieces) + b"0\r\n\r\n"


class Case(NamedTuple):
    """One request to a worker, and the origin's ``answers`` by method and target.

    ``relayed``: whether the coordinator serves it. ``is_cut``: the client leaves after half of the body.
    """

    method: str
    target: str = "/b/k"
    body: bytes = b""
    fields: tuple[str, ...] = ()
    answers: dict[str, Any] = {}  # noqa: RUF012 - none changes it
    relayed: bool = False
    is_cut: bool = False


FRAMED = (
    "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    "Content-Encoding: aws-chunked",
    f"x-amz-decoded-content-length: {len(BODY)}",
    "x-amz-trailer: x-amz-checksum-crc32",
)
TRANSFERRED = "Transfer-Encoding: chunked"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PART = "/b/k?partNumber=1&uploadId=u"
CASES = {
    "put": Case("PUT", body=BODY, fields=("Content-Type: text/odd", "x-amz-meta-a: b")),
    "put of nothing": Case("PUT", fields=("Content-Length: 0",)),
    "big put": Case("PUT", body=BIG),
    "right hash": Case(
        "PUT", body=BODY, fields=(f"x-amz-content-sha256: {hashlib.sha256(BODY).hexdigest()}",)
    ),
    "wrong hash": Case("PUT", body=BODY, fields=(f"x-amz-content-sha256: {hashlib.sha256().hexdigest()}",)),
    "content-md5": Case("PUT", body=BODY, fields=(f"Content-MD5: {md5(BODY)}",)),
    "trailing checksum": Case("PUT", body=framed(BODY, zlib.crc32(BODY)), fields=FRAMED),
    "wrong trailing checksum": Case("PUT", body=framed(BODY, 1), fields=FRAMED),
    "broken framing": Case("PUT", body=b"zz\r\n" * 100, fields=FRAMED),
    "waits for 100": Case("PUT", body=BODY, fields=("Expect: 100-continue",)),
    "part": Case("PUT", PART, BODY, answers={f"PUT {PART}": [PUT_ANSWER]}),
    "begins parts": Case("POST", "/b/k?uploads", answers={"POST /b/k?uploads": [answer(b"<UploadId/>")]}),
    "completes parts": Case(
        "POST", "/b/k?uploadId=u", PARTS, answers={"POST /b/k?uploadId=u": [answer(RESULT)]}
    ),
    "completes parts, slowly": Case(
        "POST",
        "/b/k?uploadId=u",
        PARTS,
        answers={
            "POST /b/k?uploadId=u": [
                CHUNKED + b"1\r\n \r\n",
                PAUSE,
                b"%x\r\n%b\r\n0\r\n\r\n" % (len(RESULT), RESULT),
            ]
        },
    ),
    "gives parts up": Case(
        "DELETE", "/b/k?uploadId=u", answers={"DELETE /b/k?uploadId=u": [b"HTTP/1.1 204 No Content\r\n\r\n"]}
    ),
    "delete": Case("DELETE", answers={"DELETE /b/k": [b"HTTP/1.1 204 No Content\r\n\r\n"]}),
    "delete many": Case(
        "POST",
        "/b?delete",
        DELETED,
        (f"Content-MD5: {md5(DELETED)}",),
        {"POST /b?delete": [answer(b"<DeleteResult></DeleteResult>")]},
    ),
    "copy": Case("PUT", fields=("x-amz-copy-source: /b/other", "Content-Length: 0")),
    "list": Case("GET", "/b?list-type=2", answers={"GET /b?list-type=2": [answer(b"<List/>")]}),
    "list in chunks": Case(
        "GET",
        "/b?list-type=2",
        answers={"GET /b?list-type=2": [CHUNKED + b"3\r\nabc\r\n0\r\n\r\n"]},
    ),
    "head of the bucket": Case("HEAD", "/b", answers={"HEAD /b": [b"HTTP/1.1 200 OK\r\nx-amz-a: b\r\n\r\n"]}),
    "other version": Case("GET", "/b/k?versionId=7", answers={"GET /b/k?versionId=7": [ok(SMALL)]}),
    "refused by the origin": Case("PUT", body=BODY, answers={"PUT /b/k": [answer(b"<E/>", "403 Forbidden")]}),
    "too many requests": Case("PUT", body=BODY, answers={"PUT /b/k": [answer(b"", "503 Slow Down")]}),
    "unanswered": Case("PUT", body=BODY, answers={"PUT /b/k": [CUT]}),
    "half an answer": Case(
        "GET",
        "/b?acl",
        answers={"GET /b?acl": [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", CUT]},
    ),
    "client leaves": Case("PUT", body=BIG, is_cut=True),
    "last request": Case("PUT", body=BODY, fields=("Connection: close",)),
    "without a length": Case("PUT", body=b"3\r\nabc\r\n0\r\n\r\n", fields=(TRANSFERRED,)),
    "framed without a length": Case(
        "PUT", body=in_chunks(framed(BODY, zlib.crc32(BODY))), fields=(*FRAMED, TRANSFERRED)
    ),
    "framed wrongly without a length": Case("PUT", body=b"zz\r\n" * 10, fields=(*FRAMED, TRANSFERRED)),
    "two lengths": Case("PUT", body=BODY, fields=(f"Content-Length: {len(BODY)}",), relayed=True),
    "no operation": Case("PATCH", body=BODY, relayed=True),
    "two sub-resources": Case("GET", "/b?acl&policy", relayed=True),
    "cached object": Case("HEAD", answers={"HEAD /b/k": [head(SMALL)]}, relayed=True),
}  # fmt: skip


async def send(client: Client, case: Case) -> None:
    body = case.body[: len(case.body) // 2] if case.is_cut else case.body
    lines = [f"{case.method} {case.target} HTTP/1.1", "Host: localhost", *case.fields]
    if case.body and TRANSFERRED not in case.fields:
        lines.append(f"Content-Length: {len(case.body)}")
    asked = "\r\n".join([*lines, "", ""]).encode()
    if "Expect: 100-continue" in case.fields:
        client.writer.write(asked)
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        asked = b""
    client.writer.write(asked + body)


def lingering(setup: Setup) -> set[ObjectRef]:
    """Return the objects of which no read is stored, because a write of them may still be carried out."""
    return set(setup.engine._versions.writing)


async def run(setup: Setup, case: Case, worker: ForwardingWorker | None = None) -> dict[str, Any]:
    """Send the request of ``case`` to the worker, or else to the proxy. Return its effects: the answer, the
    cached object, the requests at the origin, and the statistics.
    """
    server: Any = setup.server
    server.scripts |= {"/b/k": [[ok(SMALL)]]}
    assert (await (await setup.client()).get("/b/k")).body == SMALL
    await setup.settle()
    assert (await setup.cached("/b/k"))["pages"]
    server.answers |= case.answers
    client = await (worker or setup).client()
    await send(client, case)
    seen: dict[str, Any] = {}
    if case.is_cut:
        async with asyncio.timeout(5):
            await server.arrived.wait()
        await client.close()
        async with asyncio.timeout(5):
            while not lingering(setup) or len(server.recorded) < 1:
                await asyncio.sleep(0.001)
    else:
        seen["answer"] = await client.answer(bodiless=case.method == "HEAD")
        if "Connection: close" in case.fields:
            seen["closed"] = await client.reader.read() == b""
    seen["relayed"] = worker is not None and worker.relayed > 0
    seen["lingering"] = lingering(setup)
    seen["cached"] = await setup.cached("/b/k")
    if case.is_cut or seen["answer"].cut or seen["answer"].status >= 400 or "closed" in seen or case.relayed:
        client = await (worker or setup).client()
    assert (await client.get("/b/warm")).body == b"warm"
    await setup.engine._writes.aclose()
    await (worker or setup).settle()
    seen["recorded"] = [one._replace(body=b"" if case.is_cut else one.body) for one in server.recorded]
    stats = setup.proxy.stats.snapshot()
    forwarded = stats["origin"]["by_kind"].get("forward", {})
    seen["forwarded"] = {name: forwarded.get(name) for name in ("requests", "bytes")}
    seen["errors"] = stats["origin"]["errors_by_kind"]
    health = stats["origin"]["health"]
    seen["health"] = {name: health[name] for name in ("answering", "throttled")}
    seen["bypass"] = {name: one["bypass"] for name, one in stats["buckets"].items()}
    return seen


@pytest.mark.parametrize("name", CASES)
async def test_what_a_worker_forwards_looks_as_forwarded_by_one_process(tmp_path, name):
    case = CASES[name]
    async with set_up(tmp_path / "one", by_callbacks=True, server=RecordingServer()) as setup:
        alone = await run(setup, case)
    async with (
        set_up(tmp_path / "worker", by_callbacks=True, server=RecordingServer()) as setup,
        forwarding(setup) as worker,
    ):
        seen = await run(setup, case, worker)
    assert seen == alone | {"relayed": case.relayed}


async def begun(worker: ForwardingWorker, setup: Setup, sent: bytes = BODY) -> Client:
    """Return a client that has sent half of an upload, when the origin has got the first bytes of it."""
    client = await worker.client()
    client.writer.write(
        f"PUT /b/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: {2 * len(BODY)}\r\n\r\n".encode()
    )
    client.writer.write(sent)
    server: Any = setup.server
    async with asyncio.timeout(5):
        await server.arrived.wait()
    return client


@pytest.fixture
async def scene(tmp_path):
    async with (
        set_up(
            tmp_path / "x", by_callbacks=True, server=RecordingServer(), origin__max_connections="2"
        ) as setup,
        forwarding(setup) as worker,
    ):
        setup.server.scripts |= {"/b/k": [[ok(SMALL)]]}
        yield setup, worker


async def test_reads_are_not_stored_while_a_worker_writes_and_are_afterwards(scene):
    setup, worker = scene
    reading = await setup.client()
    assert (await reading.get("/b/k")).body == SMALL
    await setup.settle()
    writing = await begun(worker, setup)
    assert await setup.cached("/b/k") == {}, "the origin got bytes before the cache forgot the object"
    assert (await reading.get("/b/k")).body == SMALL
    assert (await setup.cached("/b/k")).get("pages", {}) == {}
    writing.writer.write(BODY)
    assert (await writing.answer()).status == 200
    assert lingering(setup) == set()
    assert (await reading.get("/b/k")).body == SMALL
    await worker.settle()
    assert (await setup.cached("/b/k"))["pages"]


async def test_a_write_is_over_before_its_answer_however_late_messages_come(tmp_path):
    async with (
        set_up(tmp_path / "x", by_callbacks=True, server=RecordingServer()) as setup,
        forwarding(setup, Wire(random.Random(1))) as worker,
    ):
        client = await worker.client()
        for _ in range(10):
            client.ask("/b/k", method="PUT", body=BODY)
            assert (await client.answer()).status == 200
            assert lingering(setup) == set()
        await worker.settle()


async def test_worker_and_coordinator_wake_each_other_twice_for_an_upload(scene):
    _, worker = scene
    client = await worker.client()
    for _ in range(2):
        worker.wire.frames.clear()
        client.ask("/b/k", method="PUT", body=BODY)
        assert (await client.answer()).status == 200
        await worker.settle()
    # May the write begin; it may; it has ended, and so has its request; no read finds the old version.
    assert len(worker.wire.frames) == 4


async def test_a_worker_that_dies_leaves_the_outcome_unknown_and_gives_back_its_slots(scene):
    setup, worker = scene
    await begun(worker, setup)
    assert worker.slots.taken == 1
    worker.lose()
    async with asyncio.timeout(5):
        while len(worker.forwards):
            await asyncio.sleep(0.001)
    assert worker.slots.taken == 0
    assert lingering(setup) == {REF}
    reading = await setup.client()
    assert (await reading.get("/b/k")).body == SMALL
    await setup.engine._filling.flights.drain()
    assert (await setup.cached("/b/k")).get("pages", {}) == {}
    await setup.engine._writes.aclose()
    await setup.settle()


async def test_a_worker_that_dies_while_it_waits_for_a_slot_leaves_none_taken(scene):
    setup, worker = scene
    held = [await worker.slots.take() for _ in range(2)]
    client = await worker.client()
    client.ask("/b/k", method="PUT", body=BODY)
    client = await worker.client()
    client.ask("/b", method="GET")
    async with asyncio.timeout(5):
        while worker.slots.waiting < 2:
            await asyncio.sleep(0.001)
    worker.lose()
    async with asyncio.timeout(5):
        while len(worker.forwards) or worker.slots.waiting:
            await asyncio.sleep(0.001)
    assert (worker.slots.waiting, worker.slots.taken) == (0, 2)
    for slot in held:
        worker.slots.give(slot)
    await setup.engine._writes.aclose()


async def test_a_client_that_leaves_while_its_worker_waits_for_a_slot_takes_none(scene):
    setup, worker = scene
    held = [await worker.slots.take() for _ in range(2)]
    for ask in ({"method": "PUT", "body": BODY}, {"method": "GET"}):
        client = await worker.client()
        client.ask("/b/k?acl", **ask)
        async with asyncio.timeout(5):
            while not worker.slots.waiting:
                await asyncio.sleep(0.001)
        await client.close()
        async with asyncio.timeout(5):
            while len(worker.forwards) or worker.slots.waiting:
                await asyncio.sleep(0.001)
        assert (worker.slots.waiting, worker.slots.taken) == (0, 2)
        assert lingering(setup) == set(), "nothing was sent"
    for slot in held:
        worker.slots.give(slot)
    await setup.engine._writes.aclose()
    await worker.settle()
    assert setup.server.recorded == []


async def test_coordinator_and_worker_together_keep_to_the_slots(scene):
    setup, worker = scene
    setup.server.answers |= {"PUT /b/k": [WAIT, PUT_ANSWER], "GET /b?acl": [WAIT, answer(b"<Acl/>")]}
    clients = [await (worker if n % 3 else setup).client() for n in range(9)]
    for n, client in enumerate(clients):
        if n % 3 == 1:
            client.ask("/b?acl")
        else:
            client.ask("/b/k", method="PUT", body=BODY)
    async with asyncio.timeout(5):
        while setup.server.open_now < 2 or worker.slots.waiting < 1:
            await asyncio.sleep(0.001)
    setup.server.go_on.set()
    assert [(await client.answer()).status for client in clients] == [200] * 9
    assert setup.server.most_open == 2
    await worker.settle()


async def test_what_the_coordinator_refuses_is_answered_and_not_sent(scene, monkeypatch):
    setup, worker = scene
    monkeypatch.setattr(setup.engine.cache.erasing, "unmarked", lambda _refs: "the medium is read-only")
    client = await worker.client()
    client.ask("/b/k", method="PUT", body=BODY)
    answered = await client.answer()
    assert (answered.status, b"the medium is read-only" in answered.body) == (503, True)
    assert setup.server.recorded == []
    await worker.settle()


async def test_one_connection_alternates_between_all_who_answer(scene):
    worker = scene[1]
    client = await worker.client()
    for _ in range(3):
        client.writer.write(
            b"PUT /b/k HTTP/1.1\r\nHost: localhost\r\n%b\r\n"
            % b"\r\n".join([*(one.encode() for one in (*FRAMED, TRANSFERRED)), b""])
            + in_chunks(framed(BODY, zlib.crc32(BODY)))
        )
        assert (await client.answer()).status == 200
        assert (await client.get("/b/k")).body == SMALL
    client.ask("/b/k", method="PUT", body=BODY)
    client.ask("/b/k")
    assert (await client.answer()).status == 200
    assert (await client.answer()).body == SMALL
    assert worker.relayed == 1, "the connection to the coordinator is kept"
    await worker.settle()


class Closing(asyncio.Transport):
    """A TLS transport: bytes of the client still come after ``close``."""

    def __init__(self):
        super().__init__()
        self.written, self.closed = b"", False

    def write(self, data):
        self.written += bytes(data)

    def writelines(self, pieces):
        self.written += b"".join(pieces)

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed

    def can_write_eof(self):
        return False

    def get_write_buffer_size(self):
        return 0


async def test_bytes_behind_a_refused_upload_are_no_request(scene, monkeypatch):
    """They may be the rest of its body, which the proxy does not read to its end."""
    monkeypatch.setattr(pending_forward, "LINGER_S", 0.01)
    setup, worker = scene
    asked = []

    async def connect(protocol, peer):
        asked.append((protocol, peer))

    lane = NoHits()
    connection = WorkerProtocol(lane, connect, set(), keepalive_s=60.0, forwards=worker.forwarding.server)
    client = Closing()
    connection.connection_made(client)
    refused = (
        b"PUT /b/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\nx-amz-content-sha256: no\r\n\r\n"
    )
    connection.data_received(refused)
    async with asyncio.timeout(5):
        while not client.closed:
            await asyncio.sleep(0.001)
    assert client.written.startswith(b"HTTP/1.1 400 ")
    answer = client.written
    recorded = list(setup.server.recorded)
    for request in (
        b"DELETE /b/k HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /b/k HTTP/1.1\r\nHost: h\r\n\r\n",
    ):
        connection.data_received(request)
    await asyncio.sleep(0.05)
    assert (client.written, setup.server.recorded, asked) == (answer, recorded, [])
    connection.connection_lost(None)


async def test_half_an_answer_resets_the_connection(scene, capfd):
    setup, worker = scene
    setup.server.answers |= CASES["half an answer"].answers
    client = await worker.client()
    client.ask("/b?acl")
    with pytest.raises(ConnectionResetError):
        await client.reader.read()
    assert "NotImplementedError" not in "".join(capfd.readouterr())


async def test_big_deletes_are_refused_while_the_coordinator_is_behind(scene):
    """The worker refuses them, because it has to end if it cannot send its messages."""
    setup, worker = scene
    setup.server.answers |= {"POST /b?delete": [answer(b"<DeleteResult></DeleteResult>")]}
    keys = b"".join(b"<Object><Key>%0900d</Key></Object>" % number for number in range(700))
    body = b"<Delete>%b</Delete>" % keys
    worker.wire.hold()
    clients = [await worker.client() for _ in range(3)]
    for client in clients:
        client.ask("/b?delete", f"Content-MD5: {md5(body)}", method="POST", body=body)
    refused = [await clients[turn].answer() for turn in (1, 2)]
    assert [one.status for one in refused] == [503, 503]
    assert b"too many writes wait for the process that decides" in refused[0].body
    worker.wire.go_on()
    assert (await clients[0].answer()).status == 200
    await worker.settle()


@pytest.mark.parametrize("how", ["ends", "speaks"])
async def test_an_upload_outlives_an_idle_connection_to_the_coordinator(scene, how):
    """The upload goes on when the idle connection ends. Unexpected bytes on it cut the client off."""
    setup, worker = scene
    client = await worker.client()
    assert (await client.get("/b/k")).body == SMALL
    (connection,) = worker.connections
    client.writer.write(
        f"PUT /b/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: {2 * len(BODY)}\r\n\r\n".encode() + BODY
    )
    async with asyncio.timeout(5):
        await setup.server.arrived.wait()
    if how == "ends":
        connection._coordinator.abort()
        await asyncio.sleep(0.02)
    else:
        connection.coordinator_sent(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    client.writer.write(BODY)
    assert (await client.answer()).status == (200 if how == "ends" else 0)
    if how == "ends":
        assert (await client.get("/b/k")).body == SMALL
        assert worker.relayed == 2
        await worker.settle()
    else:
        assert lingering(setup), "the outcome is unknown"


@pytest.mark.parametrize(
    "error", [Overloaded("busy"), WriteRefused("no"), NotOwnerNow("not yet"), WriteUnconfirmed("lost")]
)
def test_an_error_crosses_as_what_it_is(error):
    unpacked = Failure.of(error).unpack()
    assert (type(unpacked), str(unpacked)) == (type(error), str(error))
