"""Whole epochs over the real engine in virtual time. Bytes and times with prefetching are compared with those
without it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Unpack

import numpy as np
import pytest

from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.types import JobContext, ObjectRef, Span
from shadeproxy.engine.base import ReadRequest
from shadeproxy.hints.jobs import Job
from shadeproxy.origin.base import OpenOptions, OriginRead
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy.prefetch.warm import Warm
from shadeproxy_bench.studies.prefetch.model import (
    BUCKET,
    EVICTION,
    NOTHING,
    PAGE_BYTES,
    PREFETCHING,
    Setting,
    ShapedOrigin,
    VirtualProxy,
    announce,
    read_epoch,
    register,
    train,
)
from shadeproxy_bench.studies.prefetch.virtual import VirtualClock, VirtualLoop, run

JOB = JobContext("train")


def test_prefetching_costs_hardly_any_bytes_and_hides_the_latency():
    setting = Setting("fast", 512, 8000, 128.0, 0.05, batch=8, epochs=3)
    ours, alone = train(setting, PREFETCHING), train(setting, EVICTION)
    assert ours.origin_bytes <= 1.03 * alone.origin_bytes
    assert ours.stall_s <= 0.02 * ours.wall_s


def test_a_loop_whose_workers_are_far_apart_hardly_loses_by_prefetching():
    """A loop whose workers are far apart loses almost nothing by prefetching. Eight workers have half of the
    epoch under way. So the job passes announced samples before it reads them, and their pages are evicted
    unread. The cache is small, and the link is slow.
    """
    setting = Setting("far apart", 512, 8000, 512.0, 0.02, 1e6, 0.05, batch=16, epochs=2)
    ours, plain = train(setting, PREFETCHING), train(setting, NOTHING)
    assert ours.first_s + ours.wall_s <= 1.04 * (plain.first_s + plain.wall_s)


class Beside:
    """A client that reads one object after another in virtual time, over a full link, beside other work
    of the proxy. ``waits_s``: the time of each read.
    """

    def __init__(self, folder: Path, *, size: int, bytes_per_s: float, prefetching: bool = False) -> None:
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        self.keys = [f"k{number:03d}" for number in range(400)]
        origin = ShapedOrigin(0.02, bytes_per_s)
        for key in self.keys:
            origin.put(BUCKET, f"work/{key}", bytes(size))
            origin.put(BUCKET, f"other/{key}", bytes(size))
        folder.mkdir()
        room_bytes = 500 * size
        self.proxy = VirtualProxy(origin, folder, self.clock, room_bytes=room_bytes, prefetching=prefetching)
        self.waits_s: list[float] = []

    def run(self, work: Coroutine[Any, Any, None], *, pause_s: float = 0.1) -> float:
        """Read until ``work`` has ended, with pauses of ``pause_s`` between two reads. Return the seconds
        that the work took.
        """
        try:
            return run(self._beside(work, pause_s), self.loop)
        finally:
            self.proxy.cache.close()

    async def _beside(self, work: Coroutine[Any, Any, None], pause_s: float) -> float:
        began_s = self.loop.time()
        other = asyncio.create_task(self._read(pause_s))
        await work
        took_s = self.loop.time() - began_s
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        await self.proxy.aclose()
        return took_s

    async def _read(self, pause_s: float) -> None:
        for key in self.keys:
            began_s = self.loop.time()
            await self.proxy.get(f"other/{key}", None)
            self.waits_s.append(self.loop.time() - began_s)
            await asyncio.sleep(pause_s)

    async def train(self, *, announced: bool) -> None:
        """Read what is to be warmed, once, in the order that the job ``train`` announces."""
        keys = [f"work/{key}" for key in self.keys]
        order = np.random.default_rng(0).permutation(len(keys))
        if announced:
            register(self.proxy.hints, keys, Job(JOB.job, dataset="data"), self.clock.monotonic_s())
            announce(self.proxy.hints, JOB.job, 0, order, self.clock.monotonic_s())
        self.proxy.begin()
        reads = [keys[one] for one in order.tolist()]
        await read_epoch(self.proxy, JOB, reads, lambda _: None, workers=4, batch=16, rate_per_s=1e4)

    @property
    def wait_s(self) -> float:
        """The median time of the later reads of the client."""
        return median(self.waits_s[len(self.waits_s) // 3 :])

    async def warm(self) -> None:
        """Warm what an epoch would read."""
        engine = self.proxy.engine
        listed = {"bucket": BUCKET, "prefix": "work/", "dry_run": False}
        asked = {"clock": self.clock, "fetches": lambda: 112, **listed}
        await Warm(engine.prefetch_port, engine.list_objects, **asked).run()


LINK = {"size": 100_000, "bytes_per_s": 5e6}


def test_a_warm_over_a_full_link_leaves_room_for_clients(tmp_path):
    """A client waits little longer beside a warm than it would beside four other readers. The warm keeps the
    link full.
    """
    ours = Beside(tmp_path / "ours", **LINK)
    took_s = ours.run(ours.warm())
    assert ours.wait_s <= 0.3
    assert took_s <= 1.05 * (400 + len(ours.waits_s) + 1) * LINK["size"] / LINK["bytes_per_s"]


@pytest.mark.parametrize(("pause_s", "most"), [(0.1, 2.0), (1.0, 2.5)])
def test_prefetching_over_a_full_link_leaves_room_for_clients(tmp_path, pause_s, most):
    """A client waits at most ``most`` times as long beside a job that announces its order as beside one that
    does not. The link stays full: the job's epoch takes as long as the link needs for what both read.
    """
    link = {"size": 200_000, "bytes_per_s": 10e6}
    ours, plain = Beside(tmp_path / "ours", prefetching=True, **link), Beside(tmp_path / "plain", **link)
    plain.run(plain.train(announced=False), pause_s=pause_s)
    took_s = ours.run(ours.train(announced=True), pause_s=pause_s)
    assert ours.wait_s <= most * plain.wait_s
    assert took_s <= 1.02 * (400 + len(ours.waits_s) + 1) * link["size"] / link["bytes_per_s"]


class Columns:
    """Four clients that read two short parts of each page of their objects, over one link. ``loop``,
    ``origin``: virtual time, and the origin of its link.
    """

    LATENCY_S, BYTES_PER_S, PART, PAGES = 0.02, 60e6, 50_000, 16

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.origin = ShapedOrigin(self.LATENCY_S, self.BYTES_PER_S)
        for number in range(4):
            self.origin.put(BUCKET, f"k{number}", bytes(self.PAGES * PAGE_BYTES))

    async def epoch(self, get: Callable[[str, RangeSpec], Awaitable[None]]) -> float:
        """Read all parts by ``get``. Return the seconds that this took."""
        began_s = self.loop.time()
        await asyncio.gather(*(self._object(get, f"k{number}") for number in range(4)))
        return self.loop.time() - began_s

    async def _object(self, get: Callable[[str, RangeSpec], Awaitable[None]], key: str) -> None:
        for start in range(100_000, self.PAGES * PAGE_BYTES, PAGE_BYTES // 2):
            await get(key, RangeSpec(start, start + self.PART - 1))

    async def direct(self, key: str, part: RangeSpec) -> None:
        """Read a part from the origin."""
        async with self.origin.open(ObjectRef(BUCKET, key), span=Span(part.first, part.last + 1)):
            pass


def test_readers_of_columns_are_not_slower_than_without_the_proxy_and_get_hits_in_the_end(tmp_path):
    """A reader of columns wants a tenth of each page. Its first epoch takes as long as without the proxy, and
    so do later ones while the rest of the objects comes in the background. When it has come, all reads hit.
    """
    columns = Columns()
    proxy = VirtualProxy(
        columns.origin, tmp_path, VirtualClock(columns.loop), room_bytes=128 << 20, whole_bytes=1 << 30
    )

    async def epochs() -> tuple[float, list[float], int, float]:
        direct_s = await columns.epoch(columns.direct)
        columns.origin.bytes = 0
        proxy.begin()
        for number in range(4):
            await proxy.engine.stat(ReadRequest(ObjectRef(BUCKET, f"k{number}")))
        took_s = [await columns.epoch(lambda key, part: proxy.get(key, None, part)) for _ in range(8)]
        moved = columns.origin.bytes
        await asyncio.sleep(10.0)
        last_s = await columns.epoch(lambda key, part: proxy.get(key, None, part))
        await proxy.aclose()
        return direct_s, took_s, moved, last_s

    direct_s, took_s, moved, last_s = run(epochs(), columns.loop)
    proxy.cache.close()
    assert took_s[0] <= 1.05 * direct_s
    assert max(took_s) <= 1.05 * direct_s
    asked = 8 * 4 * 2 * Columns.PAGES * Columns.PART
    assert moved <= asked + 4 * Columns.PAGES * PAGE_BYTES
    assert last_s <= 0.05 * direct_s


class Shuffled:
    """Clients that read pieces of objects in random order, each piece once in an epoch and in ``ranges``
    adjacent ranges. The cache has ``share`` of the data, which is ``objects`` of ``pages`` pages each. Each
    read is followed by a pause of ``pause_s``.
    """

    def __init__(
        self,
        folder: Path,
        share: float,
        piece: int,
        ranges: int,
        *,
        prefetching: bool,
        objects: int = 8,
        pages: int = 5,
        pause_s: float = 0.0,
    ) -> None:
        self.loop = VirtualLoop()
        self.origin = ShapedOrigin(0.02 if prefetching else 0.005, 25e6 if prefetching else 1e8)
        self.keys, size = [f"k{number}" for number in range(objects)], pages * PAGE_BYTES
        for key in self.keys:
            self.origin.put(BUCKET, key, bytes(size))
        self.pieces = [(key, start) for key in self.keys for start in range(0, size - piece + 1, piece)]
        self.cuts = [piece * number // ranges for number in range(ranges + 1)]
        self.rng, self.pause_s = np.random.default_rng(3), pause_s
        self.proxy = VirtualProxy(
            self.origin,
            folder,
            VirtualClock(self.loop),
            room_bytes=int(share * len(self.keys) * size),
            prefetching=prefetching,
        )

    def run(self, readers: int, epochs: int) -> list[tuple[float, float]]:
        """Return the time and the bytes of each epoch, as multiples of those of direct reads."""
        try:
            (direct_s, asked), *ours = run(self._epochs(readers, epochs), self.loop)
        finally:
            self.proxy.cache.close()
        return [(took_s / direct_s, moved / asked) for took_s, moved in ours]

    async def _epochs(self, readers: int, epochs: int) -> list[tuple[float, int]]:
        took = [await self._epoch(self._direct, readers)]
        for key in self.keys:
            await self.proxy.engine.stat(ReadRequest(ObjectRef(BUCKET, key)))
        self.proxy.begin()
        took += [
            await self._epoch(lambda key, span: self.proxy.get(key, None, span), readers)
            for _ in range(epochs)
        ]
        await self.proxy.aclose()
        return took

    async def _epoch(
        self, get: Callable[[str, RangeSpec], Awaitable[None]], readers: int
    ) -> tuple[float, int]:
        todo = [self.pieces[at] for at in self.rng.permutation(len(self.pieces))]
        began_s, self.origin.bytes = self.loop.time(), 0

        async def reader() -> None:
            while todo:
                key, start = todo.pop()
                for first, stop in pairwise(self.cuts):
                    await get(key, RangeSpec(start + first, start + stop - 1))
                    await asyncio.sleep(self.pause_s)

        await asyncio.gather(*(reader() for _ in range(readers)))
        return self.loop.time() - began_s, self.origin.bytes

    async def _direct(self, key: str, span: RangeSpec) -> None:
        async with self.origin.open(ObjectRef(BUCKET, key), span=Span(span.first, span.last + 1)):
            pass


def test_samples_of_shards_at_random_cost_what_they_ask_for_if_few_pages_have_a_place(tmp_path):
    """A cache of 30 % is full of pages that are worth as much as those outside. To fetch a page for one of
    its 42 samples would cost 42 times the bytes, and displace a page that is as good.
    """
    shuffled = Shuffled(tmp_path, 0.3, PAGE_BYTES // 42, 1, prefetching=False)
    assert all(time <= 1.1 and moved <= 1.1 for time, moved in shuffled.run(8, 5)[2:])


@pytest.mark.parametrize(("piece", "ranges"), [(PAGE_BYTES // 3, 5), (PAGE_BYTES // 42, 1)])
def test_pieces_at_random_are_not_read_ahead_if_few_pages_have_a_place(tmp_path, piece, ranges):
    """Row groups of Parquet files and samples of shards, over a slow link. For a moment each reader looks
    like one in a row. Pages that are fetched for it would be displaced before most of them is read.
    """
    shuffled = Shuffled(tmp_path, 0.3, piece, ranges, prefetching=True)
    first, *later = shuffled.run(4, 3)
    assert first[0] <= 1.1
    assert all(time <= 1.05 and moved <= 1.35 for time, moved in later)


def test_readers_in_a_row_over_a_full_link_get_no_page_that_they_are_reading(tmp_path):
    """Guesses wait for the link, and their readers are faster. A page of which a reader has a quarter already
    would bring that quarter again.
    """
    shuffled = Shuffled(tmp_path, 0.3, 20 * PAGE_BYTES, 80, prefetching=True, objects=16, pages=20)
    first, *later = shuffled.run(16, 2)
    assert first[0] <= 1.1
    assert all(time <= 1 and moved <= 1 for time, moved in later)


@pytest.mark.parametrize("parts", [2, 4])
def test_pages_that_are_read_in_parts_are_fetched_once_beside_others(tmp_path, parts):
    """Readers in a row over a slow link. A page comes long after its first part was asked for. It must get a
    place nevertheless: its reader asks for the next part now.
    """
    shuffled = Shuffled(tmp_path, 0.15, 20 * PAGE_BYTES, 20 * parts, prefetching=True, objects=8, pages=20)
    assert all(time <= 1.1 and moved <= 1.1 for time, moved in shuffled.run(8, 3))


def test_a_reader_of_one_page_at_a_time_is_read_ahead_although_its_pages_leave_soon(tmp_path):
    """It works between its reads. A page has one hit, and the next page that comes may displace it."""
    shuffled = Shuffled(
        tmp_path, 0.15, 20 * PAGE_BYTES, 20, prefetching=True, objects=8, pages=20, pause_s=0.05
    )
    _, *later = shuffled.run(1, 4)
    assert all(time <= 0.8 for time, _ in later)


class StreamedOrigin(MemoryOrigin):
    """An origin whose bodies stream in pieces over one link of ``bytes_per_s``, after a latency. Each body
    comes at ``body_bytes_per_s`` at most.
    """

    PIECE = 65_536

    def __init__(self, latency_s: float, bytes_per_s: float, body_bytes_per_s: float) -> None:
        super().__init__(chunk_bytes=self.PIECE)
        self.latency_s, self.bytes_per_s, self.body_bytes_per_s = latency_s, bytes_per_s, body_bytes_per_s
        self._free_s = 0.0

    @asynccontextmanager
    async def open(self, ref: ObjectRef, **options: Unpack[OpenOptions]) -> AsyncIterator[OriginRead]:
        await asyncio.sleep(self.latency_s)
        async with super().open(ref, **options) as reading:
            yield replace(reading, chunks=self._streamed(reading), receive=None)

    async def _streamed(self, reading: OriginRead) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        async for piece in reading.chunks:
            now_s = loop.time()
            self._free_s = max(self._free_s, now_s) + len(piece) / self.bytes_per_s
            await asyncio.sleep(max(self._free_s - now_s, len(piece) / self.body_bytes_per_s))
            yield piece


class Link(NamedTuple):
    """The arguments of ``StreamedOrigin``."""

    latency_s: float
    bytes_per_s: float
    body_bytes_per_s: float


@pytest.mark.parametrize(
    ("link", "pages", "readers"),
    [
        (Link(0.005, 1.2e9, 1.2e9), 2.5, 1),
        (Link(0.02, 1.2e9, 1.2e9), 6.5, 1),
        (Link(0.02, 1.2e9, 1.2e9), 6.5, 8),
        (Link(0.05, 4e8, 4e8), 10, 1),
        (Link(0.05, 4e8, 4e8), 2.5, 8),
        (Link(0.02, 1e8, 1e8), 6.5, 1),
        (Link(0.03, 3e9, 8e7), 2.5, 8),
    ],
)
@pytest.mark.parametrize("read", ["unknown", "known", "range", "known range"])
def test_a_first_epoch_of_long_objects_takes_no_longer_than_without_the_proxy(
    tmp_path, link, pages, readers, read
):
    """The readers ask for whole objects, or for a range of them. Of objects that are not known, the proxy
    knows nothing before the first byte comes.
    """
    loop = VirtualLoop()
    origin = StreamedOrigin(*link)
    size = int(pages * PAGE_BYTES)
    keys = [f"k{number}" for number in range(8)]
    for key in keys:
        origin.put(BUCKET, key, bytes(size))
    proxy = VirtualProxy(origin, tmp_path, VirtualClock(loop), room_bytes=10 * size, prefetching=False)

    part = RangeSpec(1, size - 2) if "range" in read else None
    span = None if part is None else part.resolve(size)

    async def direct(key: str) -> None:
        async with origin.open(ObjectRef(BUCKET, key), span=span) as reading:
            async for _ in reading.chunks:
                pass

    async def epoch(get: Callable[[str], Awaitable[None]]) -> float:
        async def reader(number: int) -> None:
            for key in keys[number::readers]:
                await get(key)

        began_s = loop.time()
        await asyncio.gather(*map(reader, range(readers)))
        return loop.time() - began_s

    async def both() -> tuple[float, float]:
        for key in keys if "known" in read.split() else ():
            await proxy.engine.stat(ReadRequest(ObjectRef(BUCKET, key)))
        took_s = await epoch(direct), await epoch(lambda key: proxy.get(key, None, part))
        await proxy.aclose()
        return took_s

    direct_s, ours_s = run(both(), loop)
    proxy.cache.close()
    assert ours_s <= 1.05 * direct_s
