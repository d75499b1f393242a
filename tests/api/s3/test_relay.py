"""A worker relays answers of the coordinator: it finds their ends, and cuts off clients that take nothing."""

import asyncio
import tracemalloc
from types import SimpleNamespace

import pytest
from aiohttp import web

from shadeproxy.api.s3.answer_end import AnswerEnd
from shadeproxy.api.s3.connection import MOST_HELD_BYTES
from shadeproxy.api.s3.exchange import Asked
from shadeproxy.api.s3.head import HeadReader
from shadeproxy.api.s3.port import peer_of, scheme_of
from shadeproxy.api.s3.relay import WorkerProtocol
from shadeproxy.api.s3.relay_connection import dial

GET, HEAD, OLD = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", b"HEAD / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n"


def head(status: int, *fields: bytes) -> bytes:
    return b"\r\n".join([b"HTTP/1.1 %d Text" % status, *fields, b"", b""])


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (GET, head(200, b"Content-Length: 5", b"X: y") + b"12345"),
        (GET, head(404, b"X: y", b"content-length: 2") + b"no"),
        (GET, head(200, b"Content-Length: 0")),
        (HEAD, head(200, b"Content-Length: 500")),
        (GET, head(304, b"Content-Length: 500")),
        (GET, head(204)),
        (GET, head(102) + head(102, b"X: y") + head(200, b"Content-Length: 1") + b"1"),
        (HEAD, head(100) + head(404, b"Content-Length: 9")),
    ],
)
def test_the_end_is_found_however_the_bytes_arrive(asked, answer):
    for step in (1, 7, len(answer)):
        answering = AnswerEnd(asked)
        for start in range(0, len(answer), step):
            assert not answering.complete
            assert answering.take(answer[start : start + step]) is not None
        assert answering.complete
        assert answering.take(b"x") < 0


@pytest.mark.parametrize(
    "answer", [head(200, b"Transfer-Encoding: chunked") + b"1\r\nx\r\n", head(101), b"SSH-2.0\r\n\r\n"]
)
def test_what_cannot_be_told_is_given_away(answer):
    assert AnswerEnd(GET).take(answer) is None


def test_an_old_client_is_not_let_take_a_broken_end_for_a_good_one():
    answering = AnswerEnd(OLD)
    answering.take(head(200) + b"some")
    assert answering.may_break_off
    whole = AnswerEnd(OLD)
    whole.take(head(200, b"Content-Length: 4") + b"some")
    assert not whole.may_break_off
    assert not AnswerEnd(GET).may_break_off


