"""1,500 clients ask for one cold object at once. In each turn of the event loop, only a few are served."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from shadeproxy.api.s3 import FastLane
from shadeproxy.api.s3.port import TURN_BYTES
from shadeproxy.core.errors import OriginUnavailable
from shadeproxy.core.pace import PER_TURN
from shadeproxy.origin.memory import MemoryOrigin
from tests.support.engine import PAGE

READERS = 1500
BODY = bytes(i * 7 % 251 for i in range(3 * PAGE))


class Turns:
    """Counts the steps of each kind in each turn of the event loop, and keeps the highest counts."""

    def __init__(self):
        self.now = Counter()
        self.most = Counter()
        self._served = set()
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def note(self, what, count=1):
        self.now[what] += count
        self.most[what] = max(self.most[what], self.now[what])

    def served(self, client, size_bytes):
        """Count a client to which bytes were written, once in each turn, and the bytes."""
        if client not in self._served:
            self._served.add(client)
            self.note("served")
        self.note("bytes", size_bytes)

    def _next(self):
        self._served.clear()
        self.now.clear()
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def stop(self):
        self._handle.cancel()


class HeldOrigin(MemoryOrigin):
    """An origin that answers a GET only after ``go`` is set. If ``error`` is set, it raises that error."""

    def __init__(self):
        super().__init__(chunk_bytes=1000)
        self.go = asyncio.Event()
        self.error = None

    @asynccontextmanager
    async def open(self, ref, **options):
        await self.go.wait()
        if self.error is not None:
            raise self.error
        async with super().open(ref, **options) as read:
            yield read


class Client(asyncio.Transport):
    """A client's connection without a socket. The client takes written bytes at once, unless it
    is ``slow``.
    """

    def __init__(self, proxy, turns, *, slow=False):
        super().__init__()
        self.received = bytearray()
        self.slow = slow
        self.open = True
        self._turns = turns
        self._protocol = proxy.server()
        self._protocol.connection_made(self)

    def ask(self, *targets, ends=False):
        heads = [f"GET {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode() for target in targets]
        self._protocol.data_received(b"".join(heads))
        if ends and not self._protocol.eof_received():
            self.close()

    def leave(self):
        if self.open:
            self.open = False
            self._protocol.connection_lost(None)

    @property
    def bodies(self):
        """Return status and body of each answer that has arrived whole."""
        found, rest = [], bytes(self.received)
        while b"\r\n\r\n" in rest:
            head, _, rest = rest.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            if len(rest) < length:
                break
            found.append((int(head[9:12]), rest[:length]))
            rest = rest[length:]
        return found

    # ------------------------------------------------------------------ calls of the protocol

    def write(self, data):
        self._turns.served(self, len(data))
        self.received += data
        if self.slow:
            self._protocol.pause_writing()

    def writelines(self, pieces):
        self.write(b"".join(pieces))

    def take(self):
        """Tell the proxy that the client has taken all bytes that were written."""
        self._protocol.resume_writing()

    def close(self):
        if self.open:
            asyncio.get_running_loop().call_soon(self.leave)

    abort = close

    def is_closing(self):
        return not self.open

    def get_write_buffer_size(self):
        return 0

    def get_extra_info(self, _name, default=None):
        return default

    def pause_reading(self): ...

    def resume_reading(self): ...


@pytest.fixture
async def turns():
    turns = Turns()
    yield turns
    turns.stop()


@pytest.fixture
async def held(make_proxy, turns, compiled):
    """Return a proxy whose origin waits, with one object of three pages.

    The requests that the lane looks at, and the reads that it begins, are counted by turns.
    """

    class Noted(FastLane):
        def look(self, raw, out):
            turns.note("looks")
            return super().look(raw, out)

    proxy = await make_proxy(origin=HeldOrigin(), lane=Noted, compiled=compiled)
    proxy.origin.put("b", "cold", BODY)
    serve = proxy.handler.serve_read

    async def serve_read(port, asked, begun=None):
        turns.note("begun")
        return await serve(port, asked, begun)

    proxy.handler.serve_read = serve_read
    return proxy


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def connect(proxy, turns, count=READERS):
    return [Client(proxy, turns) for _ in range(count)]


async def ended(clients):
    for client in clients:
        client.leave()
    await asyncio.sleep(0)


def few(turns):
    assert turns.most["looks"] <= PER_TURN, turns.most
    assert turns.most["begun"] <= PER_TURN, turns.most
    # A turn has three kinds of steps: for readers that a flight wakes, for reads that begin when the whole
    # body is there, and for readers whose turn has come again.
    assert turns.most["served"] <= 3 * PER_TURN, turns.most
    assert turns.most["bytes"] <= 3 * PER_TURN * 1.1 * TURN_BYTES, turns.most


def readings(proxy):
    return proxy.engine.readings


async def answered(held, turns):
    """Have clients ask for one cold object, and return them when all are answered, a few in each turn."""
    clients = connect(held, turns)
    for client in clients:
        client.ask("/b/cold")
    await until(lambda: readings(held) == READERS)
    held.origin.go.set()
    await until(lambda: all(client.bodies for client in clients))
    few(turns)
    return clients


async def test_all_get_the_object_by_one_read_a_page(held, turns):
    clients = await answered(held, turns)
    assert {body for client in clients for body in client.bodies} == {(200, BODY)}
    assert len(held.origin.reads) == 3
    await ended(clients)


async def test_all_hear_that_it_failed(held, turns):
    held.origin.error = OriginUnavailable("the origin is away")
    clients = await answered(held, turns)
    assert {status for client in clients for status, _ in client.bodies} == {503}
    await ended(clients)


@pytest.mark.parametrize("when", ["before their turn", "while they wait for the origin", "while it comes"])
async def test_those_that_leave_harm_nobody(held, turns, when):
    """Clients that leave harm no other client, not even if the read of one of them started the flight."""
    clients = connect(held, turns)
    for client in clients:
        client.ask("/b/cold")
    gone, stay = clients[::3], [client for number, client in enumerate(clients) if number % 3]
    if when == "while they wait for the origin":
        await until(lambda: readings(held) == READERS)
    if when == "while it comes":
        held.origin.go.set()
        await until(lambda: any(client.received for client in clients))
    for client in gone:
        client.leave()
    held.origin.go.set()
    await until(lambda: all(client.bodies for client in stay))
    few(turns)
    assert {body for client in stay for body in client.bodies} == {(200, BODY)}
    assert len(held.origin.reads) <= 3, "one a page at most"
    assert all(len(client.bodies) == 0 for client in gone) or when == "while it comes"
    await ended(clients)


async def test_what_is_asked_behind_a_request_that_waits_is_answered_behind_it(held, turns):
    held.origin.go.set()
    held.origin.put("b", "warm", b"warm")
    first = connect(held, turns, 1)[0]
    for _ in range(3):  # The third answer comes from the request cache.
        first.ask("/b/warm")
        await until(lambda: first.bodies)
        first.received.clear()
    clients = connect(held, turns, 10 * PER_TURN)
    for client in clients:
        client.ask("/b/cold")
        client.ask("/b/warm", "/b/cold")
        client.ask("/b/warm")
    await until(lambda: all(len(client.bodies) == 4 for client in clients))
    expected = [(200, BODY), (200, b"warm"), (200, BODY), (200, b"warm")]
    assert [client.bodies for client in clients] == [expected] * len(clients)
    assert turns.most["looks"] <= PER_TURN
    await ended([first, *clients])


async def test_a_client_that_sends_no_more_is_answered_in_its_turn_and_closed(held, turns):
    held.origin.go.set()
    clients = connect(held, turns, 10 * PER_TURN)
    for client in clients:
        client.ask("/b/cold")
    late = connect(held, turns, 2)
    late[0].ask("/b/cold", ends=True)
    late[1].ask("/b/cold?tagging", ends=True)
    await until(lambda: not any(client.open for client in late))
    assert late[0].bodies == [(200, BODY)]
    assert [status for status, _ in late[1].bodies] == [501], "the origin here knows no tags"
    await until(lambda: all(client.bodies for client in clients))
    await ended(clients)


async def test_a_proxy_that_stops_answers_those_that_wait_for_their_turn(held, turns):
    held.origin.go.set()
    clients = connect(held, turns, 10 * PER_TURN)
    for client in clients:
        client.ask("/b/cold")
    await held.server.shutdown(30.0)
    assert {body for client in clients for body in client.bodies} == {(200, BODY)}
    assert all(client.bodies for client in clients)
    await until(lambda: not any(client.open for client in clients))


async def test_clients_that_take_all_at_once_are_sent_a_piece_in_their_turn(make_proxy, turns):
    """Fast clients get a piece in each turn. Otherwise one turn would send 16 whole pages of 4 MiB."""
    whole = 4 * TURN_BYTES
    proxy = await make_proxy(page_size=whole, origin=MemoryOrigin(chunk_bytes=whole))
    proxy.origin.put("b", "big", body := bytes(whole))
    clients = connect(proxy, turns, 40)
    for client in clients:
        client.ask("/b/big")
    await until(lambda: all(client.bodies for client in clients))
    assert {answer for client in clients for answer in client.bodies} == {(200, body)}
    few(turns)
    await ended(clients)


async def test_slow_clients_that_are_ready_at_once_go_on_a_few_at_a_time(held, turns):
    held.origin.go.set()
    clients = connect(held, turns, 10 * PER_TURN)
    for client in clients:
        client.slow = True
        client.ask("/b/cold")
    await until(lambda: all(client.received for client in clients))
    before = [len(client.received) for client in clients]
    await asyncio.sleep(0.02)
    assert before == [len(client.received) for client in clients], "who takes nothing is sent no more"
    turns.most.clear()
    for client in clients:
        client.slow = False
        client.take()
    await until(lambda: all(client.bodies for client in clients))
    few(turns)
    assert {body for client in clients for body in client.bodies} == {(200, BODY)}
    await ended(clients)
