"""The memory origin of a cluster run gets the same requests as the run's writers and readers send to
a proxy.
"""

import asyncio
import random

import pytest

from shadeproxy_bench.reliability.cluster.bodies import BUCKET, body_of, key_of, seq_of_body, seq_of_tag
from shadeproxy_bench.reliability.cluster.history import ABSENT
from shadeproxy_bench.reliability.cluster.http import CUT, REFUSED, Answer, Connections
from shadeproxy_bench.reliability.cluster.judge import ACKNOWLEDGED, NOT_DONE, UNKNOWN
from shadeproxy_bench.reliability.cluster.origin import MemoryOrigin
from shadeproxy_bench.reliability.cluster.writes import (
    COPY,
    DELETE,
    DELETE_MANY,
    MULTIPART,
    PUT,
    Sent,
    outcome_of,
    send,
)

TARGET = f"/{BUCKET}/{key_of(1)}"


@pytest.fixture
def origin():
    return MemoryOrigin(3, random.Random(1))


@pytest.fixture
async def port(origin):
    server = await asyncio.start_server(origin.serve_connection, "127.0.0.1", 0, limit=1 << 20)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.fixture
def connections():
    connections = Connections(random.Random(1))
    yield connections
    connections.close()


async def test_each_kind_of_write_is_carried_out_and_seen(origin, port, connections):
    for seq, kind in enumerate((PUT, MULTIPART, COPY), 1):
        sent = await send(connections, port, kind, [1], seq=seq, pauses=1)
        assert outcome_of(kind, 1, sent) == ACKNOWLEDGED
        answer = await connections.ask(port, "GET", TARGET)
        assert seq_of_body(1, answer.body) == seq == seq_of_tag(1, answer.fields["etag"])
    for kind in (DELETE, DELETE_MANY):
        sent = await send(connections, port, kind, [1, 2], seq=ABSENT, pauses=0)
        assert outcome_of(kind, 1, sent) == ACKNOWLEDGED
        assert (await connections.ask(port, "GET", TARGET)).status == 404
    assert origin.histories[1].states == [ABSENT, 1, 2, 3, ABSENT, ABSENT]
    assert origin.histories[2].states == [ABSENT, ABSENT]
    assert not origin.damaged


async def test_conditions_and_ranges_are_those_of_a_store(port, connections):
    await send(connections, port, PUT, [1], seq=1, pauses=0)
    tag = (await connections.ask(port, "HEAD", TARGET)).fields["etag"]
    for fields, status in (
        ({"If-None-Match": tag}, 304),
        ({"If-Match": '"other"'}, 412),
        ({"If-Match": tag, "Range": "bytes=3-9"}, 206),
    ):
        answer = await connections.ask(port, "GET", TARGET, fields)
        assert answer.status == status
    assert answer.body == body_of(1, 1)[3:10]


async def test_a_body_of_another_object_is_noticed(origin, port, connections):
    answer = await connections.ask(port, "PUT", TARGET, body=body_of(2, 1))
    assert answer.status == 200
    assert len(origin.damaged) == 1


DELETED = f"<DeleteResult><Deleted><Key>{key_of(1)}</Key></Deleted></DeleteResult>".encode()


@pytest.mark.parametrize(
    ("kind", "answer", "outcome"),
    [
        (PUT, Answer(200, {}, b""), ACKNOWLEDGED),
        (PUT, Answer(503, {}, b""), NOT_DONE),
        (PUT, Answer(500, {}, b""), UNKNOWN),
        (PUT, Answer(0, {}, b"", REFUSED), NOT_DONE),
        (PUT, Answer(0, {}, b"", CUT), UNKNOWN),
        (DELETE, Answer(204, {}, b""), ACKNOWLEDGED),
        (COPY, Answer(200, {}, b"<Error><Code>InternalError</Code></Error>"), UNKNOWN),
        (DELETE_MANY, Answer(200, {}, DELETED), ACKNOWLEDGED),
        (DELETE_MANY, Answer(200, {}, DELETED.replace(b"Deleted", b"Error")), UNKNOWN),
    ],
)
def test_the_outcome_of_a_write_is_what_its_answer_promises(kind, answer, outcome):
    assert outcome_of(kind, 1, Sent(answer, asked=True)) == outcome
    assert outcome_of(kind, 1, Sent(answer, asked=False)) == NOT_DONE
