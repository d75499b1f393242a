"""Many manifests at once take bounded memory. They wait in turn for room, and no client must try again."""

import asyncio
import gzip
import socket
import struct
import weakref

import pytest

from shadeproxy.api.control import datasets as calls
from shadeproxy.api.control.manifest_ledger import SMALL_BYTES, ManifestLedger
from shadeproxy.hints.manifest import ManifestBuilder

LINES = {"Content-Type": "application/x-ndjson"}
ROOM = 2 << 20
LARGE = 6_000
"""Lines of a manifest that takes more than half of ROOM."""
LONG = 32_000
"""Lines of a manifest that fills the listener's buffer while it waits."""


def lines(count, key="k"):
    return b"".join(b'{"bucket": "b", "key": "%b%d"}\n' % (key.encode(), number) for number in range(count))


class Unfinished:
    """A manifest without a stated length, whose last line is sent when ``rest`` is set."""

    def __init__(self, body) -> None:
        self.body = body
        self.rest = asyncio.Event()

    async def __aiter__(self):
        yield self.body
        await self.rest.wait()
        yield b'{"bucket": "b", "key": "last"}\n'


@pytest.fixture
def narrow(context):
    """A ledger with room for one large manifest, besides the one that may go on beyond the room."""
    context.ledgers.manifests = ManifestLedger(ROOM, max_wait_s=30.0)
    return context.ledgers.manifests


def put(client, name, body, **headers):
    return asyncio.create_task(client.put(f"/v1/datasets/{name}", data=body, headers=LINES | headers))


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


