"""The reports of a fill: each event reaches the coordinator, in as few messages as possible."""

import asyncio

import pytest

from shadeproxy.api.s3.fill_reports import FillReports
from shadeproxy.core.errors import BodyDamaged
from shadeproxy.core.types import ObjectMeta, Span
from shadeproxy.engine.read.fill_messages import (
    ClientLeft,
    FillComplete,
    FillFailure,
    FillHead,
    FillProgress,
    OrderFill,
    Outbox,
    from_coordinator,
    from_worker,
)

IDENT, LENGTH = 7, 4096
SPAN = Span(0, LENGTH)
LEFT = ClientLeft(IDENT, 0, LENGTH, served=True)


def head(filled=0, complete=None, etag='"e"'):
    message = FillHead(IDENT, 8192, LENGTH, etag, LENGTH, (("Content-Type", "a/b"),), doubtful=False)
    message.filled, message.complete = filled, complete
    return message


@pytest.fixture
async def reports():
    return Reports()


class Reports:
    """The reports of a fill, and the messages that they have sent."""

    def __init__(self):
        self._frames = []
        self.outbox = Outbox(lambda frame: self._frames.append(frame) or True, lambda: None)
        self.of_fill = FillReports(self.outbox, IDENT)

    @property
    def sent(self):
        self.outbox.flush()
        return [message for frame in self._frames for message in from_worker(frame)]


async def test_a_page_that_comes_at_once_is_one_message(reports):
    reports.of_fill.open(head())
    reports.of_fill.leave(SPAN, served=True, ends=True)
    reports.of_fill.complete()
    assert reports.sent == [head(LENGTH, FillComplete(IDENT, LEFT))]


async def test_the_client_of_a_page_that_came_at_once_may_leave_later(reports):
    reports.of_fill.open(head())
    reports.of_fill.complete()
    reports.of_fill.leave(SPAN, served=True, ends=False)
    assert reports.sent == [head(LENGTH, FillComplete(IDENT)), LEFT]


async def test_a_page_that_comes_in_pieces_is_reported_in_pieces(reports):
    reports.of_fill.open(head())
    reports.of_fill.progress(1000)
    reports.of_fill.progress(1000)
    reports.of_fill.progress(3000)
    assert reports.of_fill.reported == 3000
    reports.of_fill.leave(SPAN, served=True, ends=True)
    reports.of_fill.complete()
    assert reports.sent == [head(1000), FillProgress(IDENT, 3000), FillComplete(IDENT, LEFT)]


async def test_a_head_without_bytes_is_reported_by_the_timer(reports):
    reports.of_fill.open(head())
    reports.of_fill.progress(0)
    assert reports.sent == [head()]


async def test_a_client_may_leave_before_the_head_comes(reports):
    reports.of_fill.leave(Span(-1, -1), served=False, ends=False)
    assert reports.sent == [ClientLeft(IDENT)]


@pytest.mark.parametrize("has_left", [False, True])
async def test_a_page_that_fails_at_its_end_is_reported_before_the_failure(reports, has_left):
    reports.of_fill.open(head())
    if has_left:
        reports.of_fill.leave(SPAN, served=True, ends=True)
    reports.of_fill.give_up(LENGTH)
    reports.of_fill.fail(BodyDamaged("another checksum"), final=True)
    failure = FillFailure(IDENT, "BodyDamaged", "another checksum", 0, final=True)
    # A client that has left has got all bytes. The bytes of a failed page are for no other client.
    assert reports.sent == [head(LENGTH), LEFT, failure] if has_left else [head(), failure]
    reports.of_fill.give_up(LENGTH)
    assert len(reports.sent) == (3 if has_left else 2)


async def test_a_fill_that_asks_nothing_says_so(reports):
    reports.of_fill.fail(None)
    assert reports.sent == [FillFailure(IDENT)]


async def test_memory_is_freed_before_the_fills_of_the_same_frame_need_it():
    frames = []
    outbox = Outbox(lambda frame: frames.append(frame) or True, lambda: None)
    outbox.send(OrderFill(-1, "b", "k", None, None))
    outbox.allow(1)
    outbox.free(4096)
    outbox.free(8192)
    outbox.flush()
    (frame,) = frames
    freed, ordered, allowed = from_coordinator(frame)
    assert (freed.starts, ordered.ident, allowed.idents) == ([4096, 8192], -1, [1])
    await asyncio.sleep(0)


async def test_a_head_that_is_no_valid_text_arrives(reports):
    reports.of_fill.open(head(etag='"\udcff"'))
    reports.of_fill.complete()
    (message,) = reports.sent
    assert message.octets
    assert message.meta == ObjectMeta('"\udcff"', LENGTH, (("Content-Type", "a/b"),))
    assert (message.filled, message.complete) == (LENGTH, FillComplete(IDENT))
    await asyncio.sleep(0)
