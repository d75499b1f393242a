"""Segment stores on both media, and pages whose bytes are known from their number."""

import gc
import random
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from shadeproxy.core.errors import TierFull
from shadeproxy.core.types import ObjectMeta, ObjectRef, Page
from shadeproxy.tiers.base import Location, RecordHeader
from shadeproxy.tiers.segment import BLOCK_BYTES
from shadeproxy.tiers.store import SegmentStore

SHM = Path("/dev/shm")


@dataclass(frozen=True)
class Sample:
    """A page with its body, both made from ``number``."""

    header: RecordHeader
    body: bytes

    @classmethod
    def make(cls, number: int, size: int) -> "Sample":
        page = Page(ObjectRef("bucket", f"dir/key-{number:06d}"), f'"{number:032x}"', number % 7)
        headers = (("Content-Type", "image/png"), ("x-amz-meta-n", str(number)))
        header = RecordHeader(page, ObjectMeta(page.etag, size, headers), size, 1.7e9 + number)
        return cls(header, random.Random(number).randbytes(size))


class Bench:
    """One directory, one store at a time over it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.opened: list[SegmentStore] = []

    def open(self, capacity_bytes: int = 1 << 20, segment_bytes: int = 1 << 18, **options):
        """A fresh store over the directory, and what it recovered."""
        store = SegmentStore("disk", self.path, capacity_bytes, segment_bytes=segment_bytes, **options)
        recovered = list(store.open())
        self.opened.append(store)
        return store, recovered

    def add(self, store: SegmentStore, sample: Sample) -> Location:
        page, meta = sample.header.page, sample.header.meta
        location = store.reserve(store.record_bytes(page, meta, len(sample.body)))
        store.write(location, sample.header, sample.body)
        return location

    def fill(self, store: SegmentStore, size: int, first: int = 0) -> dict[Location, Sample]:
        """Samples of ``size`` until the store is full."""
        samples = {}
        try:
            while True:
                sample = Sample.make(first + len(samples), size)
                samples[self.add(store, sample)] = sample
        except TierFull:
            return samples

    def real_bytes(self) -> int:
        """What the segment files take on the medium; ext4 counts blocks that it has yet to allocate."""
        return sum(file.stat().st_blocks * 512 for file in self.path.glob("*.seg"))

    def close(self) -> None:
        for store in self.opened:
            store.close()
        gc.collect()


@pytest.fixture(params=["tmpfs", "disk"])
def bench(request, tmp_path):
    """The two media that tiers live on."""
    if request.param == "tmpfs" and not SHM.is_dir():
        pytest.skip("no /dev/shm")
    root = Path(tempfile.mkdtemp(dir=SHM)) if request.param == "tmpfs" else tmp_path
    made = Bench(root / "tier")
    yield made
    made.close()
    if request.param == "tmpfs":
        shutil.rmtree(root)


@pytest.fixture(scope="session")
def sample():
    """``sample(number, size)``: a page with a known body."""
    return Sample.make


@pytest.fixture(scope="session")
def block_bytes():
    return BLOCK_BYTES
