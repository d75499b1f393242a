"""DelayedOrigin answers later than the origin behind it, and otherwise in the same way."""

from shadeproxy.core.types import ObjectRef, Span
from shadeproxy.origin.base import OriginRead, PassOn
from shadeproxy.origin.delayed import DelayedOrigin
from shadeproxy.origin.memory import MemoryOrigin
from tests.support.clock import ManualClock

REF = ObjectRef("b", "k")


async def test_every_call_waits_first():
    memory = MemoryOrigin()
    memory.put("b", "k", b"body")
    clock = ManualClock()
    origin = DelayedOrigin(memory, delay_s=0.5, clock=clock)
    start_s = clock.now_s()
    await origin.head(REF)
    async with origin.open(REF, span=Span(1, 3)) as reading:
        assert b"".join([chunk async for chunk in reading.chunks]) == b"od"
    await origin.list_objects("b", "")
    await origin.probe()
    assert clock.now_s() - start_s == 2.0


async def test_the_answer_is_handed_on_as_it_is(monkeypatch):
    memory = MemoryOrigin()
    memory.put("b", "k", b"body")
    origin = DelayedOrigin(memory, delay_s=0.5, clock=ManualClock())
    marks: list[OriginRead] = []
    real = MemoryOrigin.open

    def marked(self, ref, **options):
        opened = real(self, ref, **options)

        class Marked:
            async def __aenter__(self):
                reading = await opened.__aenter__()
                reading.doubtful, reading.pass_on = True, PassOn()
                marks.append(reading)
                return reading

            async def __aexit__(self, *error):
                return await opened.__aexit__(*error)

        return Marked()

    monkeypatch.setattr(MemoryOrigin, "open", marked)
    async with origin.open(REF) as reading:
        assert reading is marks[0]
