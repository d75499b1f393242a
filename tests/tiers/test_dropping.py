"""Dropping a cache deletes all files of the tier, in whatever directory they lie. It deletes no other
file.
"""

from pathlib import Path

import pytest

from shadeproxy.tiers import session
from shadeproxy.tiers.dropping import drop_cache


@pytest.fixture
def place(bench):
    """Return another directory for the tombstones."""
    return bench.path.parent / "elsewhere"


def kill(store):
    store.claim.release(clean=False)
    store.claim = None


@pytest.mark.parametrize("ending", ["killed", "closed"])
def test_dropping_a_cache_leaves_nothing_of_it(bench, sample, place, ending):
    store, _ = bench.open(tombstones=place)
    bench.add(store, sample(1, 5000))
    kill(store) if ending == "killed" else store._close()
    (list_of_it,) = place.glob("*.tombstones")
    (place / "of-another.tombstones").touch()
    for path in (list_of_it, bench.path / list_of_it.name):
        path.with_suffix(".new").touch()
    assert drop_cache(bench.path, setting="cache.disk.path", dry_run=True) > 0
    assert list_of_it.exists()
    drop_cache(bench.path, setting="cache.disk.path")
    assert [path.name for path in bench.path.iterdir()] == ["lock"]
    assert [path.name for path in place.iterdir()] == ["of-another.tombstones"]


def test_dropping_a_cache_deletes_no_file_that_its_mark_only_claims(bench, place):
    store, _ = bench.open(tombstones=place)
    store._close()
    precious = bench.path.parent / "precious"
    precious.write_text("mine")
    mark = bench.path / session.STOPPED_NAME
    first, number, _ = mark.read_text().splitlines()
    mark.write_text(f"{first}\n{number}\n{precious}\n")
    drop_cache(bench.path, setting="cache.disk.path")
    assert precious.exists()


@pytest.mark.parametrize("drops", [True, False])
def test_a_catalogue_of_which_a_kill_left_a_part_is_deleted(bench, sample, pages, monkeypatch, drops):
    """The next start deletes it, or the dropping of the cache."""
    store, _ = bench.open()
    samples = {bench.add(store, sample(1, 5000)): sample(1, 5000)}

    def killed(_path, _target):
        raise SystemExit

    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(Path, "rename", killed)
        store.close(pages(store, samples.items()))
    kill(store)
    assert list(bench.path.glob("*.cat.new"))
    if drops:
        drop_cache(bench.path, setting="cache.disk.path")
        assert [path.name for path in bench.path.iterdir()] == ["lock"]
    else:
        _, recovered = bench.open()
        assert len(recovered) == 1
    assert not list(bench.path.glob("*.cat.new"))
