"""A failure while prefetching harms neither readers nor other objects."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Unpack

import pytest
import structlog

from shadeproxy.core.errors import OriginAnswer, OriginError, OriginUnavailable
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import ObjectRef, Source
from shadeproxy.engine.read.prefetch_port import Need
from shadeproxy.hints.datasets import Sample
from shadeproxy.hints.hashing import object_hash
from shadeproxy.origin.base import OpenOptions, OriginRead
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy_bench.reliability.kit.faulty_origin import Fault, FaultyOrigin
from tests.support.prefetching import Order, until, whole

PAGE = 4096


class FailingOrigin(MemoryOrigin):
    """An origin that answers reads of the keys ``failing`` by ``error``. ``failed`` counts these reads."""

    def __init__(self, failing: set[str], error: OriginError) -> None:
        super().__init__()
        self.failing, self.failed, self._error = failing, Counter[str](), error

    @asynccontextmanager
    async def open(self, ref: ObjectRef, **options: Unpack[OpenOptions]) -> AsyncIterator[OriginRead]:
        if ref.key in self.failing:
            self.failed[ref.key] += 1
            raise self._error
        async with super().open(ref, **options) as reading:
            yield reading


def pauses(logs) -> list[dict]:
    return [line for line in logs if line["event"] == "prefetching pauses"]


@pytest.mark.parametrize("status", [403, 404])
async def test_objects_that_cannot_be_had_stop_nobody_elses(make_fetching, status):
    memory = MemoryOrigin()
    refusal = Fault(error=OriginAnswer(status, "Refused"))
    fetching = await make_fetching(origin=FaultyOrigin(memory, script=[refusal] * 8), fetches=1)
    for number in range(20):
        memory.put("b", f"k{number}", bytes(1000))
    with structlog.testing.capture_logs() as logs:
        fetching.orders.announce("j", Order(whole(20), list(range(20))))
        await until(lambda: len(fetching.bench.cache.residents) >= 12)
        await fetching.idle()
    assert fetching.counts()[3] >= 8
    assert pauses(logs) == []


@pytest.mark.parametrize("error", [OriginAnswer(404, "NoSuchKey"), OriginUnavailable("down")])
async def test_an_object_that_fails_for_good_is_asked_for_ever_more_rarely(make_fetching, error):
    """While a job reads slowly, an object that it will read much later fails again and again. It is asked for
    less and less often, and the other objects are fetched.
    """
    fetching = await make_fetching(origin=(origin := FailingOrigin({"k3", "k7"}, error)))
    for number in range(20):
        origin.put("b", f"k{number}", bytes(1000))
    fetching.orders.announce("j", Order(whole(20), list(range(20)), rate_per_s=0.001))
    for _ in range(120):
        await fetching.idle()
        await fetching.bench.clock.sleep(4)
        fetching.orders.changed()
    assert len(fetching.bench.cache.residents) == 18
    assert 4 <= origin.failed["k3"] <= 20
    assert 4 <= origin.failed["k7"] <= 20


async def test_an_object_that_failed_for_a_while_is_prefetched_again(make_fetching):
    fetching = await make_fetching(origin=(origin := FailingOrigin({"k3"}, OriginAnswer(404, "NoSuchKey"))))
    for number in range(8):
        origin.put("b", f"k{number}", bytes(1000))
    fetching.orders.announce("j", Order(whole(8), list(range(8)), rate_per_s=0.001))
    await fetching.idle()
    assert not fetching.bench.cached(["k3"])
    origin.failing.clear()
    for _ in range(3):
        await fetching.bench.clock.sleep(1)
        fetching.orders.changed()
        await fetching.idle()
    assert fetching.bench.cached(["k3"])


async def test_an_origin_that_refuses_everything_is_not_asked_all_the_time(make_fetching):
    refusal = Fault(error=OriginAnswer(403, "AccessDenied"))
    fetching = await make_fetching(origin=FaultyOrigin(MemoryOrigin(), script=[refusal] * 500))
    with structlog.testing.capture_logs() as logs:
        fetching.orders.announce("j", Order(whole(200), list(range(200))))
        await until(lambda: bool(pauses(logs)), steps=200_000)
    assert fetching.counts()[3] >= 32


async def test_a_defect_of_the_planner_is_logged_and_counted_and_ends_nothing(make_fetching, monkeypatch):
    fetching = await make_fetching()
    for number in range(5):
        fetching.bench.origin.put("b", f"k{number}", bytes(1000))
    plan, defects = fetching.prefetcher._plan, [ValueError("a defect")]

    def plan_or_fail() -> None:
        if defects:
            raise defects.pop()
        plan()

    monkeypatch.setattr(fetching.prefetcher, "_plan", plan_or_fail)
    with structlog.testing.capture_logs() as logs:
        fetching.orders.announce("j", Order(whole(5), list(range(5))))
        await until(lambda: len(fetching.bench.cache.residents) == 5)
    assert [line["event"] for line in logs] == ["prefetching failed and goes on"]
    assert fetching.bench.stats.prefetch.faults == 1


async def test_a_defect_met_on_a_read_costs_the_reader_nothing(make_fetching, monkeypatch):
    fetching = await make_fetching(whole_bytes=1 << 20)
    fetching.bench.origin.put("b", "big", bytes(4 * PAGE))

    def fail(*_args, **_kwargs) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr(fetching.prefetcher._parts, "note", fail)
    with structlog.testing.capture_logs() as logs:
        body, source = await fetching.bench.get("big", range=RangeSpec(0, 99))
    assert (body, source) == (bytes(100), Source.ORIGIN)
    assert [line["event"] for line in logs] == ["prefetching failed and goes on"]
    assert fetching.bench.stats.prefetch.faults == 1


async def test_samples_beyond_the_end_of_a_shorter_version_take_no_memory(make_fetching):
    fetching = await make_fetching(page_size=PAGE, ram_bytes=1 << 18)
    bench = fetching.bench
    bench.origin.put("b", "k", bytes(PAGE // 2))
    await bench.get("k")
    gets = bench.origin.gets
    least = []
    real = Ledger.give

    def give(self, size_bytes):
        least.append(size_bytes)
        real(self, size_bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "give", give)
        samples = [Sample(ObjectRef("b", "k"), number * PAGE, 100) for number in range(1, 4)]
        fetching.orders.announce("j", Order(samples, [0, 1, 2]))
        await fetching.idle()
    assert min(least, default=0) >= 0
    assert bench.engine._ledger.taken_bytes == 0
    assert bench.origin.gets == gets


async def test_a_page_that_a_shorter_version_lacks_takes_no_memory(make_fetching):
    """A page that a shorter version does not have takes no memory. The fetch was planned before the object
    became shorter.
    """
    fetching = await make_fetching(page_size=PAGE, ram_bytes=1 << 18)
    bench, ahead = fetching.bench, fetching.bench.engine.prefetch_port
    bench.origin.put("b", "k", bytes(PAGE // 2))
    await bench.get("k")
    need = Need(ObjectRef("b", "k"), object_hash(ObjectRef("b", "k")), 3, PAGE)
    ended = []
    taken = [bench.engine._ledger.taken_bytes]
    ahead.begin(need, ended.append)
    for _ in range(50):
        await asyncio.sleep(0)
        taken.append(bench.engine._ledger.taken_bytes)
    assert min(taken) == max(taken) == 0
    assert len(ended) == 1
    assert (await bench.get("k"))[0] == bytes(PAGE // 2)
