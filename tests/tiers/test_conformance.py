"""Each sentence of the contract in shadeproxy/tiers/base.py is tested here, on both media."""

import os
import stat

import pytest

from shadeproxy.core.errors import ConfigError, TierError, TierFull
from shadeproxy.core.types import ObjectMeta, ObjectRef, Page
from shadeproxy.tiers.base import RecordHeader
from shadeproxy.tiers.files import default_segment_bytes
from shadeproxy.tiers.location import bytes_of
from shadeproxy.tiers.segment import Segment
from shadeproxy.tiers.store import SegmentStore

SIZES = [0, 1, 63, 64, 65, 3000, 4096, 5000, 70_000, 200_000]


@pytest.mark.parametrize("size", SIZES)
def test_bytes_and_header_come_back(bench, sample, size):
    store, _ = bench.open()
    page = sample(1, size)
    location = bench.add(store, page)
    assert 0 <= location < 1 << 63
    view = store.pin(location)
    assert view.readonly
    assert bytes(view) == page.body
    assert store.header(location) == page.header
    assert store.is_hot(location)
    store.load(location)
    assert store.used_bytes <= store.capacity_bytes


@pytest.mark.parametrize("size", SIZES)
def test_what_its_window_told_is_pinned_as_well(bench, sample, size):
    store, _ = bench.open()
    page, other = sample(1, size), sample(2, size)
    location = bench.add(store, page)
    _, start, stop = store.window(location)
    view = store.pin_window(location, start, stop)
    assert view.readonly
    assert bytes(view) == page.body
    store.release(location)
    for _ in range(3):
        bench.add(store, other)
    assert bytes(view) == page.body
    with pytest.raises(TierError):
        store.pin_window(1 << 60, start, stop)


