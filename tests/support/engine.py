"""An engine over an in-memory origin and real segment stores, and the parts of it that tests inspect."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shadeproxy.core.identity import object_hash
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.off_loop import OffLoop, at_once
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import ObjectRef, Source, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.freshness.namespaces import ONLY_OWN, Upstreams
from shadeproxy.engine.freshness.verdicts import Verdicts
from shadeproxy.engine.index.columns import Share
from shadeproxy.engine.ownership import Ownership
from shadeproxy.engine.page_observer import PageObserver
from shadeproxy.engine.placement.pins import PinnedPrefix, Pins
from shadeproxy.engine.rules import Rule, Rules
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.hints.order.upcoming import NextUses
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.origin.base import Origin
from shadeproxy.origin.memory import Barrier, MemoryOrigin
from shadeproxy.policy.registry import get_policy
from shadeproxy.telemetry.recording import Recording
from shadeproxy.telemetry.stats import Stats
from shadeproxy.tiers.medium import SYSTEM, Calls
from shadeproxy.tiers.store import SegmentStore
from tests.support.clock import ManualClock

PAGE = 4096


async def slowly(work: Callable[[], None]) -> None:
    """Do I/O with a turn of the event loop before and after it, in which other tasks may run, as with a
    thread.
    """
    await asyncio.sleep(0)
    work()
    await asyncio.sleep(0)


class HeldIO:
    """Does the I/O of a disk only when ``go`` is set. Sets ``waiting`` when some I/O waits for that."""

    def __init__(self) -> None:
        self.waiting, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, work: Callable[[], None]) -> None:
        self.waiting.set()
        await self.go.wait()
        work()


def _speed(bytes_per_s: float, _room_bytes: int) -> float:
    return bytes_per_s


class Weights:
    """Weights of pages, which tests set by object hash, or by object hash and page number.

    As ``NextUses``, it takes the weights for the rates at which jobs draw the pages.
    """

    def __init__(self) -> None:
        self.by_hash: dict[int, float] = {}
        self.by_page: dict[tuple[int, int], float] = {}

    def weights_of(self, object_hashes: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        pages = zip(object_hashes.tolist(), numbers.tolist(), strict=True)
        found = [self.by_page.get(page, self.by_hash.get(page[0], np.nan)) for page in pages]
        return np.array(found, dtype=np.float64)

    def expect(
        self, object_hashes: np.ndarray, numbers: np.ndarray, _tick: float
    ) -> tuple[np.ndarray, np.ndarray]:
        drawn = max(len(self.by_hash) + len(self.by_page), 1)
        weights = self.weights_of(object_hashes, numbers)
        return np.full(len(weights), np.inf), np.nan_to_num(weights) / drawn

    def announces(self, object_hashes: np.ndarray, _numbers: np.ndarray) -> np.ndarray:
        return np.zeros(len(object_hashes), dtype=np.bool_)


@dataclass
class Bench:
    """One engine, and the parts of it that a test inspects."""

    engine: Engine
    cache: PageCache
    origin: Any
    stats: Stats
    clock: ManualClock
    ledger: Ledger
    weights: Weights
    rules: Rules

    def counted_stats(self) -> Stats:
        """Return the statistics after counting all reads so far."""
        self.engine.access_log.flush()
        return self.stats

    async def get(
        self, key: str, *, bucket: str = "b", namespace: str = "", **kwargs: Any
    ) -> tuple[bytes, Source]:
        """Read an object or a range of it. Return the bytes, and their source."""
        request = ReadRequest(ObjectRef(bucket, key, namespace), **kwargs)
        async with self.engine.open(request) as reading:
            spec = request.range or RangeSpec(0, None)
            size = reading.meta.size
            span = spec.resolve(size) if size else Span(0, 0)
            return b"".join([bytes(piece) async for piece in reading.body(span)]), reading.source

    async def held(self, key: str) -> tuple[asyncio.Task[tuple[bytes, Source]], Barrier]:
        """Begin to read an object, and wait until its flight stops at a gate in the middle of the body.

        Return the task that reads, and the gate.
        """
        self.origin.gate = gate = Barrier()
        reader = asyncio.create_task(self.get(key))
        await gate.reached.wait()
        return reader, gate

    async def put_many_that_move_to_disk(self) -> HeldIO:
        """Read six objects, more than fit into RAM, so that pages must move to the disk.

        Return the I/O of the disk, at which the moves wait.
        """
        held, medium = HeldIO(), self.cache.media[1]
        self.cache.media[1] = replace(medium, write=held)
        for n in range(6):
            self.origin.put("b", f"k{n}", b"old%d" % n * 700)
            await self.get(f"k{n}")
        await held.waiting.wait()
        self.cache.media[1] = medium
        return held

    async def pin(self, prefix: str, bucket: str = "b") -> None:
        """Pin a prefix as a control call would."""
        self.cache.pins.add(PinnedPrefix(bucket, prefix, 0.0))
        await self.cache.renew_pins()

    async def unpin(self, prefix: str, bucket: str = "b") -> None:
        assert self.cache.pins.remove(bucket, prefix)
        await self.cache.renew_pins()

    def cached(self, keys: Iterable[str]) -> int:
        """Return how many of these objects of bucket b are resident."""
        refs = {ObjectRef("b", key) for key in keys}
        return sum(self.cache.residents.first_page(object_hash(ref)) is not None for ref in refs)

    async def settle(self) -> None:
        """Wait until each page that was read is stored, or will not be stored."""
        await self.engine._filling.flights.drain()
        await self.cache.drain()


MakeBench = Callable[..., Awaitable[Bench]]


@asynccontextmanager
async def benches(folder: Path) -> AsyncIterator[MakeBench]:
    """Yield a function that makes benches with tiers under ``folder``. They are closed at the end.

    If a task has failed by then, the test fails.
    """
    made: list[Bench] = []
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))

    async def make(
        *,
        origin: Origin | None = None,
        ram_bytes: int = 1 << 20,
        disk_bytes: int = 0,
        more_disks: dict[str, tuple[int, float]] | None = None,
        calls: dict[str, Calls] | None = None,
        policy: str = "default",
        rules: tuple[Rule, ...] = (),
        page_size: int = PAGE,
        budget_bytes: int = 1 << 20,
        verdicts: bool = False,
        name: str = "one",
        segment_bytes: int = 1 << 20,
        share: Share | None = None,
        next_uses: NextUses | None = None,
        hints: HintRegistry | None = None,
        recording: Recording | None = None,
        pinned: tuple[str, ...] = (),
        recover: bool = True,
        upstreams: Upstreams = ONLY_OWN,
        observer: PageObserver | None = None,
        clock: ManualClock | None = None,
        ownership: Ownership | None = None,
        past: Origin | None = None,
        off_loop: OffLoop = at_once,
    ) -> Bench:
        rules_in_force = Rules(rules)
        pins = Pins(rules_in_force)
        for prefix in pinned:
            pins.add(PinnedPrefix("b", prefix, 0.0))
        stats, clock, ledger, weights = Stats(), clock or ManualClock(), Ledger(budget_bytes), Weights()
        # Maps the name of each further disk to its capacity and its read speed.
        more = more_disks or {}
        sizes = [("ram", ram_bytes, Source.RAM), ("disk", disk_bytes, Source.DISK)]
        sizes += [(tier, capacity, Source.DISK) for tier, (capacity, _) in more.items()]
        media = [
            Medium(
                SegmentStore(
                    tier,
                    folder / name / tier,
                    size,
                    segment_bytes=segment_bytes,
                    calls=(calls or {}).get(tier, SYSTEM),
                ),
                source,
                write=slowly if source is Source.DISK else None,
                load=slowly if source is Source.DISK else None,
                read_speed=partial(_speed, more.get(tier, (0, 1.0))[1]),
            )
            for tier, size, source in sizes
            if size
        ]
        cache = PageCache(
            media,
            policy=get_policy(policy),
            weights=hints or weights,
            next_uses=(next_uses or weights) if hints is None else hints.expectations,
            pins=pins,
            stats=stats,
            ledger=ledger,
            rng=np.random.default_rng(7),
            share=share,
            observer=observer,
            off_loop=off_loop,
        )
        if recover:
            await asyncio.to_thread(cache.recover)
            await cache.renew_pins()
        else:
            await asyncio.to_thread(cache.open)
        origin = origin or MemoryOrigin(clock=clock)
        engine = Engine(
            origin,
            cache,
            rules=rules_in_force,
            ledger=ledger,
            stats=stats,
            clock=clock,
            page_size=page_size,
            verdicts=Verdicts(60.0) if verdicts else None,
            orders=None if hints is None else hints.expectations,
            recording=recording,
            upstreams=upstreams,
            ownership=ownership,
            past=past,
        )
        bench = Bench(engine, cache, origin, stats, clock, ledger, weights, rules_in_force)
        made.append(bench)
        return bench

    yield make
    for bench in made:
        await bench.engine.aclose()
        await asyncio.to_thread(bench.cache.close)
    gc.collect()  # A collected task reports its exception if no code took it.
    assert not failures, failures
