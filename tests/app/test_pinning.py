"""Pins that calls make: they survive a restart, are removed by name, and a refused call says what
to change.
"""

import asyncio
from unittest.mock import AsyncMock

import msgspec
import numpy as np
import pytest
from structlog.testing import capture_logs

from shadeproxy.app.pinning import DurablePins, restore_pins
from shadeproxy.core.errors import Conflict, StateError, UnknownName
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.placement.pins import MOST_PINS, PinnedPrefix, Pins
from shadeproxy.engine.rules import Rule, Rules
from shadeproxy.hints.order.share import OwnedShare
from shadeproxy.state.store import StateStore
from tests.support.clock import ManualClock

RULES = (Rule(bucket="logs"), Rule(bucket="tr*", prefix="img/", pin=True))


@pytest.fixture
async def opened(tmp_path):
    """Yield ``opened()``, which opens the pins of the state directory, as the start of a proxy does."""
    stores = []

    async def close():
        for store in stores:
            await asyncio.to_thread(store.close)
        stores.clear()

    async def opened(rules=(), renew=None):
        await close()
        store = StateStore(tmp_path, clock=ManualClock())
        await asyncio.to_thread(store.open)
        stores.append(store)
        pins = Pins(Rules(rules))
        await asyncio.to_thread(restore_pins, pins, store)
        return DurablePins(pins, store, ManualClock(100.0), renew or AsyncMock())

    yield opened
    await close()


async def test_what_is_pinned_is_pinned_after_a_restart(opened):
    pins = await opened()
    await pins.pin("train", "img/ü x/")
    await pins.pin("train", "")
    await pins.pin("val", "a")
    await pins.unpin("train", "")
    again = await opened()
    assert again.pins.by_call() == [
        PinnedPrefix("train", "img/ü x/", 100.0),
        PinnedPrefix("val", "a", 100.0),
    ]
    assert again.pins.covers(ObjectRef("train", "img/ü x/1"))
    assert not again.pins.covers(ObjectRef("train", "img/1"))


async def test_pins_of_one_prefix_in_two_namespaces_are_two_pins(opened):
    pins = await opened()
    await pins.pin("train", "img/")
    await pins.pin("train", "img/", "team-a")
    again = await opened()
    assert again.pins.by_call() == [
        PinnedPrefix("train", "img/", 100.0),
        PinnedPrefix("train", "img/", 100.0, "team-a"),
    ]
    await again.unpin("train", "img/")
    once_more = await opened()
    assert once_more.pins.covers(ObjectRef("train", "img/1", "team-a"))
    assert not once_more.pins.covers(ObjectRef("train", "img/1"))
    with pytest.raises(UnknownName) as caught:
        await once_more.unpin("train", "img/", "team-b")
    assert str(caught.value) == "no call pinned s3://train/img/ (namespace team-b)"
    assert caught.value.hint == "pinned are s3://train/img/ (namespace team-a); name one of them exactly"


async def test_it_is_durable_before_the_call_is_answered(opened):
    pins = await opened()
    await pins.pin("train", "img/")
    # ``pins`` is not closed, so no pin is written at its end.
    assert (await opened()).pins.covers(ObjectRef("train", "img/1"))


async def test_pinning_twice_changes_nothing(opened):
    pins = await opened()
    await pins.pin("b", "p")
    version = pins.pins.version
    await pins.pin("b", "p")
    assert pins.pins.version == version


async def test_what_cannot_be_read_is_left_out_and_logged(opened, tmp_path):
    pins = await opened()
    await pins.pin("b", "good")
    pins._state.put("pins", "b/broken", b"\xc1")
    blob = msgspec.msgpack.encode({"version": 9, "bucket": "b", "prefix": "newer", "since_s": 0.0})
    pins._state.put("pins", "b/newer", blob)
    await pins._state.flush()
    with capture_logs() as logs:
        again = await opened()
    assert [pin.prefix for pin in again.pins.by_call()] == ["good"]
    assert {(log["event"], log["name"]) for log in logs} == {
        ("stored state left out", "b/broken"),
        ("stored state left out", "b/newer"),
    }


async def test_what_is_not_pinned_cannot_be_unpinned(opened):
    pins = await opened(RULES)
    with pytest.raises(UnknownName, match="no call pinned s3://b/p") as refused:
        await pins.unpin("b", "p")
    assert refused.value.hint == "nothing is pinned by a call"
    for number in range(12):
        await pins.pin("b", f"q{number:02d}")
    with pytest.raises(UnknownName) as refused:
        await pins.unpin("b", "q")
    assert refused.value.hint == (
        "pinned are s3://b/q00, s3://b/q01, s3://b/q02, s3://b/q03, s3://b/q04, s3://b/q05, s3://b/q06,"
        " s3://b/q07, s3://b/q08, s3://b/q09 and 2 more; name one of them exactly"
    )