async def fill(client, ledger):
    """Begin two manifests, of which one then holds most of the room, and the other one goes on beyond it."""
    first, second = Unfinished(lines(LARGE)), Unfinished(lines(LARGE))
    tasks = [put(client, "first", aiter(first))]
    await until(lambda: ledger.taken_bytes > ROOM // 2)
    tasks.append(put(client, "second", aiter(second)))
    await until(lambda: ledger.taken_bytes > ROOM)
    return first, second, tasks


@pytest.fixture
def builders(monkeypatch):
    """Return a list to which each present and former builder belongs, and the most bytes of all of them
    together.
    """
    alive, most = [], [0]

    class Watched(ManifestBuilder):
        def __init__(self, *args, **options) -> None:
            super().__init__(*args, **options)
            alive.append(self)

        def add(self, *args) -> None:
            super().add(*args)
            most[0] = max(most[0], sum(one.most_bytes for one in alive))

        def finish(self):
            try:
                return super().finish()
            finally:
                alive.remove(self)

    monkeypatch.setattr(calls, "ManifestBuilder", Watched)
    return most


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
async def test_many_manifests_at_once_are_all_registered_in_bounded_memory(client, narrow, builders, pack):
    body, count = pack(lines(LARGE)), 16
    answers = await asyncio.gather(*(put(client, f"d{number}", body) for number in range(count)))
    assert [answer.status for answer in answers] == [200] * count
    alone = 300 * LARGE
    assert builders[0] < ROOM + alone + count * 2 * SMALL_BYTES < count * alone
    assert not narrow.taken_bytes


async def test_ranks_that_post_one_manifest_at_once_all_succeed(client, narrow):
    body = lines(LARGE)
    answers = await asyncio.gather(*(put(client, "train", body) for _ in range(16)))
    assert {(answer.status, (await answer.json())["count"]) for answer in answers} == {(200, LARGE)}
    assert not narrow.taken_bytes


async def test_ranks_that_name_the_digest_let_the_proxy_read_one_manifest_for_all(
    client, narrow, builders, monkeypatch
):
    body, finished = lines(LARGE), []
    digest = (await (await put(client, "before", body)).json())["digest"]
    finish = calls.ManifestReader.finish
    monkeypatch.setattr(calls.ManifestReader, "finish", lambda self: (finished.append(1), finish(self))[1])
    ranks = [put(client, "train", body, **{"x-shade-manifest": digest}) for _ in range(16)]
    answers = [await (await rank).json() for rank in ranks]
    assert answers == [{"dataset": "train", "digest": digest, "count": LARGE}] * 16
    assert len(finished) <= 3  # One goes on beyond the room, and another one may have had room.
    assert not narrow.taken_bytes


async def test_a_list_whose_twin_is_known_frees_its_builder_with_its_room(client, narrow, monkeypatch):
    whole, alive = lines(LARGE) + b'{"bucket": "b", "key": "last"}\n', weakref.WeakSet()
    digest = (await (await put(client, "before", whole)).json())["digest"]

    class Watched(ManifestBuilder):
        def __init__(self, *args, **options) -> None:
            super().__init__(*args, **options)
            alive.add(self)

    monkeypatch.setattr(calls, "ManifestBuilder", Watched)
    body, end = Unfinished(lines(LARGE)), asyncio.Event()

    async def pieces():
        async for piece in body:
            yield piece
        await asyncio.sleep(0.1)
        yield b"\n"
        await end.wait()

    task = put(client, "train", pieces(), **{"x-shade-manifest": digest})
    await until(lambda: narrow.taken_bytes > ROOM // 2)
    assert (await put(client, "train", whole)).status == 200
    body.rest.set()
    await until(lambda: not narrow.taken_bytes)
    assert not alive
    end.set()
    assert (await (await task).json())["digest"] == digest


async def test_a_list_that_is_registered_already_is_received_and_not_read(client, narrow, refused):
    digest = (await (await put(client, "train", lines(3))).json())["digest"]
    told, other = ({"x-shade-manifest": named} for named in (digest, "sha256:" + 64 * "0"))
    assert (await put(client, "train", b"no list" * 100_000, **told)).status == 200
    await refused(await put(client, "train", b"no list" * 100_000, **other), 400, "malformed_body")
    await refused(await put(client, "another", b"no list" * 100_000, **told), 400, "malformed_body")


async def test_a_list_that_was_not_read_is_registered_though_its_twin_is_deleted_meanwhile(client, narrow):
    digest = (await (await put(client, "before", lines(9) + b'{"bucket": "b", "key": "last"}\n')).json())[
        "digest"
    ]
    body = Unfinished(lines(9))
    assert (await put(client, "train", lines(9) + b'{"bucket": "b", "key": "last"}\n')).status == 200
    task = put(client, "train", aiter(body), **{"x-shade-manifest": digest})
    await asyncio.sleep(0.1)
    assert (await client.delete("/v1/datasets/train")).status == 204
    body.rest.set()
    assert (await (await task).json())["digest"] == digest
    assert (await (await client.get("/v1/datasets/train")).json())["digest"] == digest


async def test_manifests_that_wait_for_each_others_room_all_end(client, narrow):
    first, second, tasks = await fill(client, narrow)
    tasks.append(put(client, "third", lines(LARGE)))
    await until(lambda: narrow.waiting)
    second.rest.set()
    assert [(await task).status for task in tasks[1:]] == [200, 200]
    first.rest.set()
    assert (await tasks[0]).status == 200
    assert not narrow.taken_bytes


async def test_a_manifest_that_waits_takes_room_that_comes_free_whoever_goes_on_beyond_it(client, narrow):
    narrow.capacity_bytes = 3 << 20
    bodies = [Unfinished(lines(LARGE)) for _ in range(3)]
    tasks = [put(client, f"d{number}", aiter(body)) for number, body in enumerate(bodies)]
    await until(lambda: narrow.taken_bytes > 3 << 20)
    tasks.append(put(client, "waits", lines(LARGE)))
    await until(lambda: narrow.waiting)
    bodies[0].rest.set()
    bodies[1].rest.set()
    assert (await tasks[3]).status == 200
    bodies[2].rest.set()
    assert [(await task).status for task in tasks[:3]] == [200] * 3
    assert not narrow.taken_bytes


async def test_small_manifests_wait_for_no_large_ones(client, narrow):
    first, second, tasks = await fill(client, narrow)
    assert (await put(client, "small", lines(500))).status == 200
    for body in (first, second):
        body.rest.set()
    assert [(await task).status for task in tasks] == [200, 200]


async def test_a_manifest_without_room_is_refused_after_a_wait(client, context, refused):
    context.ledgers.manifests = narrow = ManifestLedger(ROOM, max_wait_s=0.1)
    first, second, tasks = await fill(client, narrow)
    answer = await put(client, "third", lines(LARGE))
    assert answer.headers["Retry-After"] == "5"
    assert "all of the memory for reading manifests" in await refused(answer, 503, "overloaded")
    for body in (first, second):
        body.rest.set()
    assert [(await task).status for task in tasks] == [200, 200]
    assert (await put(client, "third", lines(LARGE))).status == 200
    assert not narrow.taken_bytes


async def test_a_client_that_goes_away_gives_its_room_or_its_turn_back(listening, narrow):
    first, second, tasks = await fill(listening, narrow)
    waiting = [put(listening, f"d{number}", lines(LARGE)) for number in range(2)]
    await until(lambda: narrow.waiting == 2)
    waiting[0].cancel()
    await until(lambda: narrow.waiting == 1)
    tasks[1].cancel()
    assert (await waiting[1]).status == 200
    tasks[0].cancel()
    await asyncio.gather(*tasks, *waiting, return_exceptions=True)
    await until(lambda: not narrow.taken_bytes)
    assert not first.rest.is_set()
    assert not second.rest.is_set()


@pytest.mark.parametrize("linger_s", [None, 0])
async def test_a_client_that_waits_with_full_buffers_and_goes_away_gives_its_turn_back(
    listening, narrow, linger_s
):
    first, second, tasks = await fill(listening, narrow)
    _, writer = await asyncio.open_connection("127.0.0.1", listening.server.port)
    writer.write(
        b"PUT /v1/datasets/long HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
        b"Content-Length: 50000000\r\n\r\n" + lines(LONG)
    )
    await until(lambda: narrow.waiting and not writer.transport.get_write_buffer_size())
    await asyncio.sleep(0.1)
    if linger_s is not None:  # The connection is reset.
        linger = struct.pack("ii", 1, linger_s)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.close()
    async with asyncio.timeout(10.0):
        await until(lambda: not narrow.waiting)
    for body in (first, second):
        body.rest.set()
    assert [(await task).status for task in tasks] == [200, 200]


async def test_a_client_that_stands_still_gives_its_room_back(client, narrow, refused, monkeypatch):
    monkeypatch.setattr(calls, "_GRACE_S", 0.1)
    monkeypatch.setattr(calls, "_LEAST_BYTES_PER_S", 1 << 40)
    body = Unfinished(lines(LARGE))
    task = put(client, "train", aiter(body))
    assert "too slowly" in await refused(await task, 408, "too_slow")
    assert not narrow.taken_bytes
    body.rest.set()


async def test_the_wait_for_room_is_not_the_clients(client, narrow, monkeypatch):
    monkeypatch.setattr(calls, "_GRACE_S", 0.5)
    monkeypatch.setattr(calls, "_LEAST_BYTES_PER_S", 1 << 40)
    with narrow.share("another") as share:
        await share.hold(2 * ROOM)
        task = put(client, "train", lines(LARGE))
        await until(lambda: narrow.waiting)
        await asyncio.sleep(1.0)
        assert not task.done()
    assert (await task).status == 200


async def test_a_manifest_that_is_refused_gives_its_room_back(client, narrow, refused):
    await refused(await put(client, "train", lines(LARGE) + b"{}\n"), 400, "malformed_body")
    assert not narrow.taken_bytes


async def test_a_long_listing_waits_for_room_too(client, narrow, backend):
    backend.listing = {"b": {f"k{number:05d}": 1 for number in range(2000)}}
    first, second, tasks = await fill(client, narrow)
    listing = asyncio.create_task(client.put("/v1/datasets/listed", json={"bucket": "b"}))
    await until(lambda: narrow.waiting)
    for body in (first, second):
        body.rest.set()
    assert [(await task).status for task in (*tasks, listing)] == [200] * 3
    assert not narrow.taken_bytes
