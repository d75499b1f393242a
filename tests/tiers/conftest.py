"""Fixtures for segment stores on both media, and for pages whose bytes follow from their number."""

import gc
import random
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from shadeproxy.core.errors import TierFull
from shadeproxy.core.identity import etag_hash, group_name, object_hash
from shadeproxy.core.types import ObjectMeta, ObjectRef, Page
from shadeproxy.tiers.base import Location, RecordHeader
from shadeproxy.tiers.location import unpack
from shadeproxy.tiers.record import UNIT_BYTES
from shadeproxy.tiers.rows import ROW, Contents
from shadeproxy.tiers.segment import BLOCK_BYTES
from shadeproxy.tiers.store import SegmentStore

SHM = Path("/dev/shm")


@dataclass(frozen=True)
class Sample:
    """A page and its body. Both follow from ``number``."""

    header: RecordHeader
    body: bytes

    @classmethod
    def make(cls, number: int, size: int) -> "Sample":
        page = Page(ObjectRef("bucket", f"dir/key-{number:06d}"), f'"{number:032x}"', number % 7)
        headers = (("Content-Type", "image/png"), ("x-amz-meta-n", str(number)))
        header = RecordHeader(page, ObjectMeta(page.etag, size, headers), size, 1.7e9 + number)
        return cls(header, random.Random(number).randbytes(size))


class Recovered(NamedTuple):
    """A record as the store gives it back after a restart."""

    location: Location
    header: RecordHeader
    record_bytes: int


def recover(store: SegmentStore) -> list[Recovered]:
    """Recover all records that an earlier process has left in the directory of an open store. Return them."""
    found = []
    for arrival in store.arrivals():
        for contents in store.take_in(arrival):
            for row in contents.rows:
                location = Location(int(row["location"]))
                header = store.header(location)._replace(validated_s=float(row["validated_s"]))
                assert row["object_hash"] == object_hash(header.page.ref)
                assert row["etag"] == etag_hash(header.page.etag)
                assert (row["number"], row["body_bytes"]) == (header.page.number, header.body_bytes)
                assert contents.names[row["group"]] == group_name(header.page.ref)
                found.append(Recovered(location, header, unpack(location)[1] * UNIT_BYTES))
    assert store.pending_segments == 0
    return found


def pages(store: SegmentStore, samples: Iterable[tuple[Location, "Sample"]]) -> Contents:
    """Return the catalogue contents for these samples, as the engine gives them to ``close``."""
    names: dict[tuple[str, str], int] = {}
    rows = [
        (
            location,
            object_hash(one.header.page.ref),
            etag_hash(one.header.page.etag),
            one.header.page.number,
            names.setdefault(group_name(one.header.page.ref), len(names)),
            one.header.body_bytes,
            1.0,
            0.0,
            0.0,
            one.header.validated_s,
        )
        for location, one in samples
    ]
    return Contents(np.array(rows, dtype=ROW), list(names))


class Bench:
    """The directory of a tier. One store at a time uses it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.opened: list[SegmentStore] = []

    def open(self, capacity_bytes: int = 1 << 20, segment_bytes: int = 1 << 18, **options):
        """Open a new store over the directory. Return the store and the records that it recovered."""
        store = SegmentStore("disk", self.path, capacity_bytes, segment_bytes=segment_bytes, **options)
        store.open()
        recovered = recover(store)
        self.opened.append(store)
        return store, recovered

    def add(self, store: SegmentStore, sample: Sample) -> Location:
        page, meta = sample.header.page, sample.header.meta
        location = store.reserve(store.record_bytes(page, meta, len(sample.body)))
        store.write(location, sample.header, sample.body)
        return location

    def fill(self, store: SegmentStore, size: int, first: int = 0) -> dict[Location, Sample]:
        """Add samples of ``size`` bytes until the store is full. Return the samples by location."""
        samples = {}
        try:
            while True:
                sample = Sample.make(first + len(samples), size)
                samples[self.add(store, sample)] = sample
        except TierFull:
            return samples

    def real_bytes(self) -> int:
        """Return the bytes that the segment files take on the medium. On ext4 this includes blocks whose
        allocation is delayed.
        """
        return sum(file.stat().st_blocks * 512 for file in self.path.glob("*.seg"))

    def close(self) -> None:
        for store in self.opened:
            store.close()
        gc.collect()


@pytest.fixture(params=["tmpfs", "disk"])
def bench(request, tmp_path):
    """Yield a bench on tmpfs, and in a second run a bench on a disk. These are the two media of tiers."""
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
    """Return ``sample(number, size)``, which makes a page with a known body."""
    return Sample.make


@pytest.fixture(scope="session", name="recover")
def recover_fixture():
    """Return ``recover(store)``, which returns the records that a restart found."""
    return recover


@pytest.fixture(scope="session", name="pages")
def pages_fixture():
    """Return ``pages(store, samples)``, which makes the argument of ``close``."""
    return pages


@pytest.fixture(scope="session")
def block_bytes():
    return BLOCK_BYTES
