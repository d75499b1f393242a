"""Otel spans of requests to the origin. Each call has one span, which includes its repetitions."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from shadeproxy.core.errors import OriginAnswer, OriginUnavailable
from shadeproxy.core.types import ENDLESS, Intent, ObjectRef, Span
from shadeproxy.origin.base import ForwardRequest, HandedOver
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy.origin.otel_origin import CountedAttempts, OtelOrigin
from shadeproxy.origin.retry import RetryingOrigin, RetryRule
from shadeproxy.origin.wrapping import WrappedOrigin
from shadeproxy.telemetry.otel import SERVED
from shadeproxy_bench.reliability.kit.faulty_origin import Fault, FaultyOrigin
from tests.support.clock import ManualClock
from tests.support.otel import PlainTracer

REF = ObjectRef("b", "k")
REFUSED = Fault(error=OriginUnavailable("down"))
CUT = Fault(cut_after_bytes=4)


class Slow(WrappedOrigin):
    """An origin that answers 0.25 s after the request."""

    def __init__(self, inner, clock):
        super().__init__(inner)
        self.clock = clock

    @asynccontextmanager
    async def open(self, ref, **options):
        self.clock.advance(0.25)
        async with self._inner.open(ref, **options) as reading:
            yield reading


class World:
    def __init__(self):
        self.clock, self.tracer, self.memory = ManualClock(), PlainTracer(), MemoryOrigin()
        self.faulty = FaultyOrigin(self.memory, clock=self.clock)
        rule = RetryRule(attempts=3, base_delay_s=0.0)
        retrying = RetryingOrigin(CountedAttempts(Slow(self.faulty, self.clock)), rule=rule, clock=self.clock)
        self.origin = OtelOrigin(retrying, self.tracer, self.clock)

    async def read(self, **options):
        async with self.origin.open(REF, **options) as reading:
            return b"".join([chunk async for chunk in reading.chunks])

    @property
    def span(self):
        (span,) = self.tracer.ended
        assert self.tracer.begun == [span]
        return span


@pytest.fixture
def world():
    world = World()
    world.memory.put("b", "k", b"0123456789")
    return world


async def test_a_read_is_one_span(world):
    assert await world.read(span=Span(2, 5)) == b"234"
    span = world.span
    assert (span.kind, span.title, span.error, span.parent) == ("CLIENT", "origin GET", "", None)
    assert span.facts == {
        "aws.s3.bucket": "b",
        "aws.s3.key": "k",
        "http.request.method": "GET",
        "shadeproxy.intent": "demand",
        "shadeproxy.attempts": 1,
        "shadeproxy.first_byte_s": 0.25,
        "shadeproxy.body_bytes": 3,
    }


async def test_the_served_request_is_its_parent_but_for_a_prefetch(world):
    served = world.tracer.begin_served("S3", {})
    token = SERVED.set(served)
    await world.read()
    await world.origin.head(REF)
    await world.read(intent=Intent.PREFETCH)
    SERVED.reset(token)
    read, head, prefetch = world.tracer.ended
    assert (read.parent, head.parent, prefetch.parent) == (served, served, None)
    assert prefetch.facts["shadeproxy.intent"] == "prefetch"


async def test_repetitions_are_counted_and_no_spans_of_their_own(world):
    world.faulty.enqueue(REFUSED, CUT, None)
    assert await world.read() == b"0123456789"
    assert (world.span.facts["shadeproxy.attempts"], world.span.error) == (3, "")


async def test_repetitions_of_other_calls_are_counted_too(world):
    world.faulty.enqueue(REFUSED, None, REFUSED, None)
    await world.origin.head(REF)
    await world.origin.list_objects("b", "")
    assert [span.facts["shadeproxy.attempts"] for span in world.tracer.ended] == [2, 2]
    assert [span.title for span in world.tracer.ended] == ["origin HEAD", "origin LIST"]


async def test_calls_after_a_read_do_not_count_as_its_attempts(world):
    await world.read()
    async with world.origin.open(REF):
        await world.origin.head(REF)
        assert world.tracer.ended[-1].facts["shadeproxy.attempts"] == 1
    assert [span.facts["shadeproxy.attempts"] for span in world.tracer.ended] == [1, 1, 1]


async def test_a_body_that_breaks_off_after_another_read_counts_for_its_own(world):
    world.faulty.enqueue(CUT)
    async with world.origin.open(REF) as reading:
        await world.read()
        assert b"".join([chunk async for chunk in reading.chunks]) == b"0123456789"
    assert [span.facts["shadeproxy.attempts"] for span in world.tracer.ended] == [2, 1]


async def test_an_origin_that_stays_down_ends_the_span_with_its_error(world):
    world.faulty.enqueue(*[REFUSED] * 3)
    with pytest.raises(OriginUnavailable):
        await world.read()
    assert (world.span.facts["shadeproxy.attempts"], world.span.error) == (3, "OriginUnavailable")


async def test_an_answer_of_the_origin_has_its_status(world):
    with pytest.raises(OriginAnswer):
        await world.origin.head(ObjectRef("b", "none"))
    assert (world.span.facts["http.response.status_code"], world.span.error) == (404, "OriginAnswer")


async def test_a_reader_that_leaves_is_no_failure_of_the_origin(world):
    with pytest.raises(asyncio.CancelledError):
        async with world.origin.open(REF):
            raise asyncio.CancelledError
    assert (world.span.facts["shadeproxy.cancelled"], world.span.error) == (True, "")


async def test_a_failure_of_the_reader_itself_ends_the_span(world):
    with pytest.raises(ZeroDivisionError):
        async with world.origin.open(REF):
            raise ZeroDivisionError
    assert world.span.error == "ZeroDivisionError"


async def test_an_answer_without_a_length_has_none_in_the_span(world, monkeypatch):
    opened = world.memory.open

    @asynccontextmanager
    async def endless(ref, **options):
        async with opened(ref, **options) as reading:
            reading.span = Span(0, ENDLESS)
            yield reading

    monkeypatch.setattr(world.memory, "open", endless)
    await world.read()
    assert "shadeproxy.body_bytes" not in world.span.facts


async def test_a_read_that_callbacks_began_is_one_span_from_its_begin(world):
    began_s = world.clock.monotonic_s() - 2.0
    handed = HandedOver(started_s=began_s, error=OriginUnavailable("down"), received_bytes=0)
    assert await world.read(handed=handed) == b"0123456789"
    assert world.span.age_s == 2.0
    assert world.span.facts["shadeproxy.first_byte_s"] == 2.25
    assert world.span.facts["shadeproxy.attempts"] == 2


async def test_an_unread_answer_that_callbacks_hand_over_is_the_first_attempt(world):
    handed = HandedOver(started_s=world.clock.monotonic_s())
    await world.read(handed=handed)
    assert world.span.facts["shadeproxy.attempts"] == 1


async def test_a_forwarded_request_has_its_method_and_status(world):
    async def body():
        yield b"new"

    request = ForwardRequest("PUT", REF, "/b/k", body=body(), content_length=3)
    async with world.origin.forward(request) as answer:
        assert answer.status == 200
    assert (world.span.title, world.span.error) == ("origin PUT", "")
    assert world.span.facts["http.response.status_code"] == 200


async def test_a_forwarded_error_answer_is_marked(world):
    request = ForwardRequest("GET", ObjectRef("b", "none"), "/b/none")
    async with world.origin.forward(request) as answer:
        assert answer.status == 404
    assert (world.span.facts["http.response.status_code"], world.span.error) == (404, "404")


async def test_a_forwarded_request_without_an_answer_ends_with_its_error(world, monkeypatch):
    @asynccontextmanager
    async def unreachable(_request):
        raise OriginUnavailable("down")
        yield

    monkeypatch.setattr(world.memory, "forward", unreachable)
    with pytest.raises(OriginUnavailable):
        async with world.origin.forward(ForwardRequest("GET", REF, "/b/k")):
            pass
    assert world.span.error == "OriginUnavailable"


async def test_a_service_call_names_no_bucket(world):
    async with world.origin.forward(ForwardRequest("GET", ObjectRef("", ""), "/")):
        pass
    assert not {"aws.s3.bucket", "aws.s3.key"} & world.span.facts.keys()
