"""Another program truncates a segment while a store uses it. Reads of records cause no readahead of other
records.
"""

import os

import pytest

from shadeproxy.core.errors import TierError
from shadeproxy.engine.read.body_files import BodyFiles
from shadeproxy.engine.read.fill_memory import FillMemory
from shadeproxy.engine.read.fill_messages import WriteBody
from shadeproxy.tiers.medium import is_tmpfs
from shadeproxy.tiers.store import SegmentStore

CAPACITY_BYTES, SEGMENT_BYTES = 1 << 20, 1 << 18
LEFT_BYTES = 10_000


@pytest.fixture
def truncated(bench, sample):
    """Return a store with 20 records in one segment, the segment, and the records' locations. The segment was
    then truncated to 10,000 bytes.
    """
    store, _ = bench.open(CAPACITY_BYTES, SEGMENT_BYTES)
    locations = [bench.add(store, sample(n, 5000)) for n in range(20)]
    (segment,) = store._space.segments.values()
    os.truncate(segment.path, LEFT_BYTES)
    return store, segment, locations


def test_a_write_does_not_make_a_truncated_segment_long_again(truncated, bench, sample):
    store, segment, locations = truncated
    late = sample(99, 5000)
    place = store.reserve(store.record_bytes(late.header.page, late.header.meta, 5000))
    with pytest.raises(TierError, match=r"another program truncated .*\.seg"):
        store.write(place, late.header, memoryview(late.body))
    assert segment.path.stat().st_size == LEFT_BYTES
    assert store.load(locations[0]) == sample(0, 5000).header
    with pytest.raises(TierError):
        store.load(locations[10])


def test_an_erasure_does_not_make_a_truncated_segment_long_again(truncated):
    store, segment, locations = truncated
    for location in locations:
        store.release(location)
    assert segment.path.stat().st_size == LEFT_BYTES
    assert store.erasures.owed == 0


def test_a_worker_does_not_make_a_truncated_segment_long_again(truncated, bench):
    _, segment, _ = truncated
    memory = FillMemory.create(1 << 16)
    order = WriteBody(0, 4096, segment.number, 50_000, segment.file)
    files = BodyFiles(memory, bench.path)
    try:
        assert files.write(order).hashed is None
        assert segment.path.stat().st_size == LEFT_BYTES
    finally:
        for descriptor in files._descriptors.values():
            os.close(descriptor)
        memory.close()


def test_a_read_of_a_record_brings_no_other_record_into_the_page_cache(tmp_path, bench, sample):
    """A read of a record brings no other record into the page cache. Only the record that is loaded is
    checked. Another record would count as hot, and would be served unchecked.
    """
    if is_tmpfs(tmp_path):
        pytest.skip("tmp_path has no device below it")
    store = SegmentStore("disk", tmp_path / "disk", 8 << 20, segment_bytes=4 << 20)
    store.open()
    locations = [bench.add(store, sample(n, 20_000)) for n in range(50)]
    (segment,) = store._space.segments.values()
    os.fdatasync(segment.descriptor)
    os.posix_fadvise(segment.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    assert not any(store.is_hot(location) for location in locations)
    for loaded, location in enumerate(locations, 1):
        store.load(location)
        assert [store.is_hot(one) for one in locations].count(True) <= loaded
    store.close()
