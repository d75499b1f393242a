"""The flow of a batch answer: order, lookahead, callers that are slow or go away, and limits on memory."""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest
import structlog

from shadeproxy.api.control import frames as frames_of_answers
from shadeproxy.api.control import lookahead
from shadeproxy.api.control.ledgers import CallLedgers
from shadeproxy.engine.rules import Rule
from shadeproxy.origin.limit import LimitedOrigin
from shadeproxy.origin.memory import Barrier, MemoryOrigin
from shadeproxy_bench.reliability.kit.faulty_origin import Fault, FaultyOrigin
from tests.support.engine import PAGE
from tests.support.frames import parse_frames

BODY = bytes(range(250)) * 4


def items(*keys: str) -> list[dict]:
    return [{"bucket": "b", "key": key} for key in keys]


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number:03d}" for number in range(count)]


async def begin(listener, keys, **fields):
    connection = await listener.connect()
    await connection.ask("/v1/batch", msgspec.json.encode({"items": items(*keys), **fields}))
    status, head = await connection.head()
    assert status == 200
    return connection, head


async def rest(connection, head):
    data, whole = await connection.body(head)
    frames, ended = parse_frames(data)
    assert whole
    assert ended
    return frames


async def test_given_order_is_kept_and_ready_order_sends_what_is_there(listener):
    cold, warm = names("cold", 8), names("warm", 8)
    listener.put(**dict.fromkeys(cold + warm, BODY))
    await listener.warm(*warm)
    mixed = [key for pair in zip(cold, warm, strict=True) for key in pair]
    frames = await listener.frames(items(*mixed))
    assert [frame.index for frame in frames] == list(range(16))
    assert [frame.source for frame in frames] == ["origin", "ram"] * 8
    for key in cold:
        listener.cache.drop_object((await _ref(key)), "test")
    frames = await listener.frames(items(*mixed), order="ready")
    assert [frame.index % 2 for frame in frames] == [1] * 8 + [0] * 8


async def _ref(key):
    from shadeproxy.core.types import ObjectRef

    return ObjectRef("b", key)


async def test_what_is_cold_is_begun_before_a_caller_is_waited_for(listener, monkeypatch):
    warm, steps = names("warm", 300), []
    listener.put(cold=BODY, **dict.fromkeys(warm, BODY))
    await listener.warm(*warm)
    for owner, step in ((lookahead.BatchLookahead, "start"), (frames_of_answers.FrameWriter, "flush")):
        whole = getattr(owner, step)
        monkeypatch.setattr(owner, step, lambda *args, w=whole, s=step: steps.append(s) or w(*args))
    frames = await listener.frames(items("cold", *warm), order="ready")
    assert len(frames) == 301
    assert steps[:2] == ["start", "flush"]


@pytest.mark.parametrize("order", ["given", "ready"])
async def test_cold_items_are_fetched_side_by_side_but_not_all_at_once(listener, order):
    cold = names("cold", 3 * lookahead.FILLS)
    listener.put(**dict.fromkeys(cold, BODY))
    gate = listener.origin.gate = Barrier()
    connection, head = await begin(listener, cold, order=order)
    await gate.reached.wait()
    while listener.engine.readings < lookahead.FILLS:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    # FILLS items are fetched ahead. In the given order, the item that is sent next is read in addition.
    assert listener.origin.gets == lookahead.FILLS + (order == "given")
    gate.release()
    frames = await rest(connection, head)
    assert sorted(frame.index for frame in frames) == list(range(len(cold)))
    assert all(frame.body == BODY for frame in frames)
    assert listener.origin.gets == len(cold)


@pytest.mark.parametrize("order", ["given", "ready"])
async def test_what_waits_for_its_turn_is_bounded_and_nothing_is_lost(listen, order):
    listener = await listen(held_bytes=3 * len(BODY))
    cold = names("cold", 40)
    listener.put(**dict.fromkeys(cold, BODY))
    most = 0
    held, take = listener.context.held, listener.context.held.try_take

    def watched(size_bytes):
        nonlocal most
        taken = take(size_bytes)
        most = max(most, held.taken_bytes)
        return taken

    held.try_take = watched
    frames = await listener.frames(items(*cold), order=order)
    assert sorted(frame.index for frame in frames) == list(range(40))
    assert all(frame.body == BODY for frame in frames)
    assert 0 < most <= 3 * len(BODY)


