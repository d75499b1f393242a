"""The measurement of a directory's read speed leaves no file behind, and never makes a start fail."""

import errno
import os

from shadeproxy.tiers.read_speed import measure_read_speed
from shadeproxy.tiers.segment import SUFFIX

ROOM_BYTES = 1 << 30


def test_a_medium_has_a_speed_and_no_file_stays(tmp_path):
    assert measure_read_speed(tmp_path, ROOM_BYTES) > 1e6
    assert not list(tmp_path.iterdir())


def test_a_medium_without_direct_reads_is_read_as_it_is(tmp_path, monkeypatch):
    real = os.open

    def refuse(path, flags, *mode):
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    assert measure_read_speed(tmp_path, ROOM_BYTES) > 1e6


def test_a_full_tier_without_pages_is_not_measured_and_a_file_of_a_killed_start_goes(tmp_path):
    (tmp_path / "speed").write_bytes(b"left")
    assert measure_read_speed(tmp_path, 1 << 20) == 0.0
    assert not list(tmp_path.iterdir())


def test_a_full_tier_is_measured_by_its_pages(tmp_path):
    full, empty = tmp_path / f"00000001{SUFFIX}", tmp_path / f"00000002{SUFFIX}"
    full.write_bytes(os.urandom(8 << 20))
    with empty.open("wb") as file:
        file.truncate(64 << 20)
    before = full.read_bytes()
    assert measure_read_speed(tmp_path, 0) > 1e6
    assert full.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [full, empty]
    full.write_bytes(before[: 2 << 20])
    assert measure_read_speed(tmp_path, 0) == 0.0


def test_a_failing_medium_has_no_speed(tmp_path, monkeypatch, caplog):
    def fail(*_arguments):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pwrite", fail)
    assert measure_read_speed(tmp_path, ROOM_BYTES) == 0.0
    assert f"the read speed of {tmp_path} is unknown: Input/output error" in caplog.text
    assert not list(tmp_path.iterdir())


def test_a_directory_that_is_gone_has_no_speed(tmp_path):
    assert measure_read_speed(tmp_path / "gone", ROOM_BYTES) == 0.0


def test_a_medium_that_deletes_no_file_has_an_unknown_speed(tmp_path, monkeypatch):
    def refuse(*_arguments, **_options):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "unlink", refuse)
    assert measure_read_speed(tmp_path, ROOM_BYTES) == 0
