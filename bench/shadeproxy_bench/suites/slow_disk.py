"""A disk tier that is slower than the origin: wall time of epochs with the disk, compared with the same proxy
without a disk.

The engine is the real one, over an origin in memory that answers after a delay. A queue that serves one read
at a time imitates the disk's rate, and no page counts as hot. The disk is also measured without the rule of
ADR 54, by which a disk that is slower than the origin leaves reads to the origin. An engine does not apply
this rule if it never learns how fast its origin is.
"""

import asyncio
import time
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from shadeproxy.core.clock import SystemClock
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.types import ObjectRef, Source, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.rules import Rules
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.origin.counted import CountedOrigin
from shadeproxy.origin.delayed import DelayedOrigin
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy.policy.registry import get_policy
from shadeproxy.telemetry.stats import Stats
from shadeproxy.tiers.store import SegmentStore
from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.results import Measured
from shadeproxy_bench.rounds import measured
from shadeproxy_bench.suites.slow_medium import ColdStore, Device, at_once

LATENCY_S = 0.03
DISK_READS_PER_S = 150.0
READERS = 16
_BODY_BYTES = 100_000
_PLACE_BYTES = _BODY_BYTES + 8192
_IN_RAM, _ON_DISK = 0.1, 0.6


class _Disk(Enum):
    NONE = "no disk"
    RULED = "with the rule"
    ALWAYS_READ = "without the rule"


async def _train(directory: Path, *, objects: int, epochs: int, disk: _Disk) -> tuple[float, float]:
    """Return the wall time of all epochs but the first, and the share of all reads that the disk answered.
    Raises BenchError for a wrong byte.
    """
    memory, clock, stats = MemoryOrigin(), SystemClock(), Stats()
    bodies = [number.to_bytes(4, "big") * (_BODY_BYTES // 4) for number in range(objects)]
    for number, body in enumerate(bodies):
        memory.put("bench", f"{number:06d}", body)
    data_bytes = objects * _PLACE_BYTES
    media = [Medium(SegmentStore("ram", directory / "ram", round(_IN_RAM * data_bytes)), Source.RAM)]
    if disk is not _Disk.NONE:
        store = ColdStore("disk", directory / "disk", round(_ON_DISK * data_bytes))
        media.append(Medium(store, Source.DISK, write=at_once, load=Device(1 / DISK_READS_PER_S).load))
    ledger = Ledger(256 << 20)
    cache = PageCache(
        media,
        policy=get_policy("default"),
        weights=HintRegistry(),
        stats=stats,
        ledger=ledger,
        rng=np.random.default_rng(0),
    )
    await asyncio.to_thread(cache.recover)
    delayed = DelayedOrigin(memory, delay_s=LATENCY_S, clock=clock)
    # The engine learns the origin's speed only from a counted origin.
    origin = delayed if disk is _Disk.ALWAYS_READ else CountedOrigin(delayed, stats=stats, clock=clock)
    engine = Engine(
        origin, cache, rules=Rules(()), ledger=ledger, stats=stats, clock=clock, page_size=4 << 20
    )
    try:
        await _epoch(engine, bodies, 0)
        began_s = time.monotonic()
        for epoch in range(1, epochs):
            await _epoch(engine, bodies, epoch)
        wall_s = time.monotonic() - began_s
        engine.access_log.flush()
        return wall_s, stats.totals().hits_disk / (objects * epochs)
    finally:
        await engine.aclose()
        await asyncio.to_thread(cache.close)


async def _epoch(engine: Engine, bodies: list[bytes], epoch: int) -> None:
    order = iter(np.random.default_rng(epoch).permutation(len(bodies)).tolist())

    async def reader() -> None:
        for number in order:
            async with engine.open(ReadRequest(ObjectRef("bench", f"{number:06d}"))) as reading:
                found = b"".join([bytes(piece) async for piece in reading.body(Span(0, _BODY_BYTES))])
            if found != bodies[number]:
                raise BenchError(f"object {number} has wrong bytes")

    await asyncio.gather(*(reader() for _ in range(READERS)))


def compare(*, rounds: int, objects: int, epochs: int) -> Measured:
    """Measure the wall time of epochs in turn: without a disk, with the slow disk, and with the slow disk but
    without the rule.
    """
    walls: dict[_Disk, list[float]] = {disk: [] for disk in _Disk}
    shares: dict[_Disk, list[float]] = {disk: [] for disk in _Disk}
    for _ in range(rounds):
        for disk in _Disk:
            with TemporaryDirectory(dir="/dev/shm") as directory:
                training = _train(Path(directory), objects=objects, epochs=epochs, disk=disk)
                wall_s, share = asyncio.run(training)
            walls[disk].append(wall_s)
            shares[disk].append(share)
    none, ruled, always = walls[_Disk.NONE], walls[_Disk.RULED], walls[_Disk.ALWAYS_READ]
    slower = np.median(always) / np.median(none)
    note = (
        f"the disk answered {np.median(shares[_Disk.RULED]):.0%} of the reads; without the rule it answers"
        f" {np.median(shares[_Disk.ALWAYS_READ]):.0%}, and epochs take {slower:.2f}x"
    )
    return measured(ruled, none, note=note)
