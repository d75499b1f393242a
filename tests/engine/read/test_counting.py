"""Announced orders are told of each demand read once, before its page is ranked."""

import pytest

from shadeproxy.core.conditions import Conditions
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import JobContext, ObjectRef
from shadeproxy.engine.base import ReadRequest
from shadeproxy.hints.order.upcoming import NothingAnnounced


class Told(NothingAnnounced):
    """Orders that keep what they are told."""

    active = True

    def __init__(self) -> None:
        self.reads: list[int] = []

    def note_read(self, _object_hash: int, offset: int, _job: JobContext | None, _now_s: float) -> None:
        self.reads.append(offset)


@pytest.mark.parametrize(
    ("conditions", "told"),
    [
        ({}, [100]),
        ({"if_match": "the etag"}, [100]),
        ({"if_match": '"another"'}, []),
        ({"if_none_match": '"another"'}, [100]),
        ({"if_none_match": "the etag"}, []),
    ],
)
@pytest.mark.parametrize("known", [False, True])
async def test_a_read_with_conditions_counts_when_they_let_it(make_bench, conditions, told, known):
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