@pytest.mark.parametrize("peer", ["192.0.2.7", "2001:db8::1", ""])
@pytest.mark.parametrize("secure", [True, False])
async def test_the_coordinator_learns_who_asks_and_by_which_scheme(tmp_path, peer, secure):
    seen = []

    async def answer(http):
        seen.append((peer_of(http.transport), scheme_of(http)))
        return web.Response()

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "relay")).start()
    coming = asyncio.get_running_loop().create_future()

    class Asking(asyncio.Protocol):
        def connection_made(self, transport):
            transport.write(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")

        def connection_lost(self, exc):
            coming.set_result(exc)

    await dial(str(tmp_path / "relay"), Asking(), peer, secure=secure)
    await coming
    await runner.cleanup()
    assert seen == [(peer, "https" if secure else "http")]


class Hits:
    """A fast lane that has an answer to every request."""

    parse = HeadReader().read

    def answer(self, _raw, sender):
        sender.write(b"answer")
        return True


class Client:
    """A transport that always has 100 bytes waiting, as if the client took nothing."""

    def __init__(self):
        self.aborted = False

    def write(self, data):
        pass

    def get_write_buffer_size(self):
        return 100

    def get_extra_info(self, _name):
        return None

    def abort(self):
        self.aborted = True


async def test_only_who_took_nothing_between_two_looks_is_cut_off():
    async def connect(_protocol, _peer):
        raise AssertionError("all is known here")

    client = Client()
    connection = WorkerProtocol(Hits(), connect, set(), keepalive_s=3600.0)
    connection.connection_made(client)
    for _ in range(3):
        connection.data_received(GET)
        connection._look()
        assert not client.aborted
    connection._look()
    assert client.aborted
    connection.connection_lost(None)


class Owned(asyncio.Transport):
    def __init__(self):
        super().__init__()
        self.taken, self.reading, self.closed, self.aborted = b"", True, False, False
        self.ended = False

    def write(self, data):
        self.taken += data

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def get_extra_info(self, _name, _default=None):
        return None

    def abort(self):
        self.aborted = True

    def can_write_eof(self):
        return True

    def write_eof(self):
        self.ended = True

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed


async def relayed(client, data, coordinator=None, reads=None):
    """Return the connection of ``client``, once its ``data`` was passed on to a coordinator."""

    async def connect(protocol, _peer):
        protocol.connection_made(coordinator or Owned())

    connection = WorkerProtocol(reads or Nothing(), connect, set(), keepalive_s=3600.0)
    connection.connection_made(client)
    connection.data_received(data)
    while connection._coordinator is None:
        await asyncio.sleep(0)
    return connection


class Sent(Owned):
    """A writer that counts the bytes written."""

    taken_bytes = 0

    def write(self, data):
        self.taken_bytes += len(data)


class Nothing:
    parse = HeadReader().read

    def answer(self, _raw, _sender):
        return None


async def test_an_upload_that_was_pipelined_behind_a_miss_is_read_to_its_end():
    coordinators, client, body = [], Owned(), b"x" * 400_000

    async def connect(coordinator, _peer):
        coordinators.append(Owned())
        coordinator.connection_made(coordinators[0])

    connection = WorkerProtocol(Nothing(), connect, set(), keepalive_s=3600.0)
    connection.connection_made(client)
    connection.data_received(GET)
    while not coordinators or coordinators[0].taken != GET:
        await asyncio.sleep(0)
    upload = b"PUT / HTTP/1.1\r\nContent-Length: 400000\r\n\r\n" + body
    connection.data_received(upload[:300_000])
    assert not client.reading
    connection.coordinator_sent(head(200, b"Content-Length: 0"))
    while coordinators[0].taken != GET + upload[:300_000]:
        await asyncio.sleep(0)
    assert client.reading
    connection.data_received(upload[300_000:])
    assert coordinators[0].taken == GET + upload
    connection.connection_lost(None)


class Full(Owned):
    """A transport that becomes full at the next write, and then makes ``protocol`` pause, once."""

    def __init__(self):
        super().__init__()
        self.protocol = None

    def write(self, data):
        super().write(data)
        if self.protocol is not None:
            protocol, self.protocol = self.protocol, None
            protocol.pause_writing()


async def test_an_upload_that_the_coordinator_does_not_take_is_not_read_either():
    coordinator, client = Full(), Owned()

    async def connect(protocol, _peer):
        coordinator.protocol = protocol
        protocol.connection_made(coordinator)

    connection = WorkerProtocol(Nothing(), connect, set(), keepalive_s=3600.0)
    connection.connection_made(client)
    connection.data_received(b"PUT / HTTP/1.1\r\nContent-Length: 400000\r\n\r\n" + b"x" * 300_000)
    while not coordinator.taken:
        await asyncio.sleep(0)
    assert not client.reading
    connection.connection_lost(None)


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param(head(200, b"Content-Length: 0"), id="of a PUT"),
        pytest.param(head(100) + head(200, b"Content-Length: 0"), id="of a PUT that waited"),
        pytest.param(head(200, b"Transfer-Encoding: chunked"), id="chunked"),
        pytest.param(b"x" * 4096, id="without a head"),
    ],
)
async def test_many_big_answers_behind_an_upload_are_not_kept(answers):
    client, body = Sent(), bytes(256 * 1024)

    connection = await relayed(client, b"PUT / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx")
    connection.coordinator_sent(answers)
    tracemalloc.start()
    try:
        for _ in range(64):
            connection.coordinator_sent(head(200, b"Content-Length: %d" % (8 * len(body))))
            for _ in range(8):
                connection.coordinator_sent(body)
        # A kept piece of an answer would be copied behind the bytes kept before, and the copy would show
        # here.
        assert tracemalloc.get_traced_memory()[1] < 2 * len(body)
    finally:
        tracemalloc.stop()
        connection.connection_lost(None)
    assert client.taken_bytes > 64 * 8 * len(body)


def test_a_head_without_an_end_is_given_away_and_not_kept():
    answering, piece = AnswerEnd(GET), b"x" * 4096
    answers = [answering.take(piece) for _ in range(64)]
    assert answers[0] == 0
    assert answers[-1] is None


