"""A valid catalogue saves the scan of its segment. Any other catalogue is detected, and no served byte
depends on a catalogue.
"""

import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
from xxhash import xxh3_64_intdigest

from shadeproxy.core.errors import TierError
from shadeproxy.tiers import catalogue, directory, recovery, session
from shadeproxy.tiers.catalogue import Key, pack, unpack
from shadeproxy.tiers.rows import ROW, Contents
from shadeproxy.tiers.tombstones import Tombstones

KEY = Key(0x1122334455667788, 3, 1 << 18)
PLACE = 3 << 46 | 5 << 20 | 9


def contents(**changes) -> Contents:
    row = {
        "location": PLACE,
        "object_hash": 7,
        "etag": 8,
        "number": 2,
        "group": 0,
        "body_bytes": 500,
        "uses": 2.0,
        "idle": 10.0,
        "age": 20.0,
        "validated_s": 1.7e9,
    } | changes
    return Contents(np.array([tuple(row.values())], dtype=ROW), [("b", "dir/", "")])


def test_the_format_is_frozen():
    """The catalogue's format is frozen. If this test fails, the format has changed, and CATALOGUE_VERSION
    must change too.
    """
    raw = pack(contents(), KEY, boot=99)
    assert catalogue.CATALOGUE_VERSION == 1
    assert (len(raw), xxh3_64_intdigest(raw)) == (117, 1474251583895418805)
    again = unpack(raw, KEY, boot=99)
    assert again.names == [("b", "dir/", "")]
    assert again.rows.tobytes() == contents().rows.tobytes()


def test_the_format_with_namespaces_is_frozen():
    """The format with namespaces is frozen. A release without namespaces refuses its version number. So that
    release uses no page of another namespace.
    """
    rows = contents().rows
    raw = pack(Contents(rows, [("b", "dir/", "team-a"), ("b", "dir/", "")]), KEY, boot=99)
    assert int.from_bytes(raw[4:6], "little") == catalogue.NAMESPACE_VERSION == 2
    assert (len(raw), xxh3_64_intdigest(raw)) == (133, 18209436093896795170)
    assert unpack(raw, KEY, boot=99).names == [("b", "dir/", "team-a"), ("b", "dir/", "")]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (KEY._replace(store_id=1), "of another store or segment"),
        (KEY._replace(number=4), "of another store or segment"),
        (KEY._replace(segment_bytes=1 << 19), "of another store or segment"),
    ],
)
def test_one_of_another_place_is_refused(key, reason):
    with pytest.raises(TierError, match=reason):
        unpack(pack(contents(), KEY, boot=1), key)
    with pytest.raises(TierError, match="from before the machine went down"):
        unpack(pack(contents(), KEY, boot=1), KEY, boot=2)


def test_every_flipped_bit_and_every_cut_is_noticed():
    raw = pack(contents(), KEY, boot=1)
    for place in range(len(raw)):
        for bit in (1, 128):
            with pytest.raises(TierError, match="catalogue"):
                unpack(raw[:place] + bytes([raw[place] ^ bit]) + raw[place + 1 :], KEY, boot=1)
        with pytest.raises(TierError, match="catalogue"):
            unpack(raw[:place], KEY)


@pytest.mark.parametrize(
    "wrong",
    [
        {"location": 4 << 46 | 5 << 20 | 9},
        {"location": 3 << 46 | 4090 << 20 | 9},
        {"location": 3 << 46 | 5 << 20},
        {"group": 1},
    ],
)
def test_one_that_contradicts_itself_is_refused(wrong):
    with pytest.raises(TierError, match="contradicts itself"):
        unpack(pack(contents(**wrong), KEY, boot=1), KEY)
    double = Contents(np.concatenate([contents().rows] * 2), [("b", "dir/", "")])
    with pytest.raises(TierError, match="contradicts itself"):
        unpack(pack(double, KEY, boot=1), KEY)


@pytest.fixture
def walks(monkeypatch):
    """Return a list that receives the number of each segment that is scanned."""
    numbers, real = [], recovery._walked

    def walked(segment, *rest):
        found = real(segment, *rest)
        # An unused segment without records has no catalogue, so its scan does not count.
        if len(found[0].rows):
            numbers.append(segment.number)
        return found

    monkeypatch.setattr(recovery, "_walked", walked)
    return numbers


def stopped(bench, sample, pages, count=60):
    """Fill a store and close it in order. Return its samples, and the bytes that they used."""
    store, _ = bench.open()
    samples = {bench.add(store, sample(n, 9000)): sample(n, 9000) for n in range(count)}
    used_bytes = store.used_bytes
    store.close(pages(store, samples.items()))
    return samples, used_bytes


