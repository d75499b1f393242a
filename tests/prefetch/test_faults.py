"""What goes wrong while prefetching costs neither readers nor other objects anything."""

import pytest
import structlog

from shadeproxy.core.errors import OriginAnswer
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import Source
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy_bench.reliability.kit.faulty_origin import Fault, FaultyOrigin
from tests.prefetch.conftest import Order, until, whole

PAGE = 4096


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
