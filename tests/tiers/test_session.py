"""A start decides which records to trust: after kills, failed flushes, lost tombstones, and on media that
were restored from a copy.
"""

import shutil

import pytest

from shadeproxy.core.identity import object_hash
from shadeproxy.tiers import directory, legacy_tombstones, session
from shadeproxy_bench.reliability.kit.faulty_medium import FaultyCalls, MediumFault, scheduled

ZERO = {0.0}


@pytest.fixture
def place(bench, monkeypatch):
    """Return another directory for the tombstones. All media count as media that can lose writes."""
    monkeypatch.setattr("shadeproxy.tiers.erasures.is_tmpfs", lambda _path: False)
    return bench.path.parent / "elsewhere"


def filled(bench, sample, pages, place, *, calls=None):
    """Return a store that was filled, closed in order and opened again, and the locations of its pages by
    number.
    """
    store, _ = bench.open(tombstones=place)
    samples = [(bench.add(store, sample(n, 5000)), sample(n, 5000)) for n in range(4)]
    store._close(pages(store, samples))
    options = {} if calls is None else {"calls": calls}
    store, recovered = bench.open(tombstones=place, **options)
    assert {one.header.validated_s for one in recovered}.isdisjoint(ZERO)
    return store, {int(one.header.page.ref.key[-6:]): one.location for one in recovered}


def overwrite(store, sample, where, number):
    store.disown(object_hash(sample(number, 1).header.page.ref))
    store.release(where[number])


def kill(store):
    store.claim.release(clean=False)
    store.claim = None


def numbers(recovered):
    return {int(one.header.page.ref.key[-6:]) for one in recovered}


def put_back(bench, files):
    """Restore the directory's files to ``files``, as if the medium had lost all later writes."""
    for name, data in files.items():
        (bench.path / name).write_bytes(data)


def held(bench):
    return {path.name: path.read_bytes() for path in bench.path.iterdir()}


FAULTS = (MediumFault.WRITE_EIO, MediumFault.WRITE_EROFS, MediumFault.WRITE_ENOSPC)


@pytest.mark.parametrize(
    ("ending", "fault"),
    [(ending, fault) for ending in ("killed", "closed", "catalogued") for fault in FAULTS],
)
def test_what_could_not_be_erased_never_comes_back(bench, sample, pages, place, *, fault, ending):
    schedule = scheduled()
    store, where = filled(bench, sample, pages, place, calls=FaultyCalls(schedule))
    schedule.enqueue(*[fault] * 100)
    overwrite(store, sample, where, 2)
    assert store.erasures.owed == 1
    assert store.erasures.unsettled
    if ending == "killed":
        kill(store)
    else:
        kept = [(where[n], sample(n, 5000)) for n in (0, 1, 3)]
        store._close(pages(store, kept) if ending == "catalogued" else None)
    _, recovered = bench.open(tombstones=place)
    assert numbers(recovered) == {0, 1, 3}
    assert {one.header.validated_s for one in recovered}.isdisjoint(ZERO), "only what was overwritten went"


def test_what_is_owed_is_tried_again_and_forgotten_then(bench, sample, pages, place):
    schedule = scheduled()
    store, where = filled(bench, sample, pages, place, calls=FaultyCalls(schedule))
    schedule.enqueue(MediumFault.WRITE_EIO, MediumFault.WRITE_EIO)
    overwrite(store, sample, where, 2)
    store.erasures.retry()
    assert store.erasures.owed == 1
    assert not store.erasures.settle(store.erasures.turn())
    assert store.erasures.tombstones == 1
    store.erasures.retry()
    assert store.erasures.owed == 0
    assert store.erasures.settle(store.erasures.turn())
    assert not store.erasures.unsettled
    kill(store)
    assert numbers(bench.open(tombstones=place)[1]) == {0, 1, 3}


@pytest.mark.parametrize("ending", ["killed", "closed"])
def test_an_erasure_that_the_medium_forgets_does_not_count(bench, sample, pages, place, ending):
    """An erasure that the medium loses does not count, because the tombstone is still there. ext4 loses
    erasures if it turns read-only before the page cache is written.
    """
    store, where = filled(bench, sample, pages, place)
    before = held(bench)
    overwrite(store, sample, where, 2)
    if ending == "closed":
        schedule = scheduled(script=[MediumFault.FLUSH_EIO] * 100)
        for segment in store._all_segments():
            segment._calls = FaultyCalls(schedule)
        store._close()
    else:
        kill(store)
    put_back(bench, before)
    _, recovered = bench.open(tombstones=place)
    by_number = {int(one.header.page.ref.key[-6:]): one.header.validated_s for one in recovered}
    assert by_number.get(2, 0.0) == 0.0, "gone, or asked for first"


