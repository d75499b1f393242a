"""Text files that are always replaced as a whole."""

import os
from pathlib import Path

import pytest

from shadeproxy.core.durable_files import replace_durably, write_synced


def test_a_file_is_made_and_replaced_for_its_user_alone(tmp_path):
    path = tmp_path / "mark"
    for text in ("first\n", "x\n"):
        replace_durably(path, text)
        assert path.read_text() == text
        assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_replaced_keeps_its_text_and_leaves_no_other(tmp_path, monkeypatch):
    path = tmp_path / "mark"
    replace_durably(path, "first\n")

    def fail(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        replace_durably(path, "second\n")
    assert path.read_text() == "first\n"
    assert list(tmp_path.iterdir()) == [path]


def test_text_and_directory_are_on_the_medium_before_the_call_returns(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    )
    replace_durably(tmp_path / "mark", "text")
    assert synced == [str(tmp_path / "mark.new"), str(tmp_path)]
    write_synced(tmp_path / "mark", "")
    assert synced[2:] == [str(tmp_path / "mark")]
