"""Reads by callbacks whose last bytes come in one turn of the event loop end together. None of them harms
another one.
"""

import asyncio

import pytest

from shadeproxy.core.errors import BodyDamaged
from shadeproxy.core.types import SHARED, Intent, ObjectRef
from shadeproxy.origin.base import Wanted
from shadeproxy.origin.callback_reads import CallbackReads
from shadeproxy.origin.connection import Connection
from shadeproxy.origin.counted import CountedOrigin
from shadeproxy.origin.limit import LimitedOrigin
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy.telemetry.stats import Stats
from tests.support.clock import ManualClock
from tests.support.decrypted import Decrypted

ANSWER = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 10\r\n\r\n0123456789'


class Pool:
    """A stand-in for the pool, with a connection for each read."""

    def __init__(self) -> None:
        self.kept: list[Connection] = []

    def put_back(self, *connections: Connection) -> None:
        self.kept += [one for one in connections if one.reusable]


class Gets:
    """A stand-in for the page GETs that sends nothing. Its ``answer`` answers a read."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.transports: list[tuple[Decrypted, Connection]] = []

    def start(self, wanted, receiver) -> Connection:
        del wanted
        connection, transport = Connection(asyncio.get_running_loop(), lambda _: None), Decrypted(tls=False)
        connection.connection_made(transport)
        connection.start(b"", receiver)
        self.transports.append((transport, connection))
        return connection

    def answer(self, number: int, answer: bytes = ANSWER) -> None:
        transport, connection = self.transports[number]
        transport.hand(answer, connection)

    def note_date(self, head) -> None:
        assert head.status == 200

    def note_region(self, bucket, connection, head) -> None:
        """Learn nothing: the answers name no region."""

    def origin_of(self, wanted) -> str:
        return f"the origin of {wanted.ref}"


class Page:
    """A receiver of a body. ``ends`` says how the read ended. After a complete body it also has the number of
    open slots and of connections back in the pool.
    """

    def __init__(self, reads: "Reads") -> None:
        self.reads = reads
        self.ends: list[object] = []

    def opened(self, meta, length, **_options) -> memoryview:
        assert meta.size == length
        return memoryview(bytearray(length))

    def arrived(self, count: int) -> None:
        assert count

    def complete(self) -> None:
        self.ends.append(("complete", self.reads.limited.open_now, len(self.reads.gets.pool.kept)))

    def failed(self, error) -> None:
        self.ends.append(type(error))

    def hand_over(self, handed) -> None:
        self.ends.append(handed)


class Reads(CallbackReads):
    def __init__(self) -> None:
        self.stats = Stats()
        self.clock = ManualClock()
        memory = MemoryOrigin()
        counted = CountedOrigin(memory, stats=self.stats, clock=self.clock)
        super().__init__(Gets(), LimitedOrigin(memory, max_open=9), counted)

    def begin(self, page: Page):
        read = self.start(Wanted(ObjectRef("b", "k"), None, None, SHARED), Intent.DEMAND, page)
        assert read is not None
        return read


@pytest.fixture
def reads():
    return Reads()


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_reads_of_a_turn_give_back_what_they_hold_before_any_sink_is_called(reads):
    pages = [Page(reads) for _ in range(3)]
    for number, page in enumerate(pages):
        reads.begin(page)
        reads.gets.answer(number)
    assert reads.limited.open_now == 3
    await settle()
    assert [page.ends for page in pages] == [[("complete", 0, 3)]] * 3
    counted = reads.stats.origin["get"]
    assert (counted.requests, counted.bytes, sum(counted.buckets)) == (3, 30, 3)


async def test_an_object_too_long_to_be_cached_is_left_to_a_coroutine(reads):
    page, left = Page(reads), []
    page.hand_over = left.append
    reads.begin(page)
    reads.gets.transports[0][0].pause_reading = lambda: None
    reads.gets.answer(0, b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: %d\r\n\r\n0' % 10**17)
    await settle()
    assert (len(left), page.ends) == (1, [])


async def test_bytes_behind_one_body_refuse_that_read_alone(reads):
    pages = [Page(reads) for _ in range(3)]
    for number, page in enumerate(pages):
        reads.begin(page)
        reads.gets.answer(number)
    transport, connection = reads.gets.transports[1]
    transport.abort = lambda: None
    transport.hand(b"surplus", connection)
    await settle()
    assert [page.ends for page in pages] == [[("complete", 1, 2)], [BodyDamaged], [("complete", 0, 2)]]
    assert connection not in reads.gets.pool.kept
    assert reads.limited.open_now == 0


@pytest.mark.parametrize(("arrives", "kept"), [(ANSWER[:-4], 1), (ANSWER[:-10], 1), (b"", 0)])
async def test_a_broken_body_hands_over_its_slot(reads, arrives, kept):
    """Its sink holds memory. Reads that hold all slots may wait for that memory."""
    page = Page(reads)
    reads.begin(page)
    _, connection = reads.gets.transports[0]
    if arrives:
        reads.gets.answer(0, arrives)
    connection.connection_lost(ConnectionResetError())
    (handed,) = page.ends
    assert (reads.limited.open_now, handed.keeps_slot) == (kept, bool(kept))
    handed.close()
    assert reads.limited.open_now == 0


async def test_a_read_aborted_by_the_end_of_another_calls_its_sink_no_more(reads):
    pages = [Page(reads) for _ in range(2)]
    first, second = map(reads.begin, pages)
    pages[0].complete = second.abort
    for number in range(2):
        reads.gets.answer(number)
    await settle()
    assert pages[1].ends == []
    # The pool has its connection back, and another read may use it. So the connection is not closed.
    assert len(reads.gets.pool.kept) == 2
    assert (first.connection, second.connection, reads.limited.open_now) == (None, None, 0)


async def test_a_sink_that_raises_keeps_no_other_read_from_its_end(reads):
    pages = [Page(reads) for _ in range(2)]
    for page in pages:
        reads.begin(page)

    def fail() -> None:
        raise ZeroDivisionError

    pages[0].complete = fail
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
    for number in range(2):
        reads.gets.answer(number)
    await settle()
    assert isinstance(reported[0]["exception"], ZeroDivisionError)
    assert pages[1].ends == [("complete", 0, 2)]


async def test_the_first_byte_of_one_read_in_32_is_timed(reads):
    for number in range(70):
        reads.begin(Page(reads))
        reads.clock.advance(0.5)
        reads.gets.answer(number, ANSWER[:-5])  # This is the head, and half of the body.
        reads.clock.advance(2.0)
        reads.gets.answer(number, ANSWER[-5:])
        await settle()
    counted = reads.stats.origin["get"]
    assert (counted.first_bytes, counted.first_byte_s) == (2, 0.5)
    assert counted.latency_sum_s == 70 * 2.5


async def test_of_reads_that_start_together_not_the_slowest_is_timed(reads):
    reads.limited = LimitedOrigin(MemoryOrigin(), max_open=32)
    for _ in range(32):
        reads.begin(Page(reads))
    for number in (31, *range(31)):
        reads.clock.advance(1.0)
        reads.gets.answer(number)
    await settle()
    assert reads.stats.origin["get"].first_byte_s == 1.0
