"""The calls of the control listener about cached objects, as the engine answers them."""

import asyncio
from types import SimpleNamespace

from shadeproxy.api.control.bodies import PageSummary
from shadeproxy.app.admin import EngineAdmin
from shadeproxy.core.ranges import part_number
from shadeproxy.core.types import ObjectMeta, ObjectRef
from shadeproxy.engine.index.metadata import KnownMetadata
from shadeproxy.engine.placement.pins import Prefix
from shadeproxy.engine.rules import Age
from tests.support.clock import ManualClock


class Cached:
    """A stand-in for the engine. ``count`` objects of one page are cached, and ``gone`` has just left."""

    def __init__(self, count: int, gone: str = "") -> None:
        self.refs = [ObjectRef("b", f"{number:04d}") for number in range(count)]
        self.gone = gone
        self.inspected = 0
        self.cache = SimpleNamespace(listing=self)

    async def under(self, *_place, limit, **_after):
        return self.refs[:limit], max(0, len(self.refs) - limit)

    async def inspect(self, ref):
        self.inspected += 1
        pages = [] if ref.key == self.gone else [(0, "ram", 10, False)]
        return KnownMetadata(ObjectMeta('"e"', 10), 12.5), Age.FRESH, pages


async def test_a_stored_part_is_shown_with_the_number_of_its_page_and_its_first_byte():
    engine, number = Cached(1), part_number(9_000_000)
    engine.page_size = 4 << 20

    async def inspect(_ref):
        pages = [(0, "ram", 4 << 20, True), (number, "disk", 100, False)]
        return KnownMetadata(ObjectMeta('"e"', 10 << 20), 12.5), Age.FRESH, pages

    engine.inspect = inspect
    admin = EngineAdmin(engine, None, ManualClock(), fetches=lambda: 1)
    shown = await admin.inspect(ObjectRef("b", "0000"))
    assert shown.pages == (
        PageSummary(0, "ram", 4 << 20, pinned=True),
        PageSummary(2, "disk", 100, pinned=False, start=9_000_000),
    )


async def test_a_long_list_of_cached_objects_does_not_hold_up_other_tasks():
    engine, most = Cached(1000, gone="0500"), 0

    async def watch():
        nonlocal most
        before = 0
        while True:
            most, before = max(most, engine.inspected - before), engine.inspected
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    admin = EngineAdmin(engine, SimpleNamespace(), ManualClock(), fetches=lambda: 1)
    listed = await admin.list_cached(Prefix("b", ""), start_after="", limit=1000)
    watching.cancel()
    assert [ref.key for ref, _ in listed.objects] == [ref.key for ref in engine.refs if ref.key != "0500"]
    assert 0 < most <= 32
