"""A failing medium raises TierError. The tier becomes smaller or takes no more pages, and its pages stay
readable.
"""

import errno
import os
import shutil
from types import SimpleNamespace

import pytest

from shadeproxy.core.errors import TierError, TierFull
from shadeproxy.core.identity import object_hash
from shadeproxy.tiers.medium import SystemCalls
from shadeproxy.tiers.segment import Segment
from shadeproxy.tiers.store import SegmentStore
from shadeproxy_bench.reliability.kit.faulty_medium import FaultyCalls, MediumFault, scheduled


@pytest.fixture
def failing(monkeypatch):
    """Return the state of a failing medium. While its ``errno`` is not None, pwrite raises an OSError with
    this number.
    """
    state = SimpleNamespace(errno=None, calls=0)
    real = os.pwrite

    def pwrite(descriptor, data, offset):
        state.calls += 1
        if state.errno is not None:
            raise OSError(state.errno, os.strerror(state.errno))
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(SystemCalls, "pwrite", staticmethod(pwrite))
    return state


def test_a_full_medium_shrinks_the_tier(bench, sample, failing):
    store, _ = bench.open()
    samples = {bench.add(store, sample(number, 9000)): sample(number, 9000) for number in range(20)}
    failing.errno = errno.ENOSPC
    location = store.reserve(9500)
    with pytest.raises(TierError, match="tier disk cannot write: No space left on device"):
        store.write(location, sample(99, 9000).header, sample(99, 9000).body)
    failing.errno = None
    store.release(location)
    with pytest.raises(TierFull):
        for _ in range(3):
            store.reserve(9500)
    assert store.disabled_reason is None
    victim = next(iter(samples))
    for victim in list(samples)[:8]:
        store.release(victim)
        del samples[victim]
    bench.add(store, sample(50, 9000))
    assert all(bytes(store.pin(location)) == page.body for location, page in samples.items())


@pytest.mark.parametrize(("code", "times"), [(errno.EIO, 8), (errno.EROFS, 1)])
def test_a_broken_medium_switches_the_tier_off(bench, sample, failing, code, times):
    store, _ = bench.open()
    page = sample(1, 5000)
    kept = bench.add(store, page)
    location = store.reserve(6000)
    failing.errno = code
    for _ in range(times):
        assert store.disabled_reason is None
        with pytest.raises(TierError, match="cannot write"):
            store.write(location, page.header, page.body)
    assert store.disabled_reason == f"tier disk takes no more pages: {os.strerror(code)}"
    assert store._health.failures == times
    with pytest.raises(TierError, match="takes no more pages"):
        store.reserve(100)
    assert bytes(store.pin(kept)) == page.body
    with pytest.raises(TierError, match="tier disk cannot erase"):
        store.erase(kept)
    store.release(kept)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_a_process_without_descriptors_does_not_switch_its_tier_off(bench, sample, monkeypatch, code):
    """A process without free descriptors does not switch its tier off. Descriptors become free again when
    clients leave, but a tier that is off stays off until a restart.
    """
    store, _ = bench.open()
    real, refused = Segment.__init__, []

    def refuse(*_arguments, **_options):
        refused.append(code)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Segment, "__init__", refuse)
    first = 0
    while len(refused) < 20:
        try:
            bench.add(store, sample(first, 9000))
            first += 1
        except TierFull:
            pass
    assert store.disabled_reason is None
    assert store._health.failures == len(refused)
    held = store.used_bytes
    monkeypatch.setattr(Segment, "__init__", real)
    bench.fill(store, 9000, first=first)
    assert store.used_bytes > held


@pytest.mark.parametrize(("call", "code"), [("mmap.mmap", errno.ENOMEM), ("os.ftruncate", errno.EFBIG)])
def test_segments_that_cannot_be_made_leave_no_files(bench, sample, monkeypatch, call, code):
    """A tier tries again and again to make a segment, each time under another name."""
    store, _ = bench.open()

    def refuse(*_arguments, **_options):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(call, refuse)
        for number in range(20):
            with pytest.raises(TierError):
                bench.add(store, sample(number, 9000))
    assert list(bench.path.glob("*.seg")) == []
    assert store._health.failures > 1


