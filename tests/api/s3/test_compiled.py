"""The compiled request cache gives the same answer as the one in Python, or leaves the request to it."""

import math
import os
import random
import re
from array import array

import pytest

from shadeproxy.api.s3 import COMPILED
from shadeproxy.api.s3.request_cache import CachedTarget
from shadeproxy.api.s3.response_heads import PartHead
from shadeproxy.api.s3.signed import Plan, _Template
from shadeproxy.core.clock import boot_time_s
from shadeproxy.core.types import ObjectRef, Source, Span
from shadeproxy.engine.access_records import USE, AccessRecord
from shadeproxy.telemetry.requests import REQUEST_BOUNDS_S
from shadeproxy.tiers.base import SendableBlocks
from tests.support.clock import ManualClock
from tests.support.s3.clients import signed
from tests.support.s3.compiled import ID, Both, Sink, heads
from tests.support.s3.lane import pattern, request, talk

if COMPILED:
    pass
else:
    pytest.skip("the lane was not compiled when it was installed", allow_module_level=True)


async def test_both_forms_send_and_note_the_same(warm):
    both, answered = Both(warm), 0
    for raw in heads(warm):
        said = both.interpreted(raw)
        assert both.compiled(raw) == said, raw
        answered += said is not None
        warm.clock.advance(0.4)
    handle = warm.engine.find_handle(ObjectRef("b", "big"), 0, warm.clock.now_s())
    assert answered == (56 if handle.sendable else 54)  # A range over two pages needs sendfile.


async def test_both_forms_count_the_same(warm):
    both, counts = Both(warm), warm.lane._counts
    counts.take()
    for raw in heads(warm):
        both.interpreted(raw)
        both.compiled(raw)
    taken = both.hits.take_tallies()
    interpreted = {(row.status, row.source): row.requests for row in counts.take()}
    compiled = {
        (206 if is_part else 200, Source.DISK if is_disk else Source.RAM): requests
        for is_disk, is_part, requests, *_ in taken
    }
    assert compiled == interpreted
    assert set(interpreted) == {(200, Source.RAM), (206, Source.RAM)}
    assert sum(interpreted.values()) == both.hits.answered
    for *_, requests, seconds, buckets in taken:
        assert (sum(buckets), len(buckets)) == (requests, len(REQUEST_BOUNDS_S) + 1)
        assert 0 < seconds < requests * REQUEST_BOUNDS_S[-1]
    assert both.hits.take_tallies() == []


class Leased(ManualClock):
    """A clock with a lease. It counts the calls of ``now_s``, because each of them looks at the lease."""

    def __init__(self, *, shown):
        super().__init__()
        self.lease = memoryview(array("d", [math.inf])) if shown else None
        self.wall_s, self.looks = super().now_s, 0

    def now_s(self):
        self.looks += 1
        return super().now_s()


@pytest.mark.parametrize(("shown", "looks"), [(True, [0, 1, 0]), (False, [1, 1, 1])])
async def test_a_clock_with_a_lease_is_asked_only_after_the_end_that_it_shows(warm, shown, looks):
    clock = Leased(shown=shown)
    both, found = Both(warm, clock), []
    for left_s in (60.0, -0.001, 60.0):
        if shown:
            clock.lease[0] = boot_time_s() + left_s
        assert both.compiled(request("/b/k", close=False))
        found.append(clock.looks)
        clock.looks = 0
    assert found == looks


async def test_what_differs_in_one_byte_is_answered_by_both_or_by_neither(warm):
    """When one byte of a known request is changed, both forms answer alike, or neither form answers.

    The request can be answered only if the byte is in a name, a range or an invocation id. A change of any
    other byte makes it an unknown request.
    """
    both, drawn, taken = Both(warm), random.Random(4), 0
    for raw in heads(warm, "k"):
        for place in range(len(raw)):
            for other in (drawn.randrange(256), drawn.choice(b"\r\n :-0aA/"), raw[place] ^ 1):
                for changed in (
                    raw[:place] + bytes([other]) + raw[place + 1 :],
                    raw[:place] + bytes([other]) + raw[place:],
                    raw[:place] + raw[place + 1 :],
                ):
                    said = both.compiled(changed)
                    taken += said is not None
                    assert said is None or said == both.interpreted(changed), changed
    assert taken > 100  # Requests with another invocation id or range.


@pytest.mark.parametrize("key", ["k", "two"])
async def test_both_forms_read_a_range_alike(warm, key):
    both, drawn, taken = Both(warm), random.Random(5), 0
    for _ in range(1500):
        ends = [str(drawn.randrange(10 ** drawn.randint(1, 6))) for _ in range(2)]
        first, last = sorted(ends, key=int, reverse=drawn.random() < 0.1)
        value = f"{first}-{last}"
        odd = (
            f"-{last}",
            f"{first}-",
            f"0{value}",
            f"{value},5-6",
            f"{value} ",
            f"{value}{'0' * 20}",
            "1--2",
            "-",
        )
        value = drawn.choice((*(value,) * 8, *odd))
        lines = [f"{drawn.choice(['Range', 'range', 'RANGE'])}: bytes={value}"]
        lines += drawn.choice([[], [], [], ["Range: bytes=1-2"], ["range: bytes=3-4"]])
        drawn.shuffle(lines)
        raw = request(f"/b/{key}", *lines, close=False)
        said = both.compiled(raw)
        taken += said is not None
        assert said is None or said == both.interpreted(raw), raw
    assert taken > 100