def assert_all_there(bench, samples, store, recovered):
    assert {found.location for found in recovered} == set(samples)
    for found in recovered:
        assert found.header == samples[found.location].header
        store.load(found.location)
        assert bytes(store.pin(found.location)) == samples[found.location].body
    assert bench.real_bytes() <= store.used_bytes + store.slack_bytes


def test_after_a_clean_stop_no_record_is_read(bench, sample, pages, walks):
    samples, used_bytes = stopped(bench, sample, pages)
    store, recovered = bench.open()
    assert walks == []
    assert store.used_bytes == used_bytes
    assert_all_there(bench, samples, store, recovered)


def test_only_segments_that_changed_since_are_read_after_a_kill(bench, sample, pages, walks):
    samples, _ = stopped(bench, sample, pages)
    store, _ = bench.open()
    victim = next(iter(samples))
    number = victim >> 46
    store.release(victim)
    del samples[victim]
    store._close()
    store, recovered = bench.open()
    assert walks == [number]
    assert_all_there(bench, samples, store, recovered)
    # The scan has written no catalogue for this segment. The catalogues of all other segments are still
    # valid.
    store._close()
    bench.open()
    assert walks == [number, number]


@pytest.mark.parametrize("damage", ["flip", "cut", "foreign", "none at all"])
def test_a_damaged_catalogue_is_counted_and_its_segment_read(bench, sample, pages, walks, damage):
    samples, used_bytes = stopped(bench, sample, pages)
    first, second, *_ = sorted(bench.path.glob("*.cat"))
    raw = bytearray(first.read_bytes())
    if damage == "flip":
        raw[len(raw) // 2] ^= 1
    first.write_bytes({"flip": raw, "cut": raw[:-8], "foreign": second.read_bytes()}.get(damage, b"\0" * 900))
    store, recovered = bench.open()
    assert (store.dropped.catalogues, store.dropped.records, walks) == (1, 0, [int(first.stem)])
    assert store.used_bytes == used_bytes
    assert_all_there(bench, samples, store, recovered)


def test_after_the_machine_went_down_catalogues_from_before_do_not_count(
    bench, sample, pages, walks, monkeypatch
):
    samples, _ = stopped(bench, sample, pages)
    # Act as if the session had not ended in order and the machine had restarted. The mark "boot" then names
    # an earlier boot.
    (bench.path / session.BOOT_NAME).write_text(directory._BOOT_ID.read_text())
    monkeypatch.setattr(directory, "_BOOT_ID", bench.path.parent / "boot_id")
    directory._BOOT_ID.write_text("another boot")
    store, recovered = bench.open()
    assert store.dropped.catalogues == len(walks) > 0
    assert {found.header.validated_s for found in recovered} == {0.0}
    walks.clear()
    store.close(
        pages(
            store,
            ((one.location, replace(samples[one.location], header=one.header)) for one in recovered),
        )
    )
    # The catalogues written after that restart are used. Their rows say which pages are still to be checked.
    store, recovered = bench.open()
    assert (store.dropped.catalogues, walks) == (0, [])
    assert {found.header.validated_s for found in recovered} == {0.0}


def test_a_segment_is_changed_though_its_catalogue_was_deleted_with_the_directory(bench, sample, pages):
    store, _ = bench.open()
    first = bench.add(store, sample(0, 40_000))
    store.close(pages(store, [(first, sample(0, 40_000))]))
    assert list(bench.path.glob("*.cat"))
    store, _ = bench.open()
    shutil.rmtree(bench.path)
    second = bench.add(store, sample(1, 40_000))
    assert second >> 46 == first >> 46, "no new segment was needed"
    assert store.disabled_reason is None
    for number, location in enumerate((first, second)):
        assert bytes(store.pin(location)) == sample(number, 40_000).body


def test_a_page_that_its_owner_gave_up_is_not_in_the_catalogue(bench, sample, pages, walks):
    """A page that the engine left out at the end comes back, because its segment has no catalogue. The record
    is still in the segment, so a catalogue without it would be wrong.
    """
    store, _ = bench.open()
    samples = {bench.add(store, sample(n, 9000)): sample(n, 9000) for n in range(3)}
    left_out = samples.popitem()
    store.close(pages(store, samples.items()))
    store, recovered = bench.open()
    assert walks == [0]
    assert_all_there(bench, dict([*samples.items(), left_out]), store, recovered)


def test_until_it_is_taken_in_a_segment_counts_and_takes_nothing(bench, sample, pages):
    samples, _ = stopped(bench, sample, pages, count=100)
    store, _ = bench.open()
    held_bytes = store.used_bytes
    store.close(pages(store, samples.items()))
    again = type(store)("disk", bench.path, 1 << 20, segment_bytes=1 << 18)
    bench.opened.append(again)
    again.open()
    assert again.pending_segments == 4
    assert held_bytes <= again.used_bytes <= again.capacity_bytes
    new, number = {}, 1000
    for arrival in again.arrivals():
        for _ in again.take_in(arrival):
            number += 1
            try:
                new[bench.add(again, sample(number, 9000))] = sample(number, 9000)
            except TierError:
                continue
    assert again.pending_segments == 0
    assert new
    assert again.used_bytes <= again.capacity_bytes
    assert bench.real_bytes() <= again.used_bytes + again.slack_bytes
    assert not set(new) & set(samples)
    for location, one in (samples | new).items():
        assert bytes(again.pin(location)) == one.body


def test_the_writer_may_look_at_the_segments_while_one_is_taken_in(bench, sample, pages):
    """The threads of the writer and of the event loop may change places at any moment, also while the
    writer's thread walks through the segments. Here they do so at the first one.
    """
    stopped(bench, sample, pages, count=100)
    bench.close()
    store = type(bench.opened[0])("disk", bench.path, 1 << 20, segment_bytes=1 << 18)
    bench.opened.append(store)
    store.open()
    arrivals, pending = store.arrivals(), store._pending._segments
    arrival = next(arrivals)

    class TakesIn(tuple):
        """The entry of a pending segment. When it is looked at, another segment is taken in."""

        __slots__ = ()

        def __iter__(self):
            if store.pending_segments == len(found):
                list(store.take_in(arrival))
            return super().__iter__()

    found = list(pending)
    place = next(number for number in found if number != arrival.segment.number)
    pending[place] = TakesIn(pending[place])
    assert store.erasures.owed == 0
    assert store.pending_segments == len(found) - 1


@pytest.mark.parametrize("seed", range(4))
def test_what_is_disowned_before_it_is_taken_in_never_comes_back(bench, sample, pages, recover, seed):
    """An object that is disowned before its records are recovered never comes back. The process is killed in
    the middle of recovery, three times.
    """
    samples, _ = stopped(bench, sample, pages)
    chance, gone = random.Random(seed), set()
    for _ in range(3):
        store = type(bench.opened[0])("disk", bench.path, 1 << 20, segment_bytes=1 << 18)
        store.open()
        steps = chance.randrange(4)
        for arrival in store.arrivals():
            if not steps:
                break
            steps -= 1
            for _ in store.take_in(arrival):
                one = chance.choice(list(samples.values()))
                if store.pending_segments > 1:
                    gone.add(one.header.page.ref)
                    store.disown(recovery.object_hash(one.header.page.ref))
        store._close()
    store, recovered = bench.open()
    found = {one.header.page.ref for one in recovered}
    assert {one.header.page.ref for one in samples.values()} - gone <= found
    # A record that was recovered before its object was disowned is the caller's to release.
    late = found & gone
    store._close()
    assert {one.header.page.ref for one in bench.open()[1]} & gone == late
    bench.close()
    (path,) = bench.path.glob("*.tombstones")
    again = Tombstones(path)
    assert again.read()
    assert again.found == set()


def test_closing_ends_a_recovery(bench, sample, pages):
    samples, _ = stopped(bench, sample, pages)
    for path in bench.path.glob("*.cat"):
        path.unlink()
    store = type(bench.opened[0])("disk", bench.path, 1 << 20, segment_bytes=1 << 18)
    store.open()
    arrivals = store.arrivals()
    next(arrivals)
    store.halt()
    assert list(arrivals) == []
    store.close()
    assert len(bench.open()[1]) == len(samples)


def test_a_full_store_of_small_records_keeps_to_its_capacity_with_its_catalogues(bench, pages):
    store, _ = bench.open()
    samples = bench.fill(store, 200)
    assert store.used_bytes + store.slack_bytes <= store.capacity_bytes
    store.close(pages(store, samples.items()))
    rows_bytes = sum(file.stat().st_size for file in bench.path.glob("*.cat"))
    assert rows_bytes > 56 * len(samples)
    heads_bytes = 4 * 200  # Each of the four catalogues also has a head, and the names of its groups.
    assert bench.real_bytes() + rows_bytes - heads_bytes <= store.capacity_bytes
    again, recovered = bench.open()
    assert len(recovered) == len(samples)
    assert again.used_bytes <= again.capacity_bytes
