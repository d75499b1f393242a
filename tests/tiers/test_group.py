"""Only the owner can read the files of a cache. If a group is set, its members can read the segments, and no
other file.
"""

import os
import stat
from pathlib import Path

import pytest

from shadeproxy.app.media import Media
from shadeproxy.config import Settings
from shadeproxy.core.errors import ConfigError
from shadeproxy.tiers import segment
from shadeproxy.tiers.store import SegmentStore


def modes(path):
    """Return mode and group of the directory and of each file in it."""
    found = {"": path, **{entry.name: entry for entry in path.iterdir()}}
    return {
        name: (oct(stat.S_IMODE(entry.stat().st_mode)), entry.stat().st_gid) for name, entry in found.items()
    }


def opened(path, group_id=None):
    store = SegmentStore("ram", path, 1 << 20, segment_bytes=1 << 20, group_id=group_id)
    store.open()
    for arrival in store.arrivals():
        list(store.take_in(arrival))
    store.release(store.reserve(5000))
    store.close()
    return modes(path)


def test_without_a_group_everything_is_the_owners(tmp_path):
    mask = os.umask(0)
    try:
        found = opened(tmp_path / "cache")
    finally:
        os.umask(mask)
    assert found.pop("")[0] == "0o700"
    assert "000000.seg" in found
    assert {mode for mode, _ in found.values()} == {"0o600"}


@pytest.fixture
def chowns(monkeypatch):
    """Record the groups that are set, as (file name, group) in order. Only root could really set them."""
    given = []

    def chown(target, owner, group):
        assert owner == -1
        path = Path(f"/proc/self/fd/{target}").readlink() if isinstance(target, int) else target
        given.append((path.name, group))

    monkeypatch.setattr(segment.os, "chown", chown)
    return given


def test_a_group_may_read_segments_and_nothing_else(tmp_path, chowns):
    found = opened(tmp_path / "cache", group_id=4321)
    assert found.pop("")[0] == "0o750"
    segments = {name for name in found if name.endswith(".seg")}
    assert "000000.seg" in segments
    assert {name for name, (mode, _) in found.items() if mode == "0o640"} == segments
    assert {mode for name, (mode, _) in found.items() if name not in segments} == {"0o600"}
    assert {("cache", 4321), ("000000.seg", 4321)} <= set(chowns)


def test_files_of_an_earlier_run_follow_the_setting(tmp_path, chowns):
    path = tmp_path / "cache"
    for group_id, expected in ((None, "0o600"), (4321, "0o640"), (None, "0o600")):
        store = SegmentStore("ram", path, 1 << 20, segment_bytes=1 << 20, group_id=group_id)
        store.open()
        opened_records = [rows for arrival in store.arrivals() for rows in store.take_in(arrival)]
        store.reserve(5000)  # This makes a segment.
        found = modes(path)
        store.close()
        assert opened_records == []
        assert {mode for name, (mode, _) in found.items() if name.endswith(".seg")} == {expected}
        assert found[""][0] == {"0o600": "0o700", "0o640": "0o750"}[expected]


def test_a_group_that_the_user_may_not_give_is_told(tmp_path, monkeypatch):
    def refused(*_args):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(segment.os, "chown", refused)
    with pytest.raises(
        ConfigError, match=r"cache.group: cannot give .* make user id \d+ a member of the group"
    ):
        opened(tmp_path / "cache", group_id=4321)
    monkeypatch.undo()
    # This start works, because the refused start has released its lock.
    assert opened(tmp_path / "cache")[""][0] == "0o700"


def test_a_group_that_does_not_exist_is_told(tmp_path):
    settings = Settings.load(None, [f"cache.ram.path={tmp_path}", "cache.group=no-such-group"])
    with pytest.raises(ConfigError, match=r'cache\.group = "no-such-group": there is no such group'):
        Media(settings)