async def test_heads_that_end_too_soon_or_too_late_are_left_alone(warm):
    both = Both(warm)
    for raw in heads(warm):
        for stop in range(len(raw)):
            assert both.compiled(raw[:stop]) is None
        assert both.compiled(raw + raw) is None
        assert both.compiled(raw + b"x") is None


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(lambda raw, _: raw.replace(b"Signature=", b"Signature=0")[:-1], id="longer"),
        pytest.param(lambda raw, _: re.sub(rb"(Signature=).", rb"\1x", raw), id="no hex"),
        pytest.param(lambda raw, _: re.sub(rb"(?<=invocation-id: ).{36}", b"-" * 36, raw), id="dashes"),
        pytest.param(lambda raw, _: raw.replace(b"/b/k ", b"/b/big "), id="another object"),
        pytest.param(lambda raw, proxy: proxy.clock.advance(16 * 60) or raw, id="too late"),
    ],
)
async def test_who_is_not_right_is_left_to_the_others(warm, changed):
    both, raw = Both(warm), signed("/b/k", now_s=warm.clock.now_s())
    assert both.compiled(raw) is not None
    raw = changed(raw, warm)
    assert both.compiled(raw) is None
    assert both.interpreted(raw) is None


@pytest.mark.parametrize(
    ("place", "other"),
    [(b"Signature=", b"G"), (b"Signature=", b"A"), (b"Signature=", b"/"), (b"Signature=", b":"),
     (b"Signature=", b"`"), (b"Signature=", b"g"), (rb"x-amz-date: \d{8}T", b"/"),
     (rb"x-amz-date: \d{8}T\d{5}", b":"), (rb"x-amz-date: \d{8}", b"t"), (rb"x-amz-date: \d{8}T\d{6}", b"z")],
)  # fmt: skip
async def test_what_cannot_be_a_signature_is_left_to_the_others(warm, place, other):
    """The compiled form leaves a request to the form in Python if a field has no valid form of a signature.

    The key of the signer is unknown and counts as anonymous, so the signature itself is not checked.
    """
    both, raw = Both(warm), signed("/b/k", key="stranger", secret="any", now_s=warm.clock.now_s())
    assert both.compiled(raw) is not None
    end = re.search(place, raw).end()
    raw = raw[:end] + other + raw[end + 1 :]
    assert both.compiled(raw) is None
    assert both.interpreted(raw) is None


async def test_a_page_that_went_is_not_sent(warm):
    both, raw = Both(warm), request("/b/k", close=False)
    assert both.compiled(raw) is not None
    warm.engine.cache.drop_object(ObjectRef("b", "k"), "test")
    assert both.compiled(raw) is None


async def test_what_is_no_longer_fresh_is_left_to_the_others(warm):
    both, raw = Both(warm), request("/b/k", close=False)
    warm.clock.advance(3599.0)
    assert both.compiled(raw) is not None
    warm.clock.advance(2.0)
    assert both.compiled(raw) is None


async def test_what_is_forgotten_is_forgotten_by_both(warm):
    both, raw = Both(warm), request("/b/k", close=False)
    warm.lane.forget(remembers=True)
    assert both.compiled(raw) is None


class Refusing(Sink):
    """A sender that writes to a file. Sending the head fails, and later sendfile works.

    The kernel does this if the client reads between the two calls.
    """

    def __init__(self, file):
        super().__init__()
        self.descriptor = file.fileno()
        self.went_on = []

    def go_on(self, lead, position, file_slice):
        self.went_on.append((lead, file_slice.pin()[position - file_slice.start :]))


@pytest.fixture
def file(tmp_path):
    with (tmp_path / "client").open("w+b") as file:
        yield file


async def test_a_body_never_leaves_before_its_head(warm, file):
    both, size = Both(warm), 1 << 16  # At this size all blocks may leave by sendfile.
    warm.origin.put("b", "page", pattern(size))
    whole, part = (
        request("/b/page", *fields, close=False) for fields in ((), (f"Range: bytes=5000-{size - 1}",))
    )
    for raw in (whole, part) * 3:
        await talk(warm.port, raw, count=1)
    for raw in (whole, part):
        expected, _ = both.compiled(raw)
        head, _, body = expected.partition(b"\r\n\r\n")
        out = Refusing(file)
        assert both._compiled(raw, out)
        assert os.fstat(file.fileno()).st_size == 0
        ((lead, rest),) = out.went_on
        assert ID.sub(b"", lead) == head + b"\r\n\r\n"
        assert rest == body


async def test_nothing_goes_past_what_the_transport_holds(warm, file):
    both, raw = Both(warm), request("/b/big", close=False)
    expected, _ = both.compiled(raw)
    out = Refusing(file)
    out.get_write_buffer_size = lambda: 1
    assert both._compiled(raw, out)
    assert out.went_on == []
    assert ID.sub(b"", out.sent) == expected


def test_named_tuples_are_read_by_these_positions():
    """The compiled form reads named tuples by these positions, which _request_cache.pyx lists at its top."""
    assert CachedTarget._fields == ("ref", "canonical_path", "handle", "heads")
    assert PartHead._fields == ("meta", "before", "between", "after")
    assert Span._fields == ("start", "stop")
    assert Plan._fields.index("job") == 0
    assert Plan._fields.index("checksums") == 2
    assert _Template._fields == ("fixed", "time", "signature", "invocation", "date", "signing", "plan")
    assert AccessRecord._fields == ("job", "kinds", "kind", "row")
    assert (USE.fields["first"][1], USE.fields["size_bytes"][1]) == (24, 32)
    assert (USE.fields["slot"][1], USE.fields["stamp"][1], USE.itemsize) == (0, 8, 48)
    assert SendableBlocks._fields == ("file", "start", "stop")
