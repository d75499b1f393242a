"""A tier's directory can be opened with any byte of it damaged, and no wrong byte is read from it."""

import random

import pytest

from shadeproxy.core.errors import TierError
from shadeproxy.core.identity import object_hash
from shadeproxy.tiers import session
from shadeproxy.tiers.store import SegmentStore

CAPACITY_BYTES, SEGMENT_BYTES = 1 << 20, 1 << 18
PAGES = dict(enumerate((300, 5000, 9000, 40_000) * 12))


def left_behind(bench, sample, pages, *, in_order: bool) -> dict[str, bytes]:
    """Return the files of a store. The store either stopped in order, or was killed by kill -9 in the middle
    of its recovery.
    """
    store, _ = bench.open(CAPACITY_BYTES, SEGMENT_BYTES)
    samples = {bench.add(store, sample(n, size)): sample(n, size) for n, size in PAGES.items()}
    store.close(pages(store, samples.items()))
    if not in_order:
        store = SegmentStore("disk", bench.path, CAPACITY_BYTES, segment_bytes=SEGMENT_BYTES)
        store.open()
        for n in (0, 7, 11):
            store.disown(object_hash(sample(n, 1).header.page.ref))
        arrivals = store.arrivals()
        for _ in store.take_in(next(arrivals)):
            pass
        store.halt()
    files = {path.name: path.read_bytes() for path in bench.path.iterdir()}
    store._close()
    return files


def spoilt(files: dict[str, bytes], rng: random.Random) -> dict[str, bytes]:
    """Return ``files`` with one file damaged: cut short, or with changed bits or bytes."""
    kind = rng.choice(sorted({name.partition(".")[2] or name for name in files}))
    name = rng.choice([name for name in sorted(files) if (name.partition(".")[2] or name) == kind])
    data = bytearray(files[name])
    # Damage the part of the segment that has data, because the rest may be holes.
    used = max(1, len(data.rstrip(b"\0")))
    draw = rng.random()
    if draw < 0.3:
        del data[rng.randrange(used) :]
    elif draw < 0.5:
        place = rng.randrange(used)
        data[place : place + 100] = rng.randbytes(len(data[place : place + 100]))
    elif data:
        data[rng.randrange(used)] ^= 1 << rng.randrange(8)
    return files | {name: bytes(data)}


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_directory(bench, sample, pages, in_order, seed):
    files, rng = left_behind(bench, sample, pages, in_order=in_order), random.Random(seed)
    for turn in range(5):
        place = bench.path.parent / str(turn)
        place.mkdir()
        for name, data in spoilt(files, rng).items():
            (place / name).write_bytes(data)
        store = SegmentStore("disk", place, CAPACITY_BYTES, segment_bytes=SEGMENT_BYTES)
        store.open()
        bench.opened.append(store)
        for arrival in store.arrivals():
            for contents in store.take_in(arrival):
                for location in contents.rows["location"].tolist():
                    check(store, location, sample)
        taken = sum(file.stat().st_blocks * 512 for file in place.glob("*.seg"))
        assert taken <= store.used_bytes + store.slack_bytes
        assert store.used_bytes <= CAPACITY_BYTES
        check(store, bench.add(store, sample(999, 5000)), sample)


def check(store, location, sample) -> None:
    """Check that a load of the record gives the right page or raises TierError."""
    try:
        header = store.load(location)
    except TierError:
        return
    number = int(header.page.ref.key[-6:])
    expected = sample(number, header.body_bytes)
    assert header == expected.header
    assert bytes(store.pin(location)) == expected.body


