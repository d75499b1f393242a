"""The eviction pool of a tier: which victims it gives out, and for how long it may be used."""

import numpy as np

from shadeproxy.core.types import ObjectRef, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.index.residents import Residents
from shadeproxy.engine.placement.eviction_pool import REFUSED, UNFIT, EvictionPool, draw_positions
from shadeproxy.tiers.base import Location

PAGE = 4096


def filled(count: int) -> Residents:
    residents = Residents(1)
    for number in range(count):
        slot = residents.add(number + 1, 0, etag=1, body_bytes=10, group=0, tick=float(number))
        residents.place(slot, 0, Location(number), 64)
    return residents


def test_positions_are_different_and_every_one_is_as_likely():
    rng, seen = np.random.default_rng(1), np.zeros(2500)
    for _ in range(2000):
        drawn = draw_positions(rng, 2500, 1000)
        assert len(np.unique(drawn)) == 1000
        seen[drawn] += 1
    assert abs(seen / 2000 - 0.4).max() < 0.06  # The limit is five standard deviations.
    assert draw_positions(rng, 5, 9).tolist() == [0, 1, 2, 3, 4]


def test_the_worst_leave_one_after_another_and_what_changed_is_passed_over():
    residents = filled(100)
    drawn = EvictionPool(residents, 0)
    drawn.renew(residents.members[0].slots.copy(), np.arange(100.0), tick=100.0)
    assert drawn.worst(100.0) == 99
    assert drawn.worst(100.0) == 99  # The page was not evicted meanwhile, so it is still the worst.
    residents.displace(99)  # Page 99 leaves the tier.
    residents.remove(99)
    residents.use(98, 101.0)  # Page 98 is read again.
    reused = residents.add(777, 0, etag=1, body_bytes=10, group=0, tick=99.0)
    assert reused == 99
    residents.place(reused, 0, Location(777), 64)  # Slot 99 now has another page.
    assert drawn.worst(101.0) == 97


def test_a_ranking_serves_so_many_newcomers_and_not_for_ever():
    residents = filled(100)
    drawn = EvictionPool(residents, 0)
    drawn.renew(residents.members[0].slots.copy(), np.arange(100.0), tick=0.0)
    assert [drawn.worst(0.0) is None for _ in range(17)] == [False] * 16 + [True]
    drawn.renew(residents.members[0].slots.copy(), np.arange(100.0), tick=0.0)
    assert drawn.worst(2000.0) is None


def test_a_ranking_serves_four_times_as_many_newcomers_if_they_are_refused():
    residents = filled(100)
    drawn = EvictionPool(residents, 0)
    drawn.renew(residents.members[0].slots.copy(), np.arange(100.0), tick=0.0)
    served = 0
    while drawn.left(0.0) >= 4:
        assert drawn.worst_key(4) == 99.0
        assert drawn.take([99.0] * 4, [1] * 4) == [REFUSED] * 4
        drawn.note_refused(4)
        served += 4
    # The pool serves 16 pages for each ranking. Here 3 of the 16 are left, too few for a batch of 4.
    assert served == 4 * 13
    drawn.note_refused(0)
    assert drawn.left(0.0) == 3


def test_the_worst_page_whose_room_is_long_enough_is_taken_out():
    residents = filled(100)
    residents.location[:100] = np.arange(100) << 20 | np.where(np.arange(100) < 98, 10, 2)
    drawn = EvictionPool(residents, 0)
    drawn.renew(residents.members[0].slots.copy(), np.arange(100.0), tick=0.0)
    assert drawn.worst_key(3) == 99.0
    assert drawn.take([50.0, 50.0], [640, 100]) == [97, 99]
    residents.use(96, 101.0)  # Page 96 is read again.
    assert drawn.take([50.0, 94.0, 98.0], [640, 640, 640]) == [95, UNFIT, REFUSED]
    assert drawn.take([-np.inf], [641]) == [UNFIT]
    assert drawn.worst_key(13) == 98.0
    assert drawn.left(0.0) == 0


async def test_a_worst_page_in_slot_0_is_taken_from_the_ranking(make_bench, monkeypatch):
    bench = await make_bench(page_size=PAGE)
    placement, drawn = bench.cache.placement, []
    monkeypatch.setattr(EvictionPool, "renew", lambda *_args: drawn.append(1))
    monkeypatch.setattr(EvictionPool, "worst", lambda *_args: 0)
    assert placement._worst(0) == 0
    assert drawn == []


async def test_a_write_waits_for_erasures_only_when_something_was_dropped(make_bench):
    bench = await make_bench(disk_bytes=1 << 20)
    waits = []
    medium = bench.cache.media[1]

    async def write(work):
        waits.append(work)
        work()

    object.__setattr__(medium, "write", write)
    async with bench.engine.writing([ObjectRef("b", "never read")]):
        assert not waits
    bench.cache.transfers.released[1] += 1
    async with bench.engine.writing([ObjectRef("b", "k")]):
        assert len(waits) == 2
    async with bench.engine.writing([ObjectRef("b", "k")]):
        assert len(waits) == 2


async def test_a_reader_that_holds_a_view_for_long_keeps_its_bytes(make_bench):
    bench = await make_bench(ram_bytes=1 << 16, policy="lru")
    held = []
    for number in range(200):
        bench.origin.put("b", f"k{number}", bytes([number]) * PAGE)
        async with bench.engine.open(ReadRequest(ObjectRef("b", f"k{number}"))) as reading:
            views = [piece async for piece in reading.body(Span(0, PAGE))]
        if number % 20 == 0:
            held.append((number, views))
    await bench.settle()
    for number, views in held:
        assert b"".join(views) == bytes([number]) * PAGE
    held.clear()
    del views