def test_objects_of_many_records_come_in_few_reads(bench, sample, monkeypatch):
    store, _ = bench.open()
    pages = [
        sample(number, size) for number, size in enumerate([100] * 50 + [70_000, 5000, 0, 200_000, 3000])
    ]
    long = Page(ObjectRef("b", "k" * 1024), '"e"', 0)
    locations = sorted(bench.add(store, page) for page in pages)
    read, spans = Segment.read, []

    def noted(self, offset, length):
        spans.append((offset, length))
        return read(self, offset, length)

    monkeypatch.setattr(Segment, "read", noted)
    refs = list(store.refs(locations))
    assert refs == [store.header(location).page.ref for location in locations]
    spans = spans[: -len(locations)]
    assert len(spans) < 10
    # Only blocks with a part of a header are read: others would come into the page cache without a check.
    heads = {
        offset // 4096 + n for location in locations for offset in [bytes_of(location)[1]] for n in (0, 1)
    }
    assert {
        block for at, length in spans for block in range(at // 4096, (at + length - 1) // 4096 + 1)
    } <= heads
    header = RecordHeader(long, ObjectMeta('"e"', 3, ()), 3, 1.0)
    location = store.reserve(store.record_bytes(long, header.meta, 3))
    store.write(location, header, b"abc")
    gone = locations[3]
    store.release(gone)
    refs = list(store.refs([*locations, location, 1 << 60]))
    assert refs[-2] == long.ref
    assert [place for place, ref in enumerate(refs) if isinstance(ref, TierError)] == [3, len(refs) - 1]


def test_objects_whose_records_cannot_be_read_are_errors(bench, sample, monkeypatch):
    store, _ = bench.open()
    locations = [bench.add(store, sample(number, 100)) for number in range(5)]
    read = Segment.read
    bad = bytes_of(locations[2])[1]

    def failing(self, offset, length):
        if offset <= bad < offset + length:
            raise OSError(5, "bad block")
        return read(self, offset, length)

    monkeypatch.setattr(Segment, "read", failing)
    refs = list(store.refs(locations))
    whole = [not isinstance(ref, TierError) for ref in refs]
    assert not whole[2]
    assert whole[3:] == [True, True]


def test_long_metadata_comes_back(bench):
    store, _ = bench.open()
    headers = tuple((f"x-amz-meta-{number}", "v" * 200) for number in range(50))
    page = Page(ObjectRef("b", "k" * 1024), '"e"', 0)
    header = RecordHeader(page, ObjectMeta('"e"', 3, headers), 3, 1.0)
    location = store.reserve(store.record_bytes(page, header.meta, 3))
    store.write(location, header, b"abc")
    assert store.header(location) == header
    store.close()
    (found,) = bench.open()[1]
    assert found.header == header


def test_records_survive_a_clean_restart(bench, sample):
    store, _ = bench.open()
    kept = {bench.add(store, sample(number, size)): sample(number, size) for number, size in enumerate(SIZES)}
    gone, page = kept.popitem()
    used_bytes = store.used_bytes
    store.release(gone)
    store.close()
    again, recovered = bench.open()
    assert {found.header.page: found.header for found in recovered} == {
        page.header.page: page.header for page in kept.values()
    }
    for found in recovered:
        again.load(found.location)
        expected = sample(int(found.header.page.ref.key[-6:]), found.header.body_bytes)
        assert bytes(again.pin(found.location)) == expected.body
        assert found.record_bytes >= again.record_bytes(
            found.header.page, found.header.meta, found.header.body_bytes
        )
    assert again.dropped.records == 0
    assert again.used_bytes <= used_bytes
    assert page.header.page not in {found.header.page for found in recovered}


def test_recovered_records_can_be_released_and_their_room_used_again(bench, sample):
    store, _ = bench.open()
    bench.fill(store, 9000)
    store.close()
    again, recovered = bench.open()
    for found in recovered:
        again.release(found.location)
    assert again.used_bytes <= 4096 * (again.segments + 1)
    assert len(bench.fill(again, 9000, first=1000)) == len(recovered)
    assert bench.real_bytes() <= again.capacity_bytes


def test_an_erased_record_is_gone_before_it_is_released(bench, sample):
    store, _ = bench.open()
    location = bench.add(store, sample(1, 5000))
    place = store.locate(location)
    store.erase(location)
    with pytest.raises(TierError, match="erased, or never written"):
        store.pin(location)
    with pytest.raises(TierError, match="erased, or never written"):
        store.header(location)
    assert os.pread(os.open(place.path, os.O_RDONLY), 64, place.header_offset) == bytes(64)
    store.close()
    assert bench.open()[1] == []


def test_a_reservation_that_was_never_written_is_not_a_record(bench, sample):
    store, _ = bench.open()
    location = store.reserve(5000)
    with pytest.raises(TierError, match="erased, or never written"):
        store.pin(location)
    with pytest.raises(TierError, match="erased, or never written"):
        store.load(location)
    used_bytes = store.used_bytes
    store.release(location)
    assert store.used_bytes < used_bytes
    store.close()
    assert bench.open()[1] == []


def test_records_whose_room_is_taken_over_are_erased_at_once(bench, sample):
    store, _ = bench.open()
    old = [bench.add(store, sample(number, 5000)) for number in range(6)]
    taken = store.take_over(old, [5000, 3000, 900, 5100, 6000, 200])
    assert [location is None for location in taken] == [False] * 4 + [True, False]
    for place, location in enumerate(old):
        if taken[place] is None:
            assert store.header(location) == sample(place, 5000).header
        else:
            with pytest.raises(TierError, match="no record here"):
                store.header(location)


def test_a_full_store_says_so_and_takes_again_what_was_freed(bench, sample):
    store, _ = bench.open()
    samples = bench.fill(store, 9000)
    # Metadata, headers and rounding to blocks take less than 5 % of the capacity.
    assert len(samples) * 9000 > 0.95 * store.capacity_bytes
    for number in range(500):
        victim = list(samples)[number * 7919 % len(samples)]
        store.release(victim)
        del samples[victim]
        page = sample(5000 + number, 9000)
        samples[bench.add(store, page)] = page
    assert all(bytes(store.pin(location)) == page.body for location, page in samples.items())
    assert bench.real_bytes() <= store.capacity_bytes


def test_small_records_of_mixed_sizes_keep_the_capacity_used(bench, sample):
    store, _ = bench.open()
    live, number = {}, 0
    while number < 6000:
        page = sample(number, 100 + number * 7919 % 1500)
        try:
            live[bench.add(store, page)] = page
            number += 1
        except TierFull:
            victim = list(live)[number * 104_729 % len(live)]
            del live[victim]
            store.release(victim)
    held = sum(len(page.body) + 192 for page in live.values())
    assert held > 0.85 * store.capacity_bytes
    assert bench.real_bytes() <= store.capacity_bytes


def test_freed_blocks_go_back_to_the_file_system(bench, sample):
    store, _ = bench.open(capacity_bytes=64 << 20, segment_bytes=32 << 20)
    samples = bench.fill(store, 1 << 20)
    held = bench.real_bytes()
    for location in samples:
        store.release(location)
    # The released blocks that the store keeps for the next records are bounded.
    assert store.slack_bytes <= 8 << 20
    assert bench.real_bytes() <= store.used_bytes + store.slack_bytes < held / 4


def test_the_number_of_segments_is_bounded(bench, sample):
    store, _ = bench.open(capacity_bytes=1 << 20, segment_bytes=1 << 16)
    lonely = []
    for number in range(300):
        # A small record takes a place that long records have left, and stays there for good.
        lonely.append(bench.add(store, sample(number, 10)))
        try:
            bulk = [bench.add(store, sample(1000 + number * 10 + part, 30_000)) for part in range(3)]
        except TierFull:
            break
        for location in bulk:
            store.release(location)
    assert store.segments <= store.most_segments == 2 * 16 + 4
    assert len(list(bench.path.glob("*.seg"))) <= store.most_segments


def test_empty_segments_hold_nothing_are_used_again_and_deleted_at_the_next_start(bench, sample):
    store, _ = bench.open()
    samples = bench.fill(store, 50_000)
    for location in samples:
        store.release(location)
    segments = store.segments
    assert segments >= 4
    assert bench.real_bytes() <= store.used_bytes + store.slack_bytes
    assert len(bench.fill(store, 50_000, first=100)) == len(samples)
    assert store.segments == segments
    for found in list(store._space.segments.values()):
        assert found.records
    store.close()
    again, recovered = bench.open()
    for found in recovered:
        again.release(found.location)
    again.close()
    assert bench.open()[1] == []
    assert not list(bench.path.glob("*.seg"))


def test_what_can_never_fit_is_a_tier_error(bench, sample):
    store, _ = bench.open()
    with pytest.raises(TierError, match="longer than a segment"):
        store.reserve((1 << 18) + 1)
    location = store.reserve(256)
    with pytest.raises(TierError, match="not the one that room was reserved for"):
        store.write(location, sample(1, 5000).header, sample(1, 5000).body)
    with pytest.raises(TierError, match="not the one that room was reserved for"):
        store.write(location, sample(1, 10).header, b"short")
    with pytest.raises(TierError, match="has no location"):
        store.pin(1 << 60)


def test_a_lowered_capacity_drops_what_no_longer_fits(bench, sample):
    store, _ = bench.open()
    samples = bench.fill(store, 9000)
    store.close()
    again, recovered = bench.open(capacity_bytes=1 << 19)
    assert len(recovered) + again.dropped.excess == len(samples)
    assert again.dropped.records == 0
    assert 0.9 * (1 << 19) < again.used_bytes <= 1 << 19
    assert bench.real_bytes() <= 1 << 19
    again.close()
    assert len(bench.open(capacity_bytes=1 << 19)[1]) == len(recovered)


def test_another_segment_size_reads_what_is_there(bench, sample):
    store, _ = bench.open(segment_bytes=1 << 18)
    samples = bench.fill(store, 9000)
    store.close()
    again, recovered = bench.open(segment_bytes=1 << 17)
    assert len(recovered) == len(samples)
    again.release(recovered[0].location)
    bench.add(again, sample(9999, 9000))


def test_another_process_reads_by_place(bench, sample):
    store, _ = bench.open()
    page = sample(1, 5000)
    location = bench.add(store, page)
    place = store.locate(location)
    descriptor = os.open(place.path, os.O_RDONLY)
    assert os.pread(descriptor, place.body_bytes, place.body_offset) == page.body
    assert os.pread(descriptor, len(place.header), place.header_offset) == place.header
    store.release(location)
    again = bench.add(store, page)
    assert again == location
    # The same page at the same place is a new record with a new header. So a reader that began with the old
    # record notices the change.
    assert os.pread(descriptor, len(place.header), place.header_offset) != place.header
    os.close(descriptor)


def test_damage_on_the_medium_is_noticed(bench, sample):
    store, _ = bench.open()
    page = sample(1, 5000)
    location = bench.add(store, page)
    place = store.locate(location)
    descriptor = os.open(place.path, os.O_RDWR)
    os.pwrite(descriptor, bytes([page.body[77] ^ 1]), place.body_offset + 77)
    with pytest.raises(TierError, match="body of a record is damaged"):
        store.load(location)
    os.pwrite(descriptor, b"\xff", place.header_offset + 30)
    with pytest.raises(TierError, match="header is damaged"):
        store.header(location)
    os.close(descriptor)
    store.close()
    again, recovered = bench.open()
    assert recovered == []
    assert again.dropped.records == 1


def test_files_are_private(bench, sample):
    store, _ = bench.open()
    bench.add(store, sample(1, 10))
    assert stat.S_IMODE(bench.path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in bench.path.iterdir()} == {0o600}


def test_segment_size_grows_with_the_capacity():
    assert default_segment_bytes(1 << 20) == 64 << 20
    assert default_segment_bytes(1 << 40) == 2 << 30
    for capacity_bytes in (1 << 33, 1 << 36, 10**12, 10**13):
        assert SegmentStore("ram", None, capacity_bytes, segment_bytes=None).most_segments <= 20_000
    with pytest.raises(ConfigError, match="choose a multiple of 4096"):
        SegmentStore("ram", None, 1, segment_bytes=1000)


def test_a_released_twice_location_is_caught(tmp_path):
    segment = Segment(tmp_path / "000000.seg", 0, size_bytes=1 << 16)
    segment.occupy(0, 100)
    segment.vacate(0, 100)
    with pytest.raises(AssertionError, match="released twice"):
        segment.vacate(0, 100)
    segment.close()