def doubted(bench, sample, pages, damage) -> tuple[SegmentStore, list]:
    """Return an open store and the recovered records. The store's last process had disowned objects, and was
    killed during recovery. Then its tombstones were damaged.
    """
    left_behind(bench, sample, pages, in_order=False)
    (path,) = bench.path.glob("*.tombstones")
    path.write_bytes(damage(path.read_bytes()))
    return bench.open(CAPACITY_BYTES, SEGMENT_BYTES)


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: bytes([raw[0] ^ 1]) + raw[1:],
        lambda raw: raw[:20] + bytes([raw[20] ^ 64]) + raw[21:],
        lambda raw: raw[:24],
        lambda _: b"",
        lambda raw: raw[:4096] + bytes(16) + raw[4112:],
        lambda raw: raw[:4100] + bytes([raw[4100] ^ 64]) + raw[4101:],
    ],
)
def test_a_damaged_list_of_what_was_overwritten_makes_every_page_doubtful(bench, sample, pages, damage):
    """If the tombstones are damaged, every page counts as doubtful. Otherwise a page that was overwritten
    through the proxy would come back and be served.
    """
    store, recovered = doubted(bench, sample, pages, damage)
    assert recovered
    assert {one.header.validated_s for one in recovered} == {0.0}
    assert store.dropped.lists == 1
    # Kill the process now. The damaged tombstones are gone, but no page was checked with the origin yet.
    store._close()
    store, recovered = bench.open(CAPACITY_BYTES, SEGMENT_BYTES)
    assert {one.header.validated_s for one in recovered} == {0.0}
    assert store.dropped.lists == 0


def test_a_whole_list_is_believed(bench, sample, pages):
    store, recovered = doubted(bench, sample, pages, lambda raw: raw)
    assert store.dropped.lists == 0
    found = {one.header.page.ref for one in recovered}
    gone = {sample(n, 1).header.page.ref for n in (0, 7, 11)}
    # A record that was recovered before its object was disowned is the caller's to release.
    assert len(found) >= len(PAGES) - 3
    assert {one.header.validated_s for one in recovered} != {0.0}
    assert gone - found


def test_many_overwritten_objects(bench, sample, pages):
    left_behind(bench, sample, pages, in_order=True)
    store = SegmentStore("disk", bench.path, CAPACITY_BYTES, segment_bytes=SEGMENT_BYTES)
    store.open()
    hashes = [object_hash(sample(n, 1).header.page.ref) for n in PAGES]
    for number in [*range(1000), *hashes[1:]]:
        store.disown(number)
    store._close()
    store, recovered = bench.open(CAPACITY_BYTES, SEGMENT_BYTES)
    assert [one.header.page for one in recovered] == [sample(0, 1).header.page]
    assert store.dropped.lists == 0
    store.close()


@pytest.mark.parametrize("mark", [b"\xff\xfe", b"", b"another boot"])
def test_a_damaged_mark_of_the_boot_counts_as_a_machine_that_went_down(bench, sample, pages, mark):
    left_behind(bench, sample, pages, in_order=False)
    (bench.path / session.BOOT_NAME).write_bytes(mark)
    for path in bench.path.glob("*.cat"):
        path.unlink()  # Catalogues of this boot would be used, so delete them.
    _, recovered = bench.open(CAPACITY_BYTES, SEGMENT_BYTES)
    assert {one.header.validated_s for one in recovered} == {0.0}


def test_a_catalogue_whose_segment_is_gone_is_not_that_of_the_next_one(bench, sample, pages):
    """A catalogue whose segment is gone is not used for the next segment of the same number. A process may be
    killed after it has deleted the segment, and before it deletes the catalogue.
    """
    store, _ = bench.open(CAPACITY_BYTES, SEGMENT_BYTES)
    store.close(pages(store, []))
    left_behind(bench, sample, pages, in_order=True)
    first = min(bench.path.glob("*.seg"))
    number = int(first.stem)
    first.unlink()
    store, before = bench.open(CAPACITY_BYTES, SEGMENT_BYTES)
    added = []
    while not added or added[-1] >> 46 != number:
        added.append(bench.add(store, sample(1000 + len(added), 40_000)))
    store._close()
    _, recovered = bench.open(CAPACITY_BYTES, SEGMENT_BYTES)
    assert {one.location for one in recovered} == {*added, *(one.location for one in before)}
