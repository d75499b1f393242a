"""Every change of the hints reaches the state store, even if an export fails or is cancelled."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from structlog.testing import capture_logs

from shadeproxy.api.control.order_builder import OrderBuilder
from shadeproxy.app.persistence import Persistence
from shadeproxy.core.errors import StateError
from shadeproxy.core.types import ObjectRef
from shadeproxy.core.workpool import WorkPool
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.order.build import Build
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.state.store import StateStore
from tests.support.clock import ManualClock

ITEMS = [("datasets", "imagenet"), ("jobs", "resnet"), ("scores", "resnet")]


class Facts:
    """A stand-in for the hint registry: some items with values, whose export may fail or take long."""

    def __init__(self) -> None:
        self.values = dict.fromkeys(ITEMS, b"1")
        self.errors: dict[tuple[str, str], Exception] = {}
        self.expiry_error: Exception | None = None
        self.exporting = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def expire(self, _now_s: float) -> None:
        if self.expiry_error:
            raise self.expiry_error

    def export(self, kind: str, name: str) -> bytes | None:
        value = self.values.get((kind, name))
        if kind == "datasets":
            self.exporting.set()
            self.go_on.wait(10)
        if (kind, name) in self.errors:
            raise self.errors[kind, name]
        return value


class Bench:
    def __init__(self, path) -> None:
        self.path = path
        self.facts = Facts()
        self.state = StateStore(path, clock=ManualClock())
        self.pool = ThreadPoolExecutor(2)
        self.persistence = Persistence(self.state, self.pool, ManualClock())

    def note(self, *items: tuple[str, str]) -> None:
        for item in items:
            self.persistence.note(*item)

    async def stored(self) -> dict[tuple[str, str], bytes]:
        """Stop, and return the items that a restart would find."""
        await self.persistence.stop(self.facts)
        await asyncio.to_thread(self.state.close)
        return await asyncio.to_thread(self._load)

    def _load(self) -> dict[tuple[str, str], bytes]:
        again = StateStore(self.path)
        again.open()
        found = {(kind, name): blob for kind, _ in ITEMS for name, blob in again.load_all(kind).items()}
        again.close()
        return found

    async def rounds(self, count: int = 3) -> None:
        """Let the background task run ``count`` rounds. The sleeps of its clock do not wait."""
        for _ in range(10 * count):
            await asyncio.sleep(0)


@pytest.fixture
async def bench(tmp_path):
    bench = Bench(tmp_path)
    await asyncio.to_thread(bench.state.open)
    yield bench
    bench.facts.go_on.set()
    await asyncio.to_thread(bench.pool.shutdown)
    await asyncio.to_thread(bench.state.close)


async def test_what_a_stop_interrupts_is_stored_all_the_same(bench):
    bench.facts.go_on.clear()
    bench.note(*ITEMS)
    bench.persistence.start(bench.facts)
    await asyncio.to_thread(bench.facts.exporting.wait, 10)
    stopping = asyncio.create_task(bench.stored())
    await asyncio.sleep(0)
    bench.facts.go_on.set()
    assert await stopping == dict.fromkeys(ITEMS, b"1")


async def test_a_change_during_an_export_is_stored(bench):
    dataset = ITEMS[0]
    bench.facts.go_on.clear()
    bench.note(dataset)
    first = asyncio.create_task(bench.persistence.flush(bench.facts))
    await asyncio.to_thread(bench.facts.exporting.wait, 10)
    bench.facts.values[dataset] = b"2"
    bench.note(dataset)
    bench.facts.go_on.set()
    await first
    assert (await bench.stored())[dataset] == b"2"


async def test_an_old_export_does_not_overwrite_a_newer_one(bench):
    dataset = ITEMS[0]
    bench.facts.go_on.clear()
    bench.note(dataset)
    slow = asyncio.create_task(bench.persistence.flush(bench.facts))
    await asyncio.to_thread(bench.facts.exporting.wait, 10)
    bench.facts.values[dataset] = b"2"
    bench.note(dataset)
    waiting, bench.facts.go_on = bench.facts.go_on, threading.Event()
    bench.facts.go_on.set()
    await bench.persistence.flush(bench.facts)
    waiting.set()
    await slow
    assert (await bench.stored())[dataset] == b"2"


async def test_what_is_gone_is_deleted(bench):
    bench.note(*ITEMS)
    await bench.persistence.flush(bench.facts)
    del bench.facts.values["jobs", "resnet"]
    bench.note(("jobs", "resnet"))
    assert ("jobs", "resnet") not in await bench.stored()


@pytest.mark.parametrize("error", [StateError("too big"), ZeroDivisionError("bug")])
async def test_one_failing_item_keeps_back_no_other_and_is_tried_again(bench, error):
    bench.facts.errors["jobs", "resnet"] = error
    with capture_logs() as logs:
        bench.persistence.start(bench.facts)
        bench.note(("jobs", "resnet"), ("scores", "resnet"))
        await bench.rounds()
        assert await asyncio.to_thread(bench.state.load_all, "scores") == {"resnet": b"1"}
        del bench.facts.errors["jobs", "resnet"]
        await bench.rounds()
        assert await asyncio.to_thread(bench.state.load_all, "jobs") == {"resnet": b"1"}
        await bench.stored()
    said = [(entry["event"], entry["kind"], entry["name"]) for entry in logs]
    assert said == [("control state is not saved, will try again", "jobs", "resnet")]


async def test_a_failing_expiry_does_not_end_the_task(bench):
    bench.facts.expiry_error = ZeroDivisionError("bug")
    bench.persistence.start(bench.facts)
    with capture_logs() as logs:
        await bench.rounds()
        bench.note(("jobs", "resnet"))
        await bench.rounds()
    assert await asyncio.to_thread(bench.state.load_all, "jobs") == {"resnet": b"1"}
    assert logs[0]["event"] == "silent jobs were not expired"
    await bench.persistence.stop(bench.facts)


async def test_what_could_not_be_saved_by_the_end_is_named(bench):
    bench.facts.errors["jobs", "resnet"] = StateError("too big")
    bench.note(*ITEMS)
    with capture_logs() as logs:
        assert set(await bench.stored()) == {ITEMS[0], ITEMS[2]}
    assert logs[-1] == {
        "event": "control state is not saved", "kind": "jobs", "name": "resnet", "log_level": "error",
    }  # fmt: skip


async def test_a_job_whose_order_cannot_be_built_is_named_and_left_out(tmp_path, monkeypatch):
    kept = HintRegistry()
    for name in ("bad", "good"):
        builder = ManifestBuilder(name)
        builder.add(ObjectRef("b", name))
        kept.put_dataset(builder.finish())
        kept.put_job(Job(name, dataset=name), 0.0)
        kept.orders.put(kept.check_order(name, [0], epoch=0, rank=0), 0.0)
    state = StateStore(tmp_path, clock=ManualClock())
    await asyncio.to_thread(state.open)
    try:
        for kind, name in [("datasets", "bad"), ("datasets", "good"), ("jobs", "bad"), ("jobs", "good")]:
            state.put(kind, name, kept.export(kind, name))
        for name in ("bad/0/0", "good/0/0"):
            state.put("orders", name, kept.export("orders", name))
        build = Build.run

        def fail(self):
            if self.dataset.name == "bad":
                raise MemoryError
            return build(self)

        monkeypatch.setattr(Build, "run", fail)
        hints, pool = HintRegistry(), ThreadPoolExecutor(1)
        with capture_logs() as logs:
            await asyncio.to_thread(Persistence(state, pool, ManualClock()).restore, hints)
            assert hints.orders.announced.jobs() == ["bad", "good"]
            assert not hints.orders.trackers  # A start does not wait for its orders.
            builder = OrderBuilder(pool)
            builder.restore(hints.orders)
            await asyncio.gather(*builder._seeking)
    finally:
        await asyncio.to_thread(state.close)
    assert [(log["event"], log["job"]) for log in logs] == [("stored orders left out", "bad")]
    assert hints.orders.announced.jobs() == list(hints.orders.trackers) == ["good"]
    assert set(hints.datasets) == {"bad", "good"}


async def test_a_stop_while_restored_orders_are_built_leaves_none_out():
    hints, pool = HintRegistry(), WorkPool(1, "test")
    builder = ManifestBuilder("d")
    builder.add(ObjectRef("b", "k"))
    hints.put_dataset(builder.finish())
    hints.put_job(Job("j", dataset="d"), 0.0)
    hints.orders.put(hints.check_order("j", [0], epoch=0, rank=0), 0.0)
    held = threading.Event()
    holding = pool.submit(held.wait)  # The pool is busy, so the build waits for its turn.
    building = OrderBuilder(pool)
    with capture_logs() as logs:
        building.restore(hints.orders)
        while not pool._work_queue.qsize():
            await asyncio.sleep(0)
        for token in pool._tokens:
            token.cancelled = True
        held.set()
        await asyncio.gather(*building._seeking)
    assert holding.done()
    assert hints.orders.announced.jobs() == ["j"]
    assert not logs
    await asyncio.to_thread(pool.shutdown)
