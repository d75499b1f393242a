"""Plain misses: which reads become one, and which objects replace it when it turns out not to be plain.

test_lane_read.py compares the effects of all misses.
"""

import asyncio

import pytest

from shadeproxy.api.s3.lane_read import EngineLaneRead
from shadeproxy.api.s3.plain_miss import PlainMiss
from shadeproxy.core.types import ObjectRef
from shadeproxy.origin.callback_reads import CallbackRead
from shadeproxy.origin.connection import Connection
from shadeproxy.origin.link import OTHERS, LinkQueue
from shadeproxy.origin.link_depth import LinkDepth
from tests.support.s3.cases import ok, part
from tests.support.s3.scripted import CUT, PAGE, PAUSE, WAIT, set_up

pytestmark = pytest.mark.timeout(60)
BODY = bytes(range(256)) * 200
MADE = (PlainMiss, EngineLaneRead, CallbackRead)


@pytest.fixture
async def setup(tmp_path):
    async with set_up(tmp_path, by_callbacks=True) as setup:
        await setup.warm(2)
        yield setup


@pytest.fixture
def made(setup, monkeypatch):
    """Return a list to which the class of each object of MADE is appended when one is made."""
    made = []
    for kind in MADE:

        def init(self, *args, _kind=kind, _init=kind.__init__, **options):
            made.append(_kind)
            _init(self, *args, **options)

        monkeypatch.setattr(kind, "__init__", init)
    return made


async def got(setup, *fields):
    """Return the answer to a GET of the object, after all work for it has ended."""
    client = await setup.client()
    answered = await client.get("/b/k", *fields)
    await setup.settle()
    return answered


async def test_a_usual_miss_is_one_object(setup, made):
    setup.server.scripts["/b/k"] = [[ok(BODY)]]
    assert (await got(setup)).body == BODY
    assert made == [PlainMiss]
    assert (await setup.cached("/b/k"))["pages"] == {0: BODY}


async def test_a_range_is_not_plain(setup, made):
    setup.server.scripts["/b/k"] = [{"": [ok(BODY)], "bytes=0-9": [part(BODY, 0, 10)]}]
    assert (await got(setup, "Range: bytes=0-9")).body == BODY[:10]
    assert PlainMiss not in made


async def test_fields_that_connection_names_replace_the_fill(setup, made):
    named = b"\r\nx-amz-meta-a: b\r\nConnection: keep-alive, x-amz-meta-a\r\n\r\n"
    setup.server.scripts["/b/k"] = [[ok(BODY).replace(b"\r\n\r\n", named, 1)]]
    for _ in range(2):
        answer = await got(setup)
        assert (answer.body, answer.field(b"x-amz-meta-a")) == (BODY, b"")
    assert made == [PlainMiss, CallbackRead]


async def test_a_body_that_breaks_off_replaces_fill_and_reader(setup, made):
    setup.server.scripts["/b/k"] = [[ok(BODY)[:200], CUT], [CUT]]
    assert (await got(setup)).cut
    assert made == [PlainMiss, CallbackRead, EngineLaneRead]


async def test_a_failure_before_the_head_replaces_the_fill_alone(setup, made):
    setup.server.scripts["/b/k"] = [[CUT], [ok(BODY)]]
    assert (await got(setup)).body == BODY
    assert made == [PlainMiss, CallbackRead]


async def test_a_request_that_cannot_be_sent_goes_to_a_task(setup, made, monkeypatch):
    setup.server.scripts["/b/k"] = [[ok(BODY)]]
    start = Connection.start

    def fails_for_it(self, request, receiver=None):
        if type(receiver) is PlainMiss:
            raise ConnectionResetError("the transport is closed")
        start(self, request, receiver)

    monkeypatch.setattr(Connection, "start", fails_for_it)
    assert (await got(setup)).body == BODY
    assert made == [PlainMiss, CallbackRead]


async def test_a_client_that_leaves_ends_fill_and_slot(setup, made):
    setup.server.scripts["/b/k"] = [[ok(BODY)[:200], WAIT, ok(BODY)[200:]]]
    client = await setup.client()
    client.ask("/b/k")
    await setup.server.reached.wait()
    await client.close()
    await setup.settle()
    assert made == [PlainMiss, CallbackRead]


@pytest.fixture
def link(setup):
    """Share the link to the origin by job. Return the queue of its reads."""
    link = LinkQueue(lambda _reader: OTHERS, LinkDepth(lambda: 0.0), page_bytes=PAGE)
    setup.reads.limited.share(link, {})
    return link


async def test_a_miss_that_joins_another_takes_no_slot(setup, made, link):
    setup.server.scripts["/b/k"] = [[ok(BODY)[:200], WAIT, ok(BODY)[200:]]]
    clients = [await setup.client() for _ in range(3)]
    for client in clients:
        client.ask("/b/k")
    async with asyncio.timeout(10):
        await setup.server.reached.wait()
        while len(made) < 3:
            await asyncio.sleep(0.001)
    setup.server.go_on.set()
    assert [(await client.answer()).body for client in clients] == [BODY] * 3
    await setup.settle()
    assert made == [PlainMiss, EngineLaneRead, EngineLaneRead]
    assert (link.flows[OTHERS].served_bytes, link.flying) == (len(BODY), 0)


async def test_a_miss_that_is_not_plain_after_all_is_charged_once(setup, made, link):
    setup.server.scripts["/b/k"] = [[ok(BODY)]]
    versions, other = setup.engine._versions, [ObjectRef("b", "other")]
    versions.begin_write(other)
    client = await setup.client()
    assert (await client.get("/b/k")).body == BODY
    versions.end_write(other)
    await setup.settle()
    assert made[0] is PlainMiss
    assert made.count(EngineLaneRead) == 1
    assert (link.flows[OTHERS].served_bytes, link.flying) == (len(BODY), 0)


async def test_misses_whose_bodies_break_off_all_arrive(tmp_path):
    """If broken bodies gave up their slots, and kept their memory, other reads would take the slots and wait
    for that memory; all would get a 503 after 10 s.
    """
    body, keys = bytes(900) * 1024, [f"/b/k{number}" for number in range(16)]
    limits = {"origin__max_connections": "4", "cache__inflight": "4 MiB", "origin__retry__backoff": "50ms"}
    async with set_up(tmp_path, by_callbacks=True, **limits) as setup:
        await setup.warm(4)
        for key in keys:
            broken = [ok(body)[:1000], PAUSE, CUT]
            came = len(body) - (len(ok(body)) - 1000)
            setup.server.scripts[key] = [broken, [part(body, came, len(body))]]
        clients = [await setup.client() for _ in keys]
        answers = await asyncio.gather(*(client.get(key) for client, key in zip(clients, keys, strict=True)))
        assert [answer.body == body for answer in answers] == [True] * len(keys)
        assert len(setup.started) >= 4
        await setup.settle()
