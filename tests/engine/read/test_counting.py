"""Order trackers learn of each demand read once, and before placement ranks the page."""

import numpy as np
import pytest

from shadeproxy.core.conditions import Conditions
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import JobContext, ObjectRef, Source, Span
from shadeproxy.engine.access_records import USE, Kind
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.rules import Freshness, Rule
from shadeproxy.hints.order.upcoming import NothingAnnounced
from tests.support.engine import PAGE


class Told(NothingAnnounced):
    """A stand-in for the order trackers that records the reads it learns of. ``explains`` is the answer to
    each read.
    """

    active = True

    def __init__(self, *, explains: bool = False) -> None:
        self.reads: list[int] = []
        self.explains = explains

    def note_read(
        self, _object_hash: int, offset: int, _job: JobContext | None, _now_s: float, _tick: float
    ) -> bool:
        self.reads.append(offset)
        return self.explains


@pytest.mark.parametrize(
    ("known", "conditions", "told"),
    [
        (False, {}, [100]),
        (False, {"if_match": "the etag"}, [100]),
        # The orders say how much to request, so they learn of this read before its version is known.
        (False, {"if_match": '"another"'}, [100]),
        (False, {"if_none_match": '"another"'}, [100]),
        (False, {"if_none_match": "the etag"}, []),
        (True, {}, [100]),
        (True, {"if_match": "the etag"}, [100]),
        (True, {"if_match": '"another"'}, []),
        (True, {"if_none_match": '"another"'}, [100]),
        (True, {"if_none_match": "the etag"}, []),
    ],
)
async def test_a_read_with_conditions_counts_when_they_let_it(make_bench, known, conditions, told):
    bench = await make_bench()
    meta = bench.origin.put("b", "k", bytes(1000))
    if known:
        bench.engine._versions.learn(ObjectRef("b", "k"), meta)
    orders = bench.engine._counting._orders = Told()
    fields = {name: meta.etag if value == "the etag" else value for name, value in conditions.items()}
    request = ReadRequest(ObjectRef("b", "k"), range=RangeSpec(100, 199), conditions=Conditions(**fields))
    async with bench.engine.open(request):
        pass
    await bench.settle()
    assert orders.reads == told


@pytest.mark.parametrize("known", [False, True])
async def test_a_suffix_is_told_from_where_it_begins(make_bench, known):
    bench = await make_bench()
    meta = bench.origin.put("b", "k", bytes(1000))
    if known:
        bench.engine._versions.learn(ObjectRef("b", "k"), meta)
    orders = bench.engine._counting._orders = Told()
    async with bench.engine.open(ReadRequest(ObjectRef("b", "k"), range=RangeSpec(None, 100))):
        pass
    await bench.settle()
    assert orders.reads == [900]


@pytest.fixture
def placement_notes(monkeypatch):
    """Record the calls by which placement learns of reads. Each call says whether an order explains
    the read.
    """

    def watch(bench):
        placement, noted = bench.cache.placement, []
        note_miss, note_use, note_uses = placement.note_miss, placement.note_use, placement.note_uses

        def miss(*page, explained):
            noted.append(("note_miss", explained))
            note_miss(*page, explained=explained)

        def use(slot, *, explained):
            noted.append(("note_use", explained))
            note_use(slot, explained=explained)

        def uses(slots, explained):
            noted.extend(("note_uses", one) for one in explained.tolist())
            note_uses(slots, explained)

        for name, note in (("note_miss", miss), ("note_use", use), ("note_uses", uses)):
            monkeypatch.setattr(placement, name, note)
        return noted

    return watch


@pytest.mark.parametrize("explains", [False, True])
async def test_placement_gets_what_an_order_explains(make_bench, placement_notes, explains):
    """Placement learns whether an order explains a read. This holds for misses, pages read ahead, resident
    pages, and hits without a wait.
    """
    bench = await make_bench(rules=(Rule(freshness=Freshness.IMMUTABLE),))
    bench.origin.put("b", "k", bytes(3 * PAGE))
    bench.engine._counting._orders = Told(explains=explains)
    noted = placement_notes(bench)
    request = ReadRequest(ObjectRef("b", "k"))
    await bench.get("k")
    assert noted == [("note_miss", explains)] * 3
    await bench.settle()
    noted.clear()
    await bench.get("k")
    assert noted == [("note_use", explains)] * 3
    noted.clear()
    meta = bench.engine.usable_now(request)
    assert bench.engine.hit(request, meta, Span(PAGE, 2 * PAGE)) is not None
    assert bench.engine.locate(request, meta, Span(0, PAGE)) is not None
    assert bench.engine.hit(request, meta, Span(0, 3 * PAGE)) is None
    bench.engine.access_log.flush()
    assert noted == [("note_uses", explains)] * 2


@pytest.mark.parametrize("explains", [False, True])
async def test_a_read_that_begins_again_is_one_read_of_its_page(make_bench, placement_notes, explains):
    """A read that begins again counts as one read of its page. With two reads in quick succession, the
    learner would expect the page to be read again soon.
    """
    bench = await make_bench(rules=(Rule(freshness=Freshness.IMMUTABLE),))
    bench.engine._versions.learn(ObjectRef("b", "k"), bench.origin.put("b", "k", b"old"))
    bench.origin.put("b", "k", b"newer")
    orders = bench.engine._counting._orders = Told(explains=explains)
    noted = placement_notes(bench)
    assert (await bench.get("k"))[0] == b"newer"
    assert orders.reads == [0]
    assert noted[0] == ("note_miss", explains)
    assert set(noted[1:]) == {("note_miss", True)}


class Alternating(NothingAnnounced):
    """A stand-in for the order trackers by which every other read is explained."""

    active = True

    def note_reads(self, _hashes, _offsets, jobs, _now_s, _tick):
        return np.arange(len(jobs)) % 2 == 0


async def test_further_pages_of_a_read_are_explained_as_the_read_is(make_bench, monkeypatch):
    """The further pages of a read are explained if the read itself is. A row for a further page has no kind
    if the page leaves by sendfile. In a row from a worker, further pages have page and kind.
    """
    bench = await make_bench()
    counting = bench.engine._counting
    monkeypatch.setattr(counting, "_orders", Alternating())
    kinds = [Kind("b", Source.RAM, None), Kind("b", Source.RAM, JobContext("j"))]
    rows = [
        (0, 0, 7, 0, 10, 1, 1), (1, 0, 0, 0, 0, 0, 0), (2, 0, 7, 0, 0, 1, 0),
        (0, 0, 8, 0, 10, 0, 1), (1, 0, 0, 0, 0, 0, 0), (2, 0, 8, 0, 0, 1, 0),
        (3, 0, 0, 0, 0, 1, 0), (4, 0, 0, 0, 0, 2, 0),
    ]  # fmt: skip
    explained = counting.count_uses(np.array(rows, dtype=USE), kinds, 8.0)
    assert explained.tolist() == [True, True, True, False, False, False, True, False]
    assert counting.count_uses(np.array(rows[1:2], dtype=USE), kinds, 9.0).tolist() == [False]
