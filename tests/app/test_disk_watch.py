"""The log says when a disk hangs, and when it answers again, and nothing in between."""

import asyncio
from types import SimpleNamespace

from shadeproxy.app.disk_watch import watch_disks
from shadeproxy.core.types import Source
from shadeproxy.engine.storage.medium import Medium
from tests.support.clock import ManualClock


async def test_a_disk_that_hangs_has_one_line_and_another_when_it_answers(capfd):
    clock, enough = ManualClock(), asyncio.Event()
    busy_s = [0.0, 9.9, 10.5, 11.5, 12.5, 0.1, 0.0, 30.0]
    seen = iter(busy_s)

    async def sleep(seconds: float) -> None:
        clock.advance(seconds)
        if seen.__length_hint__() == 0:
            enough.set()
            await asyncio.get_running_loop().create_future()

    clock.sleep = sleep
    media = [
        Medium(SimpleNamespace(name="ram"), Source.RAM),
        Medium(SimpleNamespace(name="disk"), Source.DISK, busy_s=lambda: next(seen)),
    ]
    watch = asyncio.create_task(watch_disks(media, clock))
    async with asyncio.timeout(10):
        await enough.wait()
    watch.cancel()
    lines = [line for line in "".join(capfd.readouterr()).splitlines() if "disk" in line]
    assert ["disk hangs" in line for line in lines] == [True, False, True]
    assert "for_s=10.5" in lines[0]
    assert "tier=disk" in lines[0]
    assert "disk answers again" in lines[1]
    assert "after_s=13.5" in lines[1]
