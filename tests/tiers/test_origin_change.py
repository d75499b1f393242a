"""A directory that was never used accepts another origin. In case of doubt it stays with the origin that it
names.
"""

import json

import pytest

from shadeproxy.core.errors import ConfigError
from shadeproxy.tiers import directory
from shadeproxy.tiers.origin_change import RESERVE_NAME
from shadeproxy.tiers.version import VERSION_NAME

HERE, THERE = "s3 http://localhost:7480", "s3 http://localhost:7481"


@pytest.fixture
def unused(bench):
    """Return a bench whose directory was prepared for the origin HERE, and was never used."""
    store, _ = bench.open(contents=HERE)
    store.close()
    return bench


def kept(store):
    """Return whether the records of an open store are used without a check."""
    return not store.claim.unflushed and not store.claim.session.lost_lists


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("set_aside", [False, True])
def test_a_directory_that_was_never_used_takes_another_origin(bench, sample, killed, set_aside):
    place = bench.path.with_name("elsewhere")
    store, _ = bench.open(contents=HERE, tombstones=place)
    first_id = store.claim.store_id
    if killed:
        store.claim.release(clean=False)
        store.claim = None
    store.close()
    (place / "00000000000000aa.tombstones").write_text("of another tier")
    store, _ = bench.open(contents=THERE, tombstones=place, set_aside=set_aside)
    assert kept(store)
    # The new id separates records of the second origin from records that a proxy of the first origin may have
    # written.
    assert store.claim.store_id != first_id
    bench.add(store, sample(1, 100))
    second_id = store.claim.store_id
    store.close()
    assert {file.name for file in place.iterdir()} == {
        "00000000000000aa.tombstones",
        f"{second_id:016x}.tombstones",
    }
    assert not bench.path.with_name("tier.other-origin-1").exists()
    with pytest.raises(ConfigError, match=f"is a cache of {THERE}"):
        bench.open(contents=HERE)
    store, recovered = bench.open(contents=THERE, tombstones=place)
    assert len(recovered) == 1
    assert kept(store)


def test_the_tombstones_of_a_disk_tier_stay_in_a_ram_tier_that_was_never_used(unused):
    of_disk = unused.path / "00000000000000aa.tombstones"
    of_disk.write_text("of the disk tier")
    unused.open(contents=THERE)
    assert of_disk.read_text() == "of the disk tier"


@pytest.mark.parametrize(
    "name", ["000000.seg", "000000.cat", "000000.cat.new", "backup.seg", "thesis.tex", "x.tombstones"]
)
def test_any_file_but_the_marks_of_a_start_keeps_the_directory_for_its_origin(unused, name):
    (unused.path / name).touch()
    with pytest.raises(ConfigError, match=f"is a cache of {HERE}.*nothing was changed"):
        unused.open(contents=THERE)
    assert json.loads((unused.path / VERSION_NAME).read_text())["contents"] == HERE
    assert (unused.path / name).exists()


@pytest.mark.parametrize("what", ["link", "directory"])
def test_a_mark_that_is_no_plain_file_keeps_the_directory_for_its_origin(unused, what, tmp_path):
    (unused.path / RESERVE_NAME).unlink()
    if what == "link":
        (tmp_path / "mine").touch()
        (unused.path / RESERVE_NAME).symlink_to(tmp_path / "mine")
    else:
        (unused.path / RESERVE_NAME).mkdir()
    with pytest.raises(ConfigError, match=f"is a cache of {HERE}"):
        unused.open(contents=THERE)


def test_a_cache_whose_pages_are_all_erased_keeps_its_origin(bench, sample):
    store, _ = bench.open(contents=HERE)
    store.release(bench.add(store, sample(1, 100)))
    store.close()
    with pytest.raises(ConfigError, match=f"is a cache of {HERE}"):
        bench.open(contents=THERE)


def test_a_start_killed_between_origins_leaves_a_directory_for_either(unused, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(directory, "write_version", killed)
        unused.open(contents=THERE)
    for contents in (HERE, THERE):
        store, _ = unused.open(contents=contents)
        assert kept(store)
        store.close()