@pytest.mark.parametrize("ending", ["killed", "closed", "catalogued"])
def test_after_an_erasure_that_failed_no_page_is_trusted(bench, sample, pages, ending):
    """After a failed erasure the next process trusts no page without a check. The record of the overwritten
    page does not show that the page is old, so it would be served.
    """
    schedule = scheduled()
    store, _ = bench.open(calls=FaultyCalls(schedule))
    kept = bench.add(store, sample(1, 5000))
    overwritten = bench.add(store, sample(2, 5000))
    store.close(pages(store, [(kept, sample(1, 5000)), (overwritten, sample(2, 5000))]))
    store, recovered = bench.open(calls=FaultyCalls(schedule))
    schedule.enqueue(MediumFault.WRITE_EIO)
    store.release(next(one.location for one in recovered if one.header == sample(2, 5000).header))
    if ending == "killed":
        store.claim.release(clean=False)
        store.claim = None
    else:
        store.close(pages(store, [(kept, sample(1, 5000))]) if ending == "catalogued" else None)
    _, recovered = bench.open()
    assert sample(1, 5000).header.page in {one.header.page for one in recovered}
    stale = [one for one in recovered if one.header.page == sample(2, 5000).header.page]
    assert [one.header.validated_s for one in stale] == [0.0] * len(stale)


@pytest.mark.parametrize("ending", ["killed", "closed", "retried"])
def test_a_name_that_could_not_be_noted_is_said_and_tried_again(bench, sample, pages, failing, ending):
    """A tombstone that could not be written is reported, and written later. Otherwise the next process would
    serve a page that was overwritten during this process's recovery.
    """
    store, _ = bench.open()
    samples = [(bench.add(store, sample(n, 5000)), sample(n, 5000)) for n in range(3)]
    store.close(pages(store, samples))
    store = type(store)("disk", bench.path, 1 << 20, segment_bytes=1 << 18)
    store.open()
    hashed = object_hash(sample(1, 5000).header.page.ref)
    failing.errno = errno.EIO
    store.disown(hashed)
    assert store._health.failures == 1
    assert "cannot record that its pages of this object are old (Input/output error)" in (
        store.erasures.unmarked([hashed])
    )
    assert not store.erasures.unmarked([hashed + 1])
    assert store.erasures.owes
    failing.errno = None
    if ending == "retried":
        store.erasures.retry()
        assert not store.erasures.unmarked([hashed])
    if ending != "closed":
        store.claim.release(clean=False)
        store.claim = None
    store.close()
    _, recovered = bench.open()
    found = {one.header.page for one in recovered}
    assert found >= {sample(n, 5000).header.page for n in (0, 2)}
    # The old page is left only if the process was killed before it wrote the tombstone. In this case the
    # proxy had not acknowledged the overwrite.
    assert (sample(1, 5000).header.page in found) == (ending == "killed")


def test_single_failures_are_forgiven(bench, sample, failing):
    store, _ = bench.open()
    page = sample(1, 5000)
    for _ in range(20):
        location = store.reserve(6000)
        failing.errno = errno.EIO
        with pytest.raises(TierError):
            store.write(location, page.header, page.body)
        failing.errno = None
        store.write(location, page.header, page.body)
        store.release(location)
    assert store.disabled_reason is None


def test_a_write_that_failed_half_way_is_no_record(bench, sample, monkeypatch):
    store, _ = bench.open()
    page = sample(1, 50_000)
    location = store.reserve(51_000)
    real = os.pwrite
    calls = []

    def short(descriptor, data, offset):
        calls.append(len(data))
        if len(calls) > 2:
            raise OSError(errno.ENOSPC, "full")
        return real(descriptor, data[:20_000], offset)

    monkeypatch.setattr(os, "pwrite", short)
    monkeypatch.setattr(SystemCalls, "pwrite", staticmethod(short))
    with pytest.raises(TierError):
        store.write(location, page.header, page.body)
    monkeypatch.undo()
    assert calls == [50_000, 30_000, 10_000]
    with pytest.raises(TierError):
        store.pin(location)
    store.close()
    assert bench.open()[1] == []


