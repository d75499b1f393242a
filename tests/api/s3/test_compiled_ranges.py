"""Ranges that the compiled lane sends by sendfile: from one page or two, to clients with small buffers."""

import os
import socket
import sys
from dataclasses import replace

import pytest

from shadeproxy.core.types import ObjectRef, Source
from tests.support.clock import ManualClock
from tests.support.s3.compiled import ID, JOB, Both, Sink
from tests.support.s3.lane import request, talk


class Narrow(Sink):
    """A connection whose client reads nothing yet, and whose buffers hold little more than ``room`` bytes."""

    def __init__(self, room):
        super().__init__()
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.client = socket.socket()
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
            self.client.connect(server.getsockname())
            self.ours, _ = server.accept()
        self.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
        self.ours.setblocking(False)
        self.descriptor = self.ours.fileno()
        self.left, self.pages_left = b"", 0

    def go_on(self, lead, position, file_slice, *rest):
        self.left = lead + bytes(file_slice.pin()[position - file_slice.start :])
        self.left += b"".join(one.pin() for one in rest)
        self.pages_left = 1 + len(rest)

    def arrived(self):
        """Return all bytes of the answer: those that were sent, and then those that were left for later."""
        self.ours.close()
        received = bytearray()
        while piece := self.client.recv(1 << 16):
            received += piece
        self.client.close()
        return ID.sub(b"", bytes(received) + self.left)


def over_two_pages(first, stop):
    return request("/b/wide", f"Range: bytes={first}-{stop - 1}", JOB, close=False)


@pytest.fixture
async def wide(make_proxy, tmpfs):
    """Return a proxy that knows an object of two and a half pages, which may leave by sendfile."""
    proxy = await make_proxy(clock=ManualClock(), page_size=1 << 20, ram=tmpfs / "ram")
    proxy.origin.put("b", "wide", os.urandom(2_600_000))
    await talk(proxy.port, request("/b/wide", JOB, close=False), count=1)
    for first in (0, 1 << 20, 2 << 20) * 2:
        await talk(proxy.port, over_two_pages(first, first + 100), count=1)
    return proxy


EDGE = 1 << 20
SPANS = [(EDGE - 500_000, EDGE + 500_000), (EDGE - 30_000, EDGE + 7), (EDGE - 20_000, EDGE + 1_000_000),
         (2 * EDGE - 300_000, 2_600_000), (EDGE, 2 * EDGE), (EDGE + 5000, EDGE + 905_000)]  # fmt: skip


@pytest.mark.parametrize("span", SPANS)
async def test_what_the_client_does_not_take_at_once_is_left_in_order_and_no_byte_of_it_twice(wide, span):
    both, raw, pages_left = Both(wide), over_two_pages(*span), set()
    expected, rows = both.interpreted(raw)
    for room in (4096, *range(30_000, 700_000, 30_000), 1 << 22):
        both._access_log.flush_to_statistics()
        out = Narrow(room)
        assert both._compiled(raw, out)
        assert out.sent == b"", "past the transport"
        assert bytes(both._access_log.rows) == rows
        assert out.arrived() == expected
        pages_left.add(out.pages_left)
    assert pages_left >= ({0, 1, 2} if span == SPANS[0] else {0})


@pytest.mark.parametrize("span", [SPANS[0], SPANS[-1]], ids=["two pages", "one page"])
async def test_a_range_takes_no_step_of_the_interpreter(wide, span):
    both, raw, out, frames = Both(wide), over_two_pages(*span), Narrow(1 << 22), set()
    expected = both.compiled(raw)[0]
    sys.setprofile(lambda frame, event, _: frames.add(frame.f_code.co_name) if event == "call" else None)
    try:
        assert both._compiled(raw, out)
    finally:
        sys.setprofile(None)
    assert out.arrived() == expected
    # The only Python calls are those of the connection and of the clock, and ``touch``, which notes that a
    # job still reads. In the product, connection and clock are C code.
    assert frames <= {"transport", "get_write_buffer_size", "now_s", "touch"}


@pytest.mark.parametrize("what", ["gone", "of another version", "of another tier", "stale"])
async def test_a_range_whose_second_page_is_not_as_the_first_is_left_alone(wide, what):
    both, raw, ref = Both(wide), over_two_pages(*SPANS[0]), ObjectRef("b", "wide")
    assert both.compiled(raw) is not None
    first, after = (wide.engine.find_handle(ref, at, wide.clock.now_s()) for at in (0, EDGE))
    if what == "gone":
        wide.engine.cache.drop(after.slot, "test")
    elif what == "of another version":
        after.meta = replace(after.meta, etag='"other"')
    elif what == "of another tier":
        after.source = Source.DISK
    else:
        wide.engine.hits._fresh = lambda _: None
        after.fresh_until_s = wide.clock.now_s()
    out = Narrow(1 << 22)
    assert not both._compiled(raw, out)
    assert (out.arrived(), out.sent) == (b"", b"")
    assert both.interpreted(raw) is None
    assert first.first == 0


async def test_both_pages_are_lent_before_they_are_sent(wide):
    """Both pages of a range are marked as sent before any of their bytes leave.

    A page without this mark could be overwritten in place while a socket still holds it (ADR 7).
    """
    both, tier = Both(wide), wide.engine.cache.media[0].tier
    assert both.compiled(over_two_pages(*SPANS[0])) is not None
    wide.engine.hits.forget()
    for segment in tier._space.segments.values():
        segment._sent[:] = bytes(len(segment._sent))
    out = Narrow(1 << 22)
    assert both._compiled(over_two_pages(*SPANS[0]), out)
    out.arrived()
    for first in (0, EDGE):
        handle = wide.engine.find_handle(ObjectRef("b", "wide"), first, wide.clock.now_s())
        file, start, stop = handle.sendable
        assert handle.marked_sent
        assert all(file._sent[start // 4096 : stop // 4096])


@pytest.mark.parametrize("span", [(EDGE - 30_000, 2 * EDGE + 1), (EDGE - 30_000, 2_600_000), (0, 2_600_000)])
async def test_a_range_over_three_pages_is_left_alone(wide, span):
    both, out = Both(wide), Narrow(1 << 22)
    assert not both._compiled(over_two_pages(*span), out)
    assert (out.arrived(), out.sent) == (b"", b"")
    assert both.interpreted(over_two_pages(*span)) is None


async def test_that_a_second_page_was_read_first_is_told_soon(wide):
    both, access_log = Both(wide), wide.engine.access_log
    assert both.compiled(over_two_pages(*SPANS[0])) is not None
    access_log.flush()
    second = wide.engine.find_handle(ObjectRef("b", "wide"), EDGE, wide.clock.now_s())
    access_log.unread.add(second.slot)
    out = Narrow(1 << 22)
    assert both._compiled(over_two_pages(*SPANS[0]), out)
    out.arrived()
    assert access_log._delay_s < 0.1


async def test_tickets_that_were_forgotten_are_not_looked_up(wide):
    both, raw = Both(wide), over_two_pages(*SPANS[0])
    assert both.compiled(raw) is not None
    wide.engine.hits._fresh = lambda _: None
    assert both.compiled(raw) is not None
    wide.engine.hits.forget()
    assert both.compiled(raw) is None
    assert both.interpreted(raw) is None
