"""The configured tiers. The memory of read histories is part of their capacity."""

import asyncio
import threading

import pytest

from shadeproxy.app.media import Media, ghost_share
from shadeproxy.config import Settings
from shadeproxy.engine.placement.histories import ghosts_for
from shadeproxy.engine.storage import medium
from shadeproxy.hints.reuse.ghosts import BYTES

GIB = 1 << 30


def settings(tmp_path, *values: str) -> Settings:
    paths = [f"cache.ram.path={tmp_path}/ram", f"cache.disk.path={tmp_path}/disk"]
    return Settings.load(None, [*paths, *values])


def capacities(settings: Settings) -> list[int]:
    media = Media(settings)
    media.close()
    return [medium.tier.capacity_bytes for medium in media.media]


def test_tiers_and_ghosts_together_take_the_capacity(tmp_path):
    found = settings(tmp_path, "cache.ram.capacity=1 GiB", "cache.disk.capacity=8 GiB")
    ram, disk = capacities(found)
    ghost_bytes = ghosts_for(ram + disk) * BYTES
    assert ram + disk + ghost_bytes == pytest.approx(9 * GIB, rel=1e-4)
    assert ram + disk + ghost_bytes <= 9 * GIB
    assert ram == pytest.approx(0.9942 * GIB, rel=1e-4)


@pytest.mark.parametrize(
    ("values", "share"),
    [
        (["cache.ram.capacity=1 MiB", "cache.disk.capacity=0"], 0.0),
        (["cache.ram.capacity=1 GiB", "cache.disk.capacity=0"], 0.0058),
        (["cache.ram.capacity=1 GiB", "cache.disk.capacity=20 TiB"], 0.00004),
        (["cache.ram.capacity=1 GiB", "policy.name=lru"], 0.0),
    ],
)
def test_ghosts_take_less_than_a_hundredth(tmp_path, values, share):
    assert ghost_share(settings(tmp_path, *values)) == pytest.approx(share, abs=0.0001)


async def test_a_disk_whose_writes_or_reads_do_not_end_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(medium, "HANGS_S", 0.05)
    small = settings(tmp_path, "cache.ram.capacity=1 MiB", "cache.disk.capacity=8 MiB")
    media = await asyncio.to_thread(Media, small)
    ram, disk = media.media
    for run in (disk.write, disk.load):
        end = threading.Event()
        under_way = asyncio.ensure_future(run(lambda end=end: end.wait(10)))
        async with asyncio.timeout(10):
            while not disk.hangs:
                await asyncio.sleep(0.01)
        end.set()
        await under_way
        assert not disk.hangs
    assert not ram.hangs
    await asyncio.to_thread(media.close)
