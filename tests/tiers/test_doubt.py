"""A doubt ends if the machine has restarted since it arose, if every page was checked, and if the session
ended in order.
"""

import shutil
from dataclasses import replace

import pytest

from shadeproxy.core.identity import object_hash
from shadeproxy.tiers import directory
from shadeproxy_bench.reliability.kit.faulty_medium import FaultyCalls, MediumFault, scheduled

ALL = range(4)


@pytest.fixture
def place(bench, monkeypatch):
    """Return another directory for the tombstones. All media count as media that can lose writes."""
    monkeypatch.setattr("shadeproxy.tiers.erasures.is_tmpfs", lambda _path: False)
    return bench.path.parent / "elsewhere"


@pytest.fixture
def boot(bench, monkeypatch):
    """Return a function ``boot(name)`` that acts as if the machine had restarted."""
    monkeypatch.setattr(directory, "_BOOT_ID", bench.path.parent / "boot_id")

    def start(name):
        directory._BOOT_ID.write_text(f"{name}\n")

    start("first")
    return start


def kill(store):
    store.claim.release(clean=False)
    store.claim = None


def in_doubt(recovered) -> set[int]:
    return {int(one.header.page.ref.key[-6:]) for one in recovered if one.header.validated_s == 0.0}


@pytest.fixture
def cut_off(bench, sample, place, boot):
    """Leave four pages in a cache that was in use when the machine went down."""
    store, _ = bench.open(tombstones=place)
    for number in ALL:
        bench.add(store, sample(number, 5000))
    kill(store)
    boot("second")


def close(store, recovered, pages, sample, *, checked=ALL):
    """End the session in order. In the session, the pages in ``checked`` were checked with the origin."""
    samples = []
    for one in recovered:
        number = int(one.header.page.ref.key[-6:])
        known = sample(number, 5000)
        validated_s = 1.8e9 if number in checked else one.header.validated_s
        samples.append(
            (one.location, type(known)(known.header._replace(validated_s=validated_s), known.body))
        )
    store._close(pages(store, samples))


def test_a_doubt_ends_when_every_page_was_checked(bench, sample, pages, place, cut_off):
    store, recovered = bench.open(tombstones=place)
    assert in_doubt(recovered) == set(ALL)
    close(store, recovered, pages, sample, checked={0, 1, 2})
    store, recovered = bench.open(tombstones=place)
    assert store.erasures.in_doubt
    assert in_doubt(recovered) == {3}, "checked once is enough"
    close(store, recovered, pages, sample)
    store, recovered = bench.open(tombstones=place)
    assert not store.erasures.in_doubt
    # The checks of the earlier session still count after a kill, and without catalogues.
    kill(store)
    for path in bench.path.glob("*.cat"):
        path.unlink()
    store, recovered = bench.open(tombstones=place)
    assert not store.erasures.in_doubt
    assert in_doubt(recovered) == set()
    assert len(recovered) == len(ALL)


@pytest.mark.parametrize("ending", ["killed", "no pages known"])
def test_a_doubt_does_not_end_without_an_orderly_end(bench, place, cut_off, *, ending):
    store, recovered = bench.open(tombstones=place)
    kill(store) if ending == "killed" else store._close()
    store, recovered = bench.open(tombstones=place)
    assert store.erasures.in_doubt
    assert in_doubt(recovered) == set(ALL)


def test_a_flush_that_fails_in_a_use_in_doubt_begins_another_doubt(bench, sample, pages, place, cut_off):
    schedule = scheduled()
    store, recovered = bench.open(tombstones=place, calls=FaultyCalls(schedule))
    schedule.enqueue(MediumFault.FLUSH_EIO)
    close(store, recovered, pages, sample)
    store, recovered = bench.open(tombstones=place)
    assert store.erasures.in_doubt
    kill(store)