def test_min_free_is_respected_and_given_back_to_others(bench, sample, monkeypatch):
    free = SimpleNamespace(bytes=10 << 20)

    def fstatvfs(_):
        # As on a real file system, the blocks of the tier reduce the free space.
        own = sum(file.stat().st_blocks * 512 for file in bench.path.glob("*.seg"))
        return SimpleNamespace(f_bavail=(free.bytes - own) // 4096, f_frsize=4096)

    monkeypatch.setattr(os, "fstatvfs", fstatvfs)
    store, _ = bench.open(capacity_bytes=1 << 20, min_free_bytes=1 << 20)
    samples = list(bench.fill(store, 9000))
    assert store.used_bytes > 900_000
    free.bytes = (3 << 20) // 2
    number = 0
    while number < 400:
        number += 1
        try:
            samples.append(bench.add(store, sample(1000 + number, 9000)))
        except TierFull:
            store.release(samples.pop(number * 31 % len(samples)))
    # Half a MiB is left for this tier. The tier measures the free space only now and then, so it may take a
    # little more.
    assert bench.real_bytes() <= (1 << 19) + 20_000
    assert store.used_bytes > 400_000


def test_a_header_that_still_cannot_be_erased_keeps_its_segment_as_it_is(bench, sample, monkeypatch):
    store, _ = bench.open()
    page = sample(1, 50_000)
    location = bench.add(store, page)
    # As long as the header is unchanged, the body is whole. A reader in another process relies on this.
    place = store.locate(location)
    real = os.pwrite

    def pwrite(descriptor, data, offset):
        if not any(data):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(SystemCalls, "pwrite", staticmethod(pwrite))
    store.release(location)
    with pytest.raises(TierError, match="cannot write: Input/output error"):
        bench.add(store, sample(2, 50_000))
    with place.path.open("rb") as file:
        assert os.pread(file.fileno(), place.body_bytes, place.body_offset) == page.body
    monkeypatch.undo()
    bench.add(store, sample(3, 50_000))
    with place.path.open("rb") as file:
        assert os.pread(file.fileno(), 64, place.header_offset) != place.header


def test_a_directory_that_was_deleted_or_replaced_is_told(bench, sample):
    store, _ = bench.open()
    kept = bench.add(store, sample(1, 5000))
    assert not store.is_detached()
    aside = bench.path.rename(bench.path.with_name("aside"))
    assert store.is_detached()
    assert bytes(store.pin(kept)) == sample(1, 5000).body
    assert bytes(store.pin(bench.add(store, sample(2, 5000)))) == sample(2, 5000).body
    bench.path.mkdir()
    (bench.path / "lock").touch()
    assert store.is_detached()
    shutil.rmtree(bench.path)
    aside.rename(bench.path)
    assert not store.is_detached()


def test_a_record_of_a_turn_that_cannot_be_written_harms_no_other(bench, sample, monkeypatch):
    store, _ = bench.open(segment_bytes=1 << 20)
    samples = [sample(number, 5000) for number in range(6)]
    headers, bodies = [one.header for one in samples], [memoryview(one.body) for one in samples]
    metas, sizes_bytes = store.encode_many(
        [one.page for one in headers], [one.meta for one in headers], bodies
    )
    locations = store.reserve_many(sizes_bytes)
    assert store.segments > 0
    write = Segment.write

    def fail_for_one(segment, offset, header, body):
        if body is bodies[3]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        write(segment, offset, header, body)

    monkeypatch.setattr(Segment, "write", fail_for_one)
    errors = store.write_many(locations, headers, bodies, metas)
    assert [error is not None for error in errors] == [False] * 3 + [True] + [False] * 2
    for number in (0, 1, 2, 4, 5):
        assert store.header(locations[number]) == headers[number]
        assert bytes(store.pin(locations[number])) == samples[number].body
    with pytest.raises(TierError):
        store.header(locations[3])


def test_an_object_without_room_after_a_restart_does_not_come_back_once_it_was_written(bench, sample):
    """Recovery evicts the page, because the capacity was lowered, and its erasure fails."""
    store, _ = bench.open()
    for number in range(20):
        bench.add(store, sample(number, 9000))
    store.close()
    calls = FaultyCalls(scheduled(script=[MediumFault.WRITE_EIO] * 1000))
    store, recovered = bench.open(capacity_bytes=150_000, calls=calls)
    assert 0 < len(recovered) < 20
    written = sample(19, 9000).header.page.ref
    assert written not in {found.header.page.ref for found in recovered}
    store.disown(object_hash(written))
    left = type(bench)(bench.path.with_name("left"))
    shutil.copytree(bench.path, left.path)
    again, recovered = left.open()
    doubted = again.erasures.in_doubt
    left.close()
    assert doubted or written not in {found.header.page.ref for found in recovered}


def test_a_segment_whose_data_cannot_be_found_is_kept_for_the_next_start(bench, sample, monkeypatch):
    store, _ = bench.open()
    location = bench.add(store, sample(0, 9000))
    store.close()
    real = os.lseek

    def lseek(descriptor, position, how):
        if how == os.SEEK_DATA:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, position, how)

    with monkeypatch.context() as patched:
        patched.setattr(os, "lseek", lseek)
        store = SegmentStore("disk", bench.path, 1 << 20, segment_bytes=1 << 18)
        store.open()
        assert list(store.arrivals()) == []
        assert store.pending_segments
        store.close()
    _, recovered = bench.open()
    assert [found.location for found in recovered] == [location]