@pytest.mark.parametrize("order", ["given", "ready"])
async def test_with_no_room_at_all_items_are_read_one_after_another(listen, order):
    listener = await listen(held_bytes=100)
    cold = names("cold", 10)
    listener.put(**dict.fromkeys(cold, BODY))
    frames = await listener.frames(items(*cold), order=order)
    assert [frame.body for frame in frames] == [BODY] * 10


@pytest.mark.parametrize("order", ["given", "ready"])
async def test_a_slow_caller_holds_little(listen, order):
    listener = await listen(ram_bytes=1 << 22, held_bytes=64 * 1024)
    keys = names("warm", 900)
    body = bytes(PAGE)
    listener.put(**dict.fromkeys(keys, body))
    await listener.warm(*keys)
    before = listener.context.counted_stats().totals().requests
    wanted = keys * 9  # 33 MB, twice the bound below.
    connection, head = await begin(listener, wanted, order=order)
    connection.writer.transport.pause_reading()
    reads = -1
    while reads != (reads := listener.context.counted_stats().totals().requests - before):
        await asyncio.sleep(0.3)
    # Only the buffers of the loopback sockets, one group in the transport and one gathered group were read:
    # much less than all 33 MB.
    assert reads * PAGE < 16 << 20
    assert listener.context.held.taken_bytes == 0
    connection.writer.transport.resume_reading()
    frames = await rest(connection, head)
    assert [frame.index for frame in frames] == list(range(len(wanted)))
    assert {frame.body for frame in frames} == {body}


@pytest.mark.parametrize("order", ["given", "ready"])
async def test_a_caller_that_goes_away_ends_its_fetches(listener, order):
    cold = names("cold", 50)
    listener.put(**dict.fromkeys(cold, BODY))
    gate = listener.origin.gate = Barrier()
    connection, _ = await begin(listener, cold, order=order)
    await gate.reached.wait()
    await connection.close()
    async with asyncio.timeout(10):
        # A cancelled fill returns its memory to the ledger one turn of the event loop after its reader left.
        while listener.engine.readings or listener.ledger.taken_bytes:
            await asyncio.sleep(0.01)
    gate.release()


@pytest.mark.parametrize("taken_bytes", [0, 1, 20, 1000, 1050, 40_000, 100_000])
@pytest.mark.parametrize("order", ["given", "ready"])
async def test_a_caller_may_go_away_at_any_moment(listener, order, taken_bytes):
    cold, warm = names("cold", 60), names("warm", 60)
    listener.put(**dict.fromkeys(cold + warm, BODY), big=BODY * 20)
    await listener.warm(*warm)
    mixed = [key for pair in zip(warm, cold, strict=True) for key in pair] + ["big"]
    connection, _ = await begin(listener, mixed, order=order)
    await connection.reader.readexactly(taken_bytes)
    await connection.close()
    await listener.settled()  # The fixture fails the test if a read is still under way.


