"""VerifiedOrigin: a body with a wrong checksum ends with an error, and a small body is read again."""

import asyncio

import pytest

from shadeproxy.core.checksums import FIELDS, make_checksum, value_of
from shadeproxy.core.errors import BodyDamaged
from shadeproxy.core.types import ObjectRef, Span
from shadeproxy.origin.limit import LimitedOrigin
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy.origin.retry import RetryingOrigin
from shadeproxy.origin.verified import HELD_BYTES, VerifiedOrigin
from shadeproxy_bench.reliability.kit.faulty_origin import Fault, FaultyOrigin
from tests.support.clock import ManualClock

SMALL = ObjectRef("b", "small")
LARGE = ObjectRef("b", "large")
BODIES = {SMALL: bytes(range(256)) * 300, LARGE: bytes(range(256)) * (HELD_BYTES // 256 + 300)}
FLIP = Fault(flip_bit_at=70_000)


def valued(field):
    def value(body):
        checksum = make_checksum(field)
        checksum.update(body)
        return value_of(checksum)

    return value


CHECKSUMS = {field: valued(field) for field in FIELDS}
crc32 = CHECKSUMS["x-amz-checksum-crc32"]


@pytest.fixture
def memory():
    return MemoryOrigin(chunk_bytes=10_000)


@pytest.fixture
def faulty(memory):
    return FaultyOrigin(memory, clock=ManualClock())


@pytest.fixture
def verified(faulty):
    return VerifiedOrigin(RetryingOrigin(faulty, clock=ManualClock()))


@pytest.fixture
def put(memory):
    """Return a function that stores an object with header fields that are computed from its body."""

    def store(ref, **fields):
        body = BODIES[ref]
        memory.put(
            ref.bucket, ref.key, body, headers=tuple((name, make(body)) for name, make in fields.items())
        )

    return store


async def into(origin, ref, told):
    """Read an object as the engine does. After each arrival ``told`` gets the number of bytes so far."""
    async with origin.open(ref) as reading:
        buffer = memoryview(bytearray(reading.span.length))
        total = 0

        def arrived(count):
            nonlocal total
            total += count
            told.append(total)

        await reading.read_into(buffer, arrived)
        return bytes(buffer)


async def in_pieces(origin, ref, told):
    async with origin.open(ref) as reading:
        pieces = []
        async for piece in reading.chunks:
            pieces.append(piece)
            told.append(sum(map(len, pieces)))
        return b"".join(pieces)


@pytest.mark.parametrize("read", [into, in_pieces])
@pytest.mark.parametrize("name", CHECKSUMS)
@pytest.mark.parametrize("ref", [SMALL, LARGE], ids=["small", "large"])
async def test_a_right_body_arrives_whole(verified, put, ref, name, read):
    put(ref, **{name: CHECKSUMS[name]})
    told = []
    assert await read(verified, ref, told) == BODIES[ref]
    assert told[-1] == len(BODIES[ref])


@pytest.mark.parametrize("name", CHECKSUMS)
async def test_a_small_damaged_body_is_read_once_more(verified, faulty, put, name):
    put(SMALL, **{name: CHECKSUMS[name]})
    faulty.enqueue(FLIP)
    assert await into(verified, SMALL, []) == BODIES[SMALL]
    assert faulty.calls == 2


async def test_a_small_body_that_stays_damaged_is_never_told(verified, faulty, put):
    put(SMALL, **{"x-amz-checksum-crc32": crc32})
    faulty.enqueue(FLIP, FLIP)
    told = []
    with pytest.raises(BodyDamaged, match=r"b/small.*not that of its x-amz-checksum-crc32"):
        await into(verified, SMALL, told)
    assert told == []


@pytest.mark.parametrize("read", [into, in_pieces])
async def test_a_large_damaged_body_never_looks_whole(verified, faulty, put, read):
    put(LARGE, **{"x-amz-checksum-crc32": crc32})
    faulty.enqueue(FLIP)
    told = []
    with pytest.raises(BodyDamaged):
        await read(verified, LARGE, told)
    assert 0 < told[-1] < len(BODIES[LARGE])


@pytest.mark.parametrize("ref", [SMALL, LARGE], ids=["small", "large"])
async def test_a_body_said_to_be_shorter_is_damaged(verified, faulty, put, ref):
    put(ref, **{"x-amz-checksum-crc32": crc32})
    faulty.enqueue(Fault(short_by_bytes=7), Fault(short_by_bytes=7))
    with pytest.raises(BodyDamaged):
        await into(verified, ref, [])


async def test_a_body_that_goes_on_elsewhere_is_verified_as_one(verified, faulty, put):
    put(LARGE, **{"x-amz-checksum-crc32": crc32})
    faulty.enqueue(Fault(cut_after_bytes=100_000))
    assert await into(verified, LARGE, []) == BODIES[LARGE]
    faulty.enqueue(Fault(cut_after_bytes=100_000, flip_bit_at=5))
    with pytest.raises(BodyDamaged):
        await into(verified, LARGE, [])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"x-amz-checksum-md5": lambda _: "AAAA"},
        {"x-amz-checksum-crc32": lambda _: "AAAAAA==-3"},
        {"x-amz-checksum-crc32": lambda _: "AAAAAA==", "x-amz-checksum-type": lambda _: "COMPOSITE"},
        {"x-amz-checksum-crc32": lambda _: "no base64"},
    ],
)
async def test_what_cannot_be_verified_goes_through(verified, put, fields):
    put(SMALL, **fields)
    assert await into(verified, SMALL, []) == BODIES[SMALL]


async def test_parts_go_through(verified, put):
    put(LARGE, **{"x-amz-checksum-crc32": crc32})
    async with verified.open(LARGE, span=Span(5, 50)) as reading:
        assert b"".join([piece async for piece in reading.chunks]) == BODIES[LARGE][5:50]
    async with verified.open(LARGE) as reading:
        buffer = memoryview(bytearray(1000))
        await reading.read_into(buffer, lambda _: None)
        assert bytes(buffer) == BODIES[LARGE][:1000]


async def test_a_held_body_goes_on_where_the_buffer_before_ended(verified, memory):
    body = bytes(range(200))
    memory.put("b", "held", body, headers=(("x-amz-checksum-crc32", crc32(body)),))
    async with verified.open(ObjectRef("b", "held")) as reading:
        parts = [memoryview(bytearray(length)) for length in (100, 1, 99)]
        for part in parts:
            await reading.read_into(part, lambda _count: None)
    assert b"".join(parts) == body


async def test_who_holds_a_body_holds_its_slot(memory, put):
    put(SMALL, **{"x-amz-checksum-crc32": crc32})
    limited = LimitedOrigin(memory, max_open=1)
    verified = VerifiedOrigin(limited)
    async with verified.open(SMALL) as reading:
        second = asyncio.ensure_future(into(verified, SMALL, []))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not second.done()
        assert b"".join([piece async for piece in reading.chunks]) == BODIES[SMALL]
    assert await second == BODIES[SMALL]
