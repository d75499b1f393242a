"""The record of those stores that the latest start used."""

import os

import pytest

from shadeproxy.app.used_stores import NAME, UsedStores
from shadeproxy.core.errors import ConfigError


def reread(directory) -> UsedStores:
    stores = UsedStores(directory)
    stores.read()
    return stores


def test_a_store_that_the_latest_start_did_not_use_was_left_out(tmp_path):
    reread(tmp_path).record([1, 2])
    reread(tmp_path).record([1, 3])
    stores = reread(tmp_path)
    assert [stores.was_left_out(one) for one in (1, 2, 3)] == [False, True, False]
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600


def test_without_a_record_no_store_was_left_out(tmp_path):
    assert not reread(tmp_path).was_left_out(1)


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", bytes(40)])
def test_a_damaged_record_names_no_store(tmp_path, damage):
    (tmp_path / NAME).write_bytes(damage)
    assert reread(tmp_path).was_left_out(1)


def test_a_start_that_cannot_be_recorded_leaves_no_earlier_record(tmp_path, monkeypatch):
    stores = reread(tmp_path)
    stores.record([1])

    fsync, failures = os.fsync, [OSError(28, "No space left on device")]

    def fail_once(descriptor):
        if failures:
            raise failures.pop()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_once)
    stores.record([1, 2])
    assert reread(tmp_path).was_left_out(1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [NAME]


def test_a_start_that_can_record_nothing_is_refused(tmp_path, monkeypatch):
    """A start is refused if it cannot record its stores.

    Otherwise the next start would treat a store that this start leaves out as one that it used.
    """

    def full(*_args, **_fields):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(tmp_path), "touch", full)
    with pytest.raises(ConfigError, match=r"state\.path: cannot use .*: No space left on device"):
        UsedStores(tmp_path).record([1])


def test_a_record_that_cannot_be_cleared_refuses_the_start(tmp_path):
    (tmp_path / NAME).mkdir()
    with pytest.raises(ConfigError, match=r"state\.path: cannot use"):
        UsedStores(tmp_path).record([1])