async def test_a_caller_that_goes_away_while_a_big_item_stands_still(listen):
    memory = MemoryOrigin()
    origin = FaultyOrigin(memory, script=[Fault(stall_after_bytes=PAGE // 2)])
    listener = await listen(origin=origin)
    memory.put("b", "big", BODY * 20)
    connection, _ = await begin(listener, ["big"])
    await origin.stalled.wait()
    await connection.close()
    await listener.settled()


async def test_what_was_fetched_for_a_caller_that_goes_away_is_given_back(listen):
    memory = MemoryOrigin()
    origin = FaultyOrigin(memory, script=[Fault(stall_after_bytes=10)])
    listener = await listen(origin=origin)
    cold = names("cold", 10)
    for key in cold:
        memory.put("b", key, BODY)
    connection, _ = await begin(listener, cold)
    while listener.context.held.taken_bytes < 9 * len(BODY):
        await asyncio.sleep(0.01)
    await connection.close()
    await listener.settled()


async def test_a_big_item_in_the_middle_is_streamed_in_its_place(listener):
    keys = [*names("cold", 5), "big", *names("more", 5)]
    listener.put(**dict.fromkeys(keys, BODY) | {"big": BODY * 50})
    for _ in range(2):
        frames = await listener.frames(items(*keys))
        assert [frame.index for frame in frames] == list(range(11))
        assert frames[5].body == BODY * 50
        assert {frame.body for frame in frames} == {BODY, BODY * 50}


@pytest.mark.parametrize("order", ["given", "ready"])
async def test_a_caller_that_stops_is_cut_off_and_leaves_the_room_to_others(listen, monkeypatch, order):
    monkeypatch.setattr(frames_of_answers, "KEEPALIVE_S", 0.2)
    listener = await listen(held_bytes=10 * len(BODY))
    first, *cold = names("cold", 20)
    listener.put(**dict.fromkeys([first, *cold], BODY), big=bytes(1 << 20))
    await listener.warm("big")
    with structlog.testing.capture_logs() as lines:
        connection = await listener.connect()
        asked = [first, *["big"] * 30, *cold]
        await connection.ask("/v1/batch", msgspec.json.encode({"items": items(*asked), "order": order}))
        connection.writer.transport.pause_reading()
        async with asyncio.timeout(30):
            while not lines:
                await asyncio.sleep(0.01)
    assert [line["event"] for line in lines] == ["batch aborted"]
    assert "took nothing for 0.2 s" in lines[0]["error"]
    await listener.settled()
    assert listener.context.held.taken_bytes == 0


async def test_a_caller_that_takes_little_goes_on(monkeypatch):
    """A caller that has taken some bytes each time that the writer looks is slow, but is not cut off."""
    monkeypatch.setattr(frames_of_answers, "KEEPALIVE_S", 0.01)
    taken, looks = asyncio.Event(), []

    class Caller:
        transport = writer = None

        def get_write_buffer_size(self):
            looks.append(1 << 20 if not looks else looks[-1] - 1)
            if len(looks) > 3:
                taken.set()
            return looks[-1]

        def is_closing(self):
            return False

        async def drain(self):
            await taken.wait()

    caller = Caller()
    caller.transport = caller.writer = caller
    await frames_of_answers.FrameWriter(caller, "0").flush()
    assert len(looks) > 3


async def test_what_is_read_past_the_cache_leaves_reads_to_other_callers(listen):
    memory = MemoryOrigin()
    limited = LimitedOrigin(memory, max_open=4)
    listener = await listen(origin=limited, rules=(Rule(bucket="b", prefix="past", cache=False),))
    memory.put("b", "past", BODY * 20)
    gate = memory.gate = Barrier()
    for _ in range(6):
        await begin(listener, ["past"])
    async with asyncio.timeout(20):
        while (limited.open_now, limited.waiting) != (3, 3):
            await asyncio.sleep(0.01)
    gate.release()
    await listener.settled()
    async with asyncio.timeout(20):
        while limited.open_now:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", ["items", "ids"])
async def test_a_call_with_many_items_waits_for_others_and_is_then_refused(listen, kind):
    listener = await listen()
    listener.put(k=BODY)
    await listener.warm("k")
    listener.register(("k",))
    wanted = {"items": items("k") * 5000} if kind == "items" else {"dataset": "data", "ids": [0] * 5000}
    listener.context.ledgers = ledgers = CallLedgers(max_wait_s=0.1)
    ledgers.items.capacity_bytes = 9000
    async with ledgers.items_of(SimpleNamespace(match_info={}, remote=""), 5000):
        status, text = await listener.refused("/v1/batch", wanted)
        assert (status, text.split(" | ")[0]) == (503, "overloaded")
        assert len(await listener.frames(items("k") * 100)) == 100
    status, data = await listener.call("/v1/batch", wanted)
    assert (status, len(parse_frames(data)[0])) == (200, 5000)
    while ledgers.items.taken_bytes:
        await asyncio.sleep(0.01)
