"""The directory for tombstones may have no room, or may be moved. A start may be killed half-way."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from shadeproxy.core.errors import ConfigError
from shadeproxy.core.identity import object_hash
from shadeproxy.tiers import dropping, session
from shadeproxy.tiers.medium import SystemCalls
from shadeproxy.tiers.tombstones import Tombstones


@pytest.fixture
def place(bench, monkeypatch):
    """Return another directory for the tombstones. All media count as media that can lose writes."""
    monkeypatch.setattr("shadeproxy.tiers.erasures.is_tmpfs", lambda _path: False)
    return bench.path.parent / "elsewhere"


@pytest.fixture
def full(monkeypatch):
    """Return a list of directories. Files in these directories have no room for another byte."""
    directories = []
    real = os.pwrite

    def pwrite(descriptor, data, offset):
        if Path(f"/proc/self/fd/{descriptor}").readlink().parent in directories:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(SystemCalls, "pwrite", staticmethod(pwrite))
    return directories


def kill(store):
    store.claim.release(clean=False)
    store.claim = None


def names(recovered):
    return {int(one.header.page.ref.key[-6:]) for one in recovered}


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("ending", ["killed", "closed"])
def test_a_place_without_room_costs_no_page_and_no_start(bench, sample, place, full, caplog, *, ending):
    store, _ = bench.open(tombstones=place)
    where = {n: bench.add(store, sample(n, 5000)) for n in range(4)}
    store.disown(object_hash(sample(3, 1).header.page.ref))
    kill(store) if ending == "killed" else store._close()
    full.append(place)
    store, recovered = bench.open(tombstones=place)
    assert names(recovered) == ({0, 1, 2} if ending == "killed" else {0, 1, 2, 3})
    assert not store.erasures.in_doubt
    text = f"the tombstones cannot be kept in {place} (No space left on device)"
    assert text in caplog.text
    assert f"they are kept in {bench.path}" in caplog.text
    assert list(place.iterdir()) == [], "nothing there that could be taken for a later use"
    # The next start finds these tombstones, whether the directory has room again or not.
    store.disown(object_hash(sample(2, 1).header.page.ref))
    kill(store)
    full.clear()
    store, recovered = bench.open(tombstones=place)
    assert 2 not in names(recovered)
    assert not store.erasures.in_doubt
    assert list(bench.path.glob("*.tombstones")) == []
    store._close()
    store, _ = bench.open(tombstones=place)
    assert not store.erasures.in_doubt
    assert where


def test_where_the_tier_has_no_room_either_it_makes_some(bench, sample, place, full, monkeypatch):
    store, _ = bench.open(tombstones=place)
    bench.add(store, sample(1, 5000))
    store._close()
    full += [place, bench.path]
    given = []

    def give(path, setting):
        given.append(path)
        full.remove(path)
        return True

    monkeypatch.setattr(dropping, "_give_room", give)
    bench.open(tombstones=place)
    assert given == [bench.path]


def test_room_is_made_under_the_lock_of_the_directory_only(bench, sample, place, full):
    """A start makes room only while it holds the directory's lock. Between a failed start and its next
    attempt, another process may lock the directory.
    """
    store, _ = bench.open(tombstones=place)
    bench.add(store, sample(1, 5000))
    assert not dropping._give_room(bench.path, "cache.disk.path")
    assert list(bench.path.glob("*.seg"))
    assert (bench.path / dropping.RESERVE_NAME).exists()
    store._close()
    assert dropping._give_room(bench.path, "cache.disk.path")
    assert not (bench.path / dropping.RESERVE_NAME).exists()
    assert dropping._give_room(bench.path, "cache.disk.path")
    assert not any(path.stat().st_blocks for path in bench.path.glob("*.seg"))
    bench.open(tombstones=place)


def test_a_place_that_is_moved_away_and_back_leaves_nothing_in_doubt(bench, sample, place):
    other = place.with_name("other")
    for one in (place, other, place, place, other):
        store, recovered = bench.open(tombstones=one)
        assert {found.header.validated_s for found in recovered}.isdisjoint({0.0})
        assert not store.erasures.in_doubt
        if not recovered:
            bench.add(store, sample(1, 5000))
        store._close()
    assert list(place.iterdir()) == [], "what counts no more is deleted"


def test_a_medium_that_was_put_back_is_noticed_after_a_move_too(bench, sample, place):
    store, _ = bench.open(tombstones=place)
    bench.add(store, sample(1, 5000))
    store._close()
    image = {path.name: path.read_bytes() for path in bench.path.iterdir()}
    other = place.with_name("other")
    bench.open(tombstones=other)[0]._close()
    shutil.rmtree(bench.path)
    bench.path.mkdir(mode=0o700)
    for name, data in image.items():
        (bench.path / name).write_bytes(data)
    assert bench.open(tombstones=other)[0].erasures.in_doubt


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("ending", ["fresh", "killed", "closed"])
@pytest.mark.parametrize("method", ["open", "begin", "mark", "begun"])
def test_a_start_that_is_killed_half_way_loses_nothing(
    bench, sample, place, monkeypatch, *, method, ending, moved
):
    if ending != "fresh":
        store, _ = bench.open(tombstones=place)
        bench.add(store, sample(1, 5000))
        kill(store) if ending == "killed" else store._close()
    if moved:
        place = place.with_name("other")
    target = (session, "replace_durably") if method == "mark" else (Tombstones, method)
    real = getattr(*target)

    def killed(*arguments):
        if method == "open":
            real(*arguments)
        raise KeyboardInterrupt

    before = descriptors()
    for _ in range(3):
        monkeypatch.setattr(*target, killed)
        with pytest.raises(KeyboardInterrupt):
            bench.open(tombstones=place)
        monkeypatch.setattr(*target, real)
    assert descriptors() == before
    store, recovered = bench.open(tombstones=place)
    assert not store.erasures.in_doubt
    assert names(recovered) == (set() if ending == "fresh" else {1})
    assert store.dropped.lists == 0


def test_a_start_that_fails_leaves_no_open_file_and_no_half_made_list(bench, place, full):
    bench.open(tombstones=place)[0]._close()
    full += [place, bench.path]
    before = descriptors()
    with pytest.raises(ConfigError, match="No space left on device; free space there"):
        bench.open(tombstones=place)
    assert descriptors() == before
    assert [*place.glob("*.new"), *bench.path.glob("*.new")] == []