@pytest.mark.parametrize("is_new", [False, True])
def test_a_store_that_was_left_out_is_in_doubt_until_every_page_was_checked(
    bench, sample, pages, place, boot, *, is_new
):
    if not is_new:
        store, recovered = bench.open(tombstones=place)
        for number in ALL:
            bench.add(store, sample(number, 5000))
        store._close()
    store, recovered = bench.open(tombstones=place, left_out=lambda _id: True)
    assert store.erasures.in_doubt == (not is_new)
    assert in_doubt(recovered) == (set() if is_new else set(ALL))
    close(store, recovered, pages, sample)
    store, recovered = bench.open(tombstones=place, left_out=lambda _id: False)
    assert not store.erasures.in_doubt
    assert not in_doubt(recovered)


@pytest.mark.parametrize("left_out", [False, True])
def test_what_a_flush_lost_stays_in_doubt_until_the_machine_starts_again(
    bench, sample, pages, place, boot, *, left_out
):
    """After a failed flush the pages stay in doubt until the machine restarts. Until then the kernel's page
    cache hides the true contents of the medium. So no check can end the doubt.
    """
    schedule = scheduled()
    store, _ = bench.open(tombstones=place, calls=FaultyCalls(schedule))
    where = [bench.add(store, sample(number, 5000)) for number in ALL]
    store.disown(object_hash(sample(3, 1).header.page.ref))
    store.release(where[3])
    schedule.enqueue(MediumFault.FLUSH_EIO)
    assert not store.erasures.settle(store.erasures.turn())
    kill(store)
    for _ in range(2):
        store, recovered = bench.open(tombstones=place, left_out=lambda _id: left_out)
        assert store.erasures.in_doubt
        close(store, recovered, pages, sample)
    boot("second")
    store, recovered = bench.open(tombstones=place)
    assert in_doubt(recovered) == {0, 1, 2}
    close(store, recovered, pages, sample)
    assert not bench.open(tombstones=place)[0].erasures.in_doubt


def test_lost_tombstones_leave_a_doubt_until_the_machine_starts_again(bench, sample, pages, place, boot):
    """Lost tombstones leave a doubt until the machine restarts, because they may have recorded a flush that
    failed.
    """
    store, _ = bench.open(tombstones=place)
    bench.add(store, sample(1, 5000))
    kill(store)
    shutil.rmtree(place)
    for name in ("first", "second"):
        boot(name)
        store, recovered = bench.open(tombstones=place)
        assert store.erasures.in_doubt
        close(store, recovered, pages, sample)
    assert not bench.open(tombstones=place)[0].erasures.in_doubt


def test_a_segment_that_cannot_be_read_keeps_the_doubt(bench, sample, pages, place, cut_off):
    store, recovered = bench.open(tombstones=place)
    close(store, recovered, pages, sample, checked=())
    store, recovered = bench.open(tombstones=place)
    samples = [(one.location, sample(int(one.header.page.ref.key[-6:]), 5000)) for one in recovered]
    store._pending._segments[99] = (next(iter(store._space.segments.values())), 0)
    store._close(pages(store, samples))
    assert bench.open(tombstones=place)[0].erasures.in_doubt


@pytest.mark.parametrize(("etag", "ends"), [('"1"', True), ('"2"', False)])
def test_a_page_is_checked_with_another_page_of_its_version(bench, sample, pages, place, boot, *, etag, ends):
    """A check of one page also counts for the other pages of its version. The origin is asked about a version
    of an object, and not about each page.
    """
    store, _ = bench.open(tombstones=place)

    def version(etag, number):
        header, body = sample(1, 5000).header, sample(1, 5000).body
        page, meta = header.page._replace(etag=etag, number=number), replace(header.meta, etag=etag)
        return type(sample(1, 1))(header._replace(page=page, meta=meta), body)

    first, second = version('"1"', 0), version(etag, 1)
    for one in (first, second):
        bench.add(store, one)
    kill(store)
    boot("second")
    store, recovered = bench.open(tombstones=place)
    by_number = {one.header.page.number: one.location for one in recovered}
    doubted = type(second)(second.header._replace(validated_s=0.0), second.body)
    store._close(pages(store, [(by_number[0], first), (by_number[1], doubted)]))
    assert bench.open(tombstones=place)[0].erasures.in_doubt is not ends
