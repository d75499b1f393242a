"""Two disk tiers of speeds 1:4. The figure is the bytes a second that both deliver together, if pages are
dealt to the disks by speed. The reference is the figure if pages are dealt evenly.

The tiers are real segment stores, and each page is read from its record. A queue imitates a disk's speed: it
serves one read at a time, and ends no read before its bytes could have come. No page counts as hot.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from shadeproxy.core.ledger import Ledger
from shadeproxy.core.types import ObjectMeta, ObjectRef, Page, Source
from shadeproxy.engine.storage.disk_page import DiskPage
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.policy.registry import get_policy
from shadeproxy.telemetry.stats import Stats
from shadeproxy.tiers.store import SegmentStore
from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.rounds import measured
from shadeproxy_bench.suites import slow_disk
from shadeproxy_bench.suites.slow_medium import ColdStore, Device, at_once

SPEEDS = (20e6, 80e6)
_BODY_BYTES = 100_000
_OBJECTS = 600
_READERS = 64
_CAPACITY_BYTES = 2 * _OBJECTS * (_BODY_BYTES + 8192)


async def deliver(directory: Path, told: Sequence[float], *, seconds: float) -> float:
    """Return the bytes a second that ``_READERS`` readers of random pages get. ``told``: the disks' speeds as
    the proxy is told, by which it deals pages. Raises BenchError for a wrong byte.
    """
    ram = SegmentStore("ram", directory / "ram", 1 << 20)
    disks = [
        Medium(
            ColdStore(f"disks[{place}]", directory / f"disk{place}", _CAPACITY_BYTES),
            Source.DISK,
            write=at_once,
            load=Device(_BODY_BYTES / speed).load,
            read_speed=partial(_told, told[place]),
        )
        for place, speed in enumerate(SPEEDS)
    ]
    cache = PageCache(
        [Medium(ram, Source.RAM), *disks],
        policy=get_policy("default"),
        weights=HintRegistry(),
        stats=Stats(),
        ledger=Ledger(_CAPACITY_BYTES),
        rng=np.random.default_rng(0),
    )
    await asyncio.to_thread(cache.recover)
    try:
        for number in range(_OBJECTS):
            page, body = _page(number), memoryview(number.to_bytes(4, "big") * (_BODY_BYTES // 4))
            await cache.insert(page, ObjectMeta(page.etag, _BODY_BYTES, ()), body, 0.0, lambda: True)
        await cache.drain()
        return await _read(cache, seconds)
    finally:
        await asyncio.to_thread(cache.close)


def _told(bytes_per_s: float, _room_bytes: int) -> float:
    return bytes_per_s


def _page(number: int) -> Page:
    return Page(ObjectRef("bench", f"{number:06d}"), '"1"', 0)


async def _read(cache: PageCache, seconds: float) -> float:
    on_disk = [number for number in range(_OBJECTS) if cache.source(_slot(cache, number)) is Source.DISK]
    random, ends_s, delivered = np.random.default_rng(1), time.monotonic() + seconds, [0]

    async def reader() -> None:
        while time.monotonic() < ends_s:
            number = on_disk[int(random.integers(len(on_disk)))]
            page = await cache.view(_slot(cache, number))
            view = page.view if isinstance(page, DiskPage) else page
            if bytes(view[:4]) != number.to_bytes(4, "big"):
                raise BenchError(f"object {number} has wrong bytes")
            delivered[0] += len(view)

    began_s = time.monotonic()
    await asyncio.gather(*(reader() for _ in range(_READERS)))
    return delivered[0] / (time.monotonic() - began_s)


def _slot(cache: PageCache, number: int) -> int:
    slot = cache.find(_page(number))
    if slot is None:
        raise BenchError(f"object {number} is not resident")
    return slot


def compare(*, rounds: int, seconds: float) -> Measured:
    """Measure the share of the disks' speed that is delivered, in turn with pages dealt by speed and dealt
    evenly.
    """
    by_speed, evenly = list[float](), list[float]()
    for _ in range(rounds):
        for shares, told in ((evenly, (1.0, 1.0)), (by_speed, SPEEDS)):
            with TemporaryDirectory(dir="/dev/shm") as directory:
                shares.append(asyncio.run(deliver(Path(directory), told, seconds=seconds)) / sum(SPEEDS))
    return measured(by_speed, evenly)


def disks(scale: Scale) -> Iterator[Planned]:
    yield Planned(
        "two disks of speeds 1:4: share of the sum that is delivered, beside an even split",
        "of the sum",
        Target(0.95, of="ours"),
        "64 readers of random pages of 100 KB; a queue that serves one read at a time makes a disk's speed",
        partial(compare, rounds=scale.rounds, seconds=scale.pick(4, 2)),
        ratio_is="ours / reference",
    )
    objects, epochs = scale.pick(600, 300), scale.pick(4, 3)
    yield Planned(
        "a disk slower than the origin: wall of epochs, beside none",
        "s",
        Target(1.0, at_least=False),
        f"{objects} x 100 KB, {slow_disk.READERS} readers, epochs 2 to {epochs}; origin"
        f" {slow_disk.LATENCY_S * 1000:.0f} ms, disk {slow_disk.DISK_READS_PER_S:.0f} reads/s;"
        " 10 % in RAM, 60 % on it",
        partial(slow_disk.compare, rounds=scale.rounds, objects=objects, epochs=epochs),
        ratio_is="ours / reference",
    )
