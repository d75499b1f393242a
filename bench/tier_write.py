"""CPU per write of a 100 KB page: SegmentStore (reserve, write, release) against ``diskcache.set``.

Both work at steady state: full, so that every write displaces an older page. Interleaved A B A B; medians.
Run: ``python bench/tier_write.py [directory]`` (default: a temporary directory on disk).
"""

import random
import statistics
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

import diskcache

from shadeproxy.core.errors import TierFull
from shadeproxy.core.types import ObjectMeta, ObjectRef, Page
from shadeproxy.tiers.base import Location, RecordHeader
from shadeproxy.tiers.store import SegmentStore

BODY_BYTES = 100_000
CAPACITY_BYTES = 64 * 1024 * 1024
WRITES = 400
ROUNDS = 7
TARGET = 1 / 20


class SegmentWriter:
    def __init__(self, path: Path) -> None:
        self.store = SegmentStore("disk", path, CAPACITY_BYTES)
        self.store.open()
        self.residents: deque[Location] = deque()

    def write(self, number: int, body: bytes) -> None:
        page = Page(ObjectRef("train", f"images/{number:08d}.jpg"), '"0123456789abcdef0123456789abcdef"', 0)
        meta = ObjectMeta(page.etag, len(body), (("Content-Type", "image/jpeg"),))
        wanted = self.store.record_bytes(page, meta, len(body))
        while True:
            try:
                location = self.store.reserve(wanted)
            except TierFull:
                self.store.release(self.residents.popleft())
                continue
            break
        self.store.write(location, RecordHeader(page, meta, len(body), 1.0), body)
        self.residents.append(location)


class DiskcacheWriter:
    """The usual settings of a cache on disk: files for big values, LRU culling at the same capacity."""

    def __init__(self, path: Path) -> None:
        self.cache = diskcache.Cache(str(path), size_limit=CAPACITY_BYTES)

    def write(self, number: int, body: bytes) -> None:
        self.cache.set(number, body)


def cpu_us(writer: SegmentWriter | DiskcacheWriter, first: int, bodies: list[bytes]) -> float:
    start = time.process_time()
    for number in range(first, first + WRITES):
        writer.write(number, bodies[number % len(bodies)])
    return (time.process_time() - start) / WRITES * 1e6


def main() -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as root:
        writers = (SegmentWriter(Path(root, "segments")), DiskcacheWriter(Path(root, "diskcache")))
        bodies = [random.Random(seed).randbytes(BODY_BYTES) for seed in range(16)]
        warm_up = 2 * CAPACITY_BYTES // BODY_BYTES // WRITES + 1
        samples: tuple[list[float], list[float]] = ([], [])
        for round_number in range(warm_up + ROUNDS):
            for writer, results in zip(writers, samples, strict=True):
                spent = cpu_us(writer, round_number * WRITES, bodies)
                if round_number >= warm_up:
                    results.append(spent)
        ours, theirs = (statistics.median(results) for results in samples)
        print(f"tier write, {BODY_BYTES} B: segments {ours:.1f} us, diskcache.set {theirs:.1f} us CPU")
        verdict = "met" if ours / theirs <= TARGET else "missed"
        print(f"ratio {ours / theirs:.4f} (1/{theirs / ours:.0f}); target <= 1/20: {verdict}")


if __name__ == "__main__":
    main()
