"""CPU for each write of a 100 KB page: SegmentStore (reserve, write, release) against ``diskcache.set``.

Both stores are full and on the same disk, so every write displaces an older page.
"""

import random
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from shadeproxy.core.errors import TierFull
from shadeproxy.core.types import ObjectMeta, ObjectRef, Page
from shadeproxy.tiers.base import Location, RecordHeader
from shadeproxy.tiers.store import SegmentStore
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.rounds import alternate
from shadeproxy_bench.server import workplace
from shadeproxy_bench.warm_memory import warm_memory

_BODY_BYTES = 100_000
_CAPACITY_BYTES = 64 * 1024 * 1024


class Writer(Protocol):
    def write(self, number: int, body: bytes) -> None: ...


class SegmentWriter:
    def __init__(self, path: Path, capacity_bytes: int) -> None:
        self.store = SegmentStore("disk", path, capacity_bytes)
        self.store.open()
        self._residents: deque[Location] = deque()

    def write(self, number: int, body: bytes) -> None:
        page = Page(ObjectRef("train", f"images/{number:08d}.jpg"), '"0123456789abcdef0123456789abcdef"', 0)
        meta = ObjectMeta(page.etag, len(body), (("Content-Type", "image/jpeg"),))
        wanted = self.store.record_bytes(page, meta, len(body))
        while True:
            try:
                location = self.store.reserve(wanted)
            except TierFull:
                self.store.release(self._residents.popleft())
                continue
            break
        self.store.write(location, RecordHeader(page, meta, len(body), 1.0), body)
        self._residents.append(location)


class DiskcacheWriter:
    """diskcache with its usual settings: big values are files of their own, and the least recently used
    values leave when the capacity is reached.
    """

    def __init__(self, path: Path, capacity_bytes: int) -> None:
        import diskcache  # noqa: PLC0415  only this comparison uses it as a cache of bodies

        self._cache: Any = diskcache.Cache(str(path), size_limit=capacity_bytes)

    def write(self, number: int, body: bytes) -> None:
        self._cache.set(number, body)

    def close(self) -> None:
        self._cache.close()


class _Turn:
    """Measures one writer. Each call makes the next ``count`` writes, and returns the CPU microseconds for a
    write.
    """

    def __init__(self, writer: Writer, bodies: list[bytes], count: int) -> None:
        self._writer, self._bodies, self._count = writer, bodies, count
        self._next = 0

    def __call__(self) -> float:
        started = time.process_time()
        for number in range(self._next, self._next + self._count):
            self._writer.write(number, self._bodies[number % len(self._bodies)])
        self._next += self._count
        return (time.process_time() - started) / self._count * 1e6


def write_cost(*, writes: int, rounds: int, capacity_bytes: int = _CAPACITY_BYTES) -> Measured:
    """Measure the microseconds of CPU for a write of SegmentStore and of diskcache, in turn. Both are full,
    because twice their capacity has been written before.
    """
    bodies = [random.Random(seed).randbytes(_BODY_BYTES) for seed in range(16)]
    with workplace(on_disk=True) as work:
        segments = SegmentWriter(work / "segments", capacity_bytes)
        files = DiskcacheWriter(work / "diskcache", capacity_bytes)
        try:
            ours, theirs = _Turn(segments, bodies, writes), _Turn(files, bodies, writes)
            for _ in range(2 * capacity_bytes // _BODY_BYTES // writes + 1):
                ours()
                theirs()
            return alternate(ours, theirs, rounds=rounds)
        finally:
            files.close()
            segments.store.close()


def _in_warm_memory(*, writes: int, rounds: int) -> Measured:
    with warm_memory(2 * _CAPACITY_BYTES):
        return write_cost(writes=writes, rounds=rounds)


def tiers(scale: Scale) -> Iterator[Planned]:
    yield Planned(
        "tier write, 100 KB, against diskcache.set",
        "us CPU/write",
        Target(1 / 20, at_least=False),
        "both full, so that each write displaces a page; one process, same disk",
        partial(_in_warm_memory, writes=scale.pick(400, 200), rounds=scale.rounds),
        ratio_is="ours / reference",
    )