async def test_reading_goes_on_after_hits_that_the_client_did_not_take_at_once():
    """Reading goes on although the last of many pipelined hits fills the client's socket.

    There is no held request by which the worker would notice that it may read on.
    """
    client, asked = Owned(), []

    class MissThenHits:
        parse = HeadReader().read

        def answer(self, _raw, _sender):
            asked.append(1)
            if len(asked) == 1:
                return None
            if len(asked) == 1 + many:
                connection.pause_writing()
            return True

    many = MOST_HELD_BYTES // len(GET) + 1
    connection = await relayed(client, GET, reads=MissThenHits())
    connection.data_received(GET * many)
    assert not client.reading
    connection.coordinator_sent(head(200, b"Content-Length: 0"))
    while len(asked) <= many:
        await asyncio.sleep(0)
    connection.resume_writing()
    for _ in range(3):
        await asyncio.sleep(0)
    assert client.reading
    connection.connection_lost(None)


async def test_no_request_is_answered_after_an_answer_that_closes():
    """After an answer that closes the connection, the worker answers no further request.

    A head that the coordinator refuses may end elsewhere than it seems, so what follows may be no request.
    """
    client, coordinator = Owned(), Owned()
    connection = await relayed(client, GET + HEAD, coordinator)
    connection.coordinator_sent(head(400, b"Connection: close", b"Content-Length: 0"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert client.closed
    assert coordinator.taken == GET
    connection.connection_lost(None)


async def test_no_more_is_read_while_the_coordinator_takes_nothing():
    """A worker whose coordinator takes nothing stops reading from the client, also from an upload.

    It goes on when the coordinator takes bytes again.
    """
    client, coordinator = Owned(), Owned()
    connection = await relayed(client, GET, coordinator)
    connection._coordinator.pause_writing()
    assert not client.reading
    connection.coordinator_sent(head(200, b"Content-Length: 0"))
    connection.data_received(b"PUT / HTTP/1.1\r\nContent-Length: 400000\r\n\r\n")
    await asyncio.sleep(0)
    assert not client.reading
    connection._coordinator.resume_writing()
    assert client.reading
    connection.connection_lost(None)


async def test_an_answer_that_comes_after_the_timeout_does_not_cut_the_timeout_off():
    """A client gets the whole 503 after a timeout, even if the coordinator answers before the client has read
    it.
    """
    client = Owned()
    asked = Asked(SimpleNamespace(), SimpleNamespace(), keep_alive=True, plain=True, found=None)
    late = SimpleNamespace(relayed_s=0.0, send=lambda outlet, _asked: outlet.write_pieces((b"503",)))

    async def connect(protocol, _peer):
        protocol.connection_made(Owned())

    fast = SimpleNamespace(answer=lambda _raw, _sender: asked, parse=HeadReader().read)
    connection = WorkerProtocol(fast, connect, set(), keepalive_s=3600.0, late=late)
    connection.connection_made(client)
    connection.data_received(GET)
    while not client.closed:
        await asyncio.sleep(0)
    for part in (head(200, b"Content-Length: 4"), b"late"):
        connection.coordinator_sent(part)
    connection.coordinator_lost()
    assert (client.taken, client.aborted) == (b"503", False)
    connection.connection_lost(None)


CHUNKED = head(200, b"Transfer-Encoding: chunked")


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([head(200, b"Content-Length: 4"), b"12"], False),
        ([head(200, b"Content-Length: 4"), b"12", b"34"], True),
        ([head(100), head(200, b"Content-Length: 4") + b"123"], False),
        ([CHUNKED], False),
        ([CHUNKED + b"2\r\n12"], False),
        ([CHUNKED + b"2\r\n12\r\n", b"0\r\n\r"], False),
        ([CHUNKED + b"2\r\n12\r\n", b"0\r", b"\n\r", b"\n"], True),
        ([CHUNKED + b"0\r\n\r\n"], True),
        ([CHUNKED + b"0\r\n\r\n" + head(200, b"Content-Length: 4") + b"1234"], True),
        ([head(403, b"Connection: close", b"Content-Length: 0")], True),
        ([], True),
    ],
)
async def test_an_answer_that_breaks_off_on_a_connection_that_was_given_away_is_reset(parts, whole):
    client = Owned()

    connection = await relayed(client, b"PUT / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx")
    for part in parts:
        connection.coordinator_sent(part)
    connection._coordinator.connection_lost(None)
    assert (client.aborted, client.ended) == (not whole, whole)
    connection.connection_lost(None)


async def test_an_answer_to_no_request_cuts_the_client_off():
    client = Owned()

    connection = await relayed(client, GET)
    for _ in range(2):
        assert not client.aborted
        connection.coordinator_sent(head(200, b"Content-Length: 0"))
    assert client.aborted
    connection.connection_lost(None)