def test_after_a_flush_that_failed_every_page_is_checked_and_catalogues_of_before_count_for_nothing(
    bench, sample, pages, place
):
    schedule = scheduled()
    store, where = filled(bench, sample, pages, place, calls=FaultyCalls(schedule))
    overwrite(store, sample, where, 2)
    schedule.enqueue(MediumFault.FLUSH_EIO)
    assert not store.erasures.settle(store.erasures.turn())
    assert store.erasures.in_doubt
    # The kernel reports a failure only once. So the next flush succeeds, although writes were lost.
    assert store.erasures.settle(store.erasures.turn())
    store._close()
    _, recovered = bench.open(tombstones=place)
    assert {one.header.validated_s for one in recovered} == ZERO


def test_lost_tombstones_put_everything_in_doubt(bench, sample, pages, place):
    store, where = filled(bench, sample, pages, place)
    overwrite(store, sample, where, 2)
    kill(store)
    shutil.rmtree(place)
    store, recovered = bench.open(tombstones=place)
    assert {one.header.validated_s for one in recovered} == ZERO
    assert store.dropped.lists == 1


def test_after_an_orderly_end_lost_tombstones_are_missed_by_nobody(bench, sample, pages, place):
    store, _ = filled(bench, sample, pages, place)
    store._close()
    shutil.rmtree(place)
    _, recovered = bench.open(tombstones=place)
    assert numbers(recovered) == {0, 1, 2, 3}
    assert {one.header.validated_s for one in recovered}.isdisjoint(ZERO)


@pytest.mark.parametrize("ending", ["killed", "closed"])
def test_a_medium_that_was_put_back_is_noticed(bench, sample, pages, place, ending):
    store, where = filled(bench, sample, pages, place)
    store._close()
    image = held(bench)
    store, _ = bench.open(tombstones=place)
    overwrite(store, sample, where, 2)
    kill(store) if ending == "killed" else store._close()
    shutil.rmtree(bench.path)
    bench.path.mkdir(mode=0o700)
    put_back(bench, image)
    _, recovered = bench.open(tombstones=place)
    assert {one.header.validated_s for one in recovered} == ZERO


def test_another_boot_without_an_orderly_end_puts_everything_in_doubt(
    bench, sample, pages, place, monkeypatch
):
    store, where = filled(bench, sample, pages, place)
    overwrite(store, sample, where, 2)
    kill(store)
    monkeypatch.setattr(directory, "_BOOT_ID", bench.path.parent / "boot_id")
    directory._BOOT_ID.write_text("another boot\n")
    shutil.rmtree(place)
    _, recovered = bench.open(tombstones=place)
    assert {one.header.validated_s for one in recovered} == ZERO


def test_a_clean_end_has_every_erasure_on_the_medium_before_it_says_so(bench, sample, pages, place):
    order = []

    class Watched(FaultyCalls):
        def flush(self, descriptor):
            order.append((bench.path / session.BOOT_NAME).exists())
            super().flush(descriptor)

    store, where = filled(bench, sample, pages, place, calls=Watched(scheduled()))
    store.release(where[2])
    store._close()
    assert order
    assert all(order), "the mark is still there"
    assert not (bench.path / session.BOOT_NAME).exists()


def test_a_directory_of_an_earlier_release_that_was_killed_is_believed(bench, sample, pages, place):
    store, _ = filled(bench, sample, pages, place)
    kill(store)
    shutil.rmtree(place)
    (bench.path / session.BOOT_NAME).write_text(directory._BOOT_ID.read_text())
    _, recovered = bench.open(tombstones=place)
    assert numbers(recovered) == {0, 1, 2, 3}
    assert {one.header.validated_s for one in recovered}.isdisjoint(ZERO)


@pytest.mark.parametrize("damaged", [False, True])
def test_the_list_of_an_earlier_release_that_was_killed_is_taken_over(bench, sample, pages, place, damaged):
    store, _ = filled(bench, sample, pages, place)
    kill(store)
    shutil.rmtree(place)
    (bench.path / session.BOOT_NAME).write_text(directory._BOOT_ID.read_text())
    hashed = object_hash(sample(2, 1).header.page.ref)
    raw = legacy_tombstones._head(1) + legacy_tombstones._slot(1, hashed ^ damaged)
    raw = raw[:-1] + bytes([raw[-1] ^ damaged])
    (bench.path / legacy_tombstones.NAME).write_bytes(raw.ljust(4096, b"\0"))
    store, recovered = bench.open(tombstones=place)
    if damaged:
        assert {one.header.validated_s for one in recovered} == ZERO
        assert store.dropped.lists == 1
    else:
        assert numbers(recovered) == {0, 1, 3}
    assert not (bench.path / legacy_tombstones.NAME).exists()
    # The objects of the old list now have tombstones of this session.
    kill(store)
    assert numbers(bench.open(tombstones=place)[1]) == ({0, 1, 2, 3} if damaged else {0, 1, 3})
