"""Otel spans of reads by callbacks. The last byte ends the span. If a coroutine continues the read, the span
is dropped.
"""

import pytest

from shadeproxy.core.errors import OriginUnavailable
from shadeproxy.core.types import SHARED, Intent, ObjectRef
from shadeproxy.origin.base import Wanted
from shadeproxy.origin.otel_reads import OtelReads
from shadeproxy.telemetry.otel import SERVED
from tests.support.callback_reads import Reads
from tests.support.clock import ManualClock
from tests.support.otel import PlainTracer

WANTED = Wanted(ObjectRef("b", "k"), None, None, SHARED)
BODY = b"0123456789"


class Calls:
    """A sink that records its calls. ``served`` is the span of the served request that was current during the
    last call.
    """

    def __init__(self):
        self.calls, self.served = [], None
        self.arrived = self.note_arrived

    def opened(self, meta, length, *, doubtful=False, held=False, memory=None):
        self.calls.append(("opened", meta.etag, length, doubtful, held, memory))
        self.arrived = lambda count: self.calls.append(("arrived after opened", count))
        return memoryview(bytearray(length))

    def note_arrived(self, count):
        self.calls.append(("arrived", count))

    def complete(self, writer=None):
        self.calls.append(("complete", writer))

    def failed(self, error):
        self.calls.append(("failed", type(error).__name__))

    def hand_over(self, handed):
        self.served = SERVED.get()
        self.calls.append(("hand_over", handed.received_bytes))


class World:
    def __init__(self):
        self.clock, self.tracer = ManualClock(), PlainTracer()
        self.inner = Reads(lambda _ref: (BODY, '"e"'))
        self.reads = OtelReads(self.inner, self.tracer, self.clock)
        self.sink = Calls()
        self.served = self.tracer.begin_served("S3", {})

    def start(self, intent=Intent.DEMAND):
        token = SERVED.set(self.served)
        try:
            return self.reads.start(WANTED, intent, self.sink)
        finally:
            SERVED.reset(token)

    @property
    def span(self):
        (span,) = [span for span in self.tracer.begun if span.kind == "CLIENT"]
        return span


@pytest.fixture
def world():
    return World()


def test_a_whole_read_is_one_span(world):
    world.start()
    world.clock.advance(0.5)
    world.inner.reads[0].fetch()
    span = world.span
    assert (span.title, span.parent, span.error) == ("origin GET", world.served, "")
    assert span.facts == {
        "aws.s3.bucket": "b",
        "aws.s3.key": "k",
        "http.request.method": "GET",
        "shadeproxy.intent": "demand",
        "shadeproxy.attempts": 1,
        "shadeproxy.first_byte_s": 0.5,
        "shadeproxy.body_bytes": 10,
    }


def test_the_sink_gets_every_call_and_its_own_callback(world):
    world.start()
    world.inner.reads[0].fetch()
    assert world.sink.calls == [
        ("opened", '"e"', 10, False, False, None),
        ("arrived after opened", 10),
        ("complete", None),
    ]


def test_a_read_that_would_have_to_wait_begins_no_span(world):
    world.inner.ready = False
    assert world.start() is None
    assert [span.kind for span in world.tracer.begun] == ["SERVER"]


def test_a_prefetch_has_no_parent(world):
    world.start(Intent.PREFETCH)
    world.inner.reads[0].fetch()
    assert world.span.parent is None


def test_wrong_bytes_end_it_with_their_error(world):
    world.start()
    world.inner.reads[0].open()
    world.inner.reads[0].fail()
    assert world.span.error == "BodyDamaged"
    assert world.sink.calls[-1] == ("failed", "BodyDamaged")


def test_a_read_that_is_handed_over_sends_no_span(world):
    """A read that is handed over to a coroutine sends no span, because the coroutine sends one. The parent of
    the coroutine's span is the request that began the read, whichever connection reports the failure.
    """
    read = world.start()
    world.inner.reads[0].hand_over(OriginUnavailable("down"))
    read.abort()
    assert world.span.error is None
    assert world.sink.served is world.served
    assert SERVED.get() is None


def test_a_read_that_is_given_up_is_no_failure(world):
    read = world.start()
    read.abort()
    read.abort()
    assert (world.span.error, world.span.facts["shadeproxy.cancelled"]) == ("", True)
    assert world.inner.reads[0].over


def test_a_read_that_is_given_up_after_its_end_has_ended_once(world):
    read = world.start()
    world.inner.reads[0].fetch()
    read.abort()
    assert "shadeproxy.cancelled" not in world.span.facts


def test_it_lends_memory_as_the_reads_below_do(world):
    world.inner.lends_memory = True
    assert OtelReads(world.inner, world.tracer, world.clock).lends_memory
    assert not world.reads.lends_memory