async def test_what_a_rule_pins_is_not_unpinned_by_a_call(opened):
    pins = await opened(RULES)
    with pytest.raises(Conflict) as refused:
        await pins.unpin("train", "img/cats/")
    assert str(refused.value) == (
        's3://train/img/cats/ is pinned by rules[1] (bucket = "tr*", prefix = "img/") of the configuration,'
        " not by a call"
    )
    assert refused.value.hint == "write pin = false there and send SIGHUP"
    await pins.pin("train", "img/cats/")
    await pins.unpin("train", "img/cats/")
    assert pins.pins.covers(ObjectRef("train", "img/cats/1"))


async def test_there_is_a_most(opened):
    pins = await opened()
    for number in range(MOST_PINS):
        pins.pins.add(PinnedPrefix("b", str(number), 0.0))
    with pytest.raises(Conflict, match="256 prefixes are pinned, which is as many as may be") as refused:
        await pins.pin("b", "one more")
    assert refused.value.hint == "unpin one, or pin a prefix that they share; GET /v1/pins lists them"
    await pins.pin("b", "7")


async def test_what_cannot_be_saved_is_an_error_and_holds_until_the_end(opened):
    pins = await opened()

    async def broken():
        raise StateError("control state cannot be written")

    pins._state.flush = broken
    with pytest.raises(StateError):
        await pins.pin("b", "p")
    assert pins.pins.covers(ObjectRef("b", "p1"))


async def test_what_cannot_be_saved_is_applied_to_what_is_cached_all_the_same(opened, monkeypatch):
    renewed = AsyncMock()
    pins = await opened(renew=renewed)

    def full(_batch):
        raise StateError("the disk is full")

    monkeypatch.setattr(pins._state, "_commit", full)
    for call, expected in ((pins.pin, 1), (pins.unpin, 2)):
        with pytest.raises(StateError):
            await call("b", "p")
        await asyncio.sleep(0)
        assert renewed.await_count == expected


async def test_a_cancelled_call_is_applied_to_what_is_cached_all_the_same(opened):
    begun, free, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def renew():
        begun.set()
        await free.wait()
        ended.set()

    pins = await opened(renew=renew)
    call = asyncio.create_task(pins.pin("b", "p"))
    await begun.wait()
    call.cancel()
    await asyncio.wait([call])
    free.set()
    await ended.wait()


async def test_a_call_is_answered_when_what_is_cached_is_pinned(opened):
    free = asyncio.Event()
    pins = await opened(renew=free.wait)
    call = asyncio.create_task(pins.pin("b", "p"))
    while not pins.pins.by_call():
        await asyncio.sleep(0)
    await pins._state.flush()
    await asyncio.sleep(0)
    assert not call.done()
    free.set()
    await call


async def test_what_is_cached_learns_of_it_in_the_background_and_ends(opened):
    begun = []

    async def renew():
        begun.append(True)
        await asyncio.Event().wait()

    pins = await opened(renew=renew)
    pins.start()
    pins.rules_changed()
    while len(begun) < 2:
        await asyncio.sleep(0)
    await pins.aclose()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "pins"]


async def test_a_failure_of_it_is_logged(opened):
    async def renew():
        raise RuntimeError("a bug")

    pins = await opened(renew=renew)
    with capture_logs() as logs:
        pins.start()
        while not logs:
            await asyncio.sleep(0)
    assert logs[0]["event"] == "pins were not carried over to what is cached"


async def test_what_could_not_be_saved_is_not_answered_as_saved_the_next_time(opened, monkeypatch):
    pins = await opened()

    def full(_batch):
        raise StateError("the disk is full")

    monkeypatch.setattr(pins._state, "_commit", full)
    for _ in range(2):
        with pytest.raises(StateError):
            await pins.pin("train", "img/")
    for _ in range(2):
        with pytest.raises(StateError):
            await pins.unpin("train", "img/")


async def test_a_new_share_of_the_clusters_objects_is_applied_to_what_is_cached_once(opened):
    renew = AsyncMock()
    pins = await opened(renew=renew)
    owned = np.array([True, False])
    for number in (None, 1, 1, (), 2):
        pins.share_changed(
            OwnedShare(number, lambda hashes: np.resize(owned, len(hashes)), lambda hashed: hashed == 7)
        )
    await asyncio.sleep(0)
    assert renew.await_count == 2
    assert pins.pins.share.owns(np.arange(2, dtype=np.uint64)).tolist() == [True, False]
    assert pins.pins.share.owns_one(7)
    await pins.aclose()
