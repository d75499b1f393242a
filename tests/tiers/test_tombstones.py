"""Tombstones survive the end of the process and faults of the medium. If they are lost, all records are in
doubt.
"""

import errno
import os

import pytest

from shadeproxy.core.errors import TierError
from shadeproxy.tiers import tombstones
from shadeproxy.tiers.tombstones import Tombstones


@pytest.fixture
def file(tmp_path):
    opened = Tombstones(tmp_path / "place" / "0.tombstones")
    opened.open()
    yield opened
    opened.close()


def again(file) -> Tombstones:
    """Return the tombstones as the next process finds them."""
    other = Tombstones(file.path)
    assert other.read()
    return other


def test_a_name_is_there_for_the_next_process_until_it_is_forgotten(file):
    for name in (1, 2**64 - 1, 1):
        file.add(name)
    assert again(file).found == {1, 2**64 - 1}
    half = file.turn()
    file.add(3)
    assert again(file).found == {1, 2**64 - 1, 3}
    file.forget(half)
    assert again(file).found == {3}
    assert len(file) == 1


def test_while_one_half_waits_names_of_the_other_are_not_forgotten(file):
    file.add(1)
    first = file.turn()
    file.add(2)
    # The first half has not been forgotten yet, so ``turn`` cannot switch to the other half.
    assert file.turn() == first
    file.add(3)
    file.forget(first)
    assert again(file).found == {2, 3}
    file.forget(file.turn())
    assert again(file).found == set()
    assert file.at_rest


def test_names_of_the_process_before_are_taken_over(file):
    file.add(7)
    other = again(file)
    other.open()
    assert again(file).found == {7}
    other.forget(other.turn())
    assert again(file).found == set()
    other.close()


def test_too_many_names_put_everything_in_doubt(file, monkeypatch):
    monkeypatch.setattr(tombstones, "_SLOTS", 5)
    for name in range(1, 7):
        file.add(name)
    assert file.doubted
    assert again(file).epoch == file.epoch != 0
    before = file.epoch
    file.doubt_all()
    assert again(file).epoch not in {0, before}


def test_a_name_for_which_there_is_no_room_puts_everything_in_doubt(file, monkeypatch):
    real = os.pwrite

    def full(descriptor, data, offset):
        if offset:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    file.add(1)
    assert again(file).epoch == file.epoch != 0


def test_where_nothing_can_be_written_the_error_is_raised_and_nothing_pretended(file, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "pwrite", refuse)
    for _ in range(2):
        with pytest.raises(OSError, match="Read-only file system"):
            file.add(1)
    with pytest.raises(OSError, match="Read-only file system"):
        file.doubt_all()
    assert file.epoch == len(file) == 0
    monkeypatch.undo()
    file.add(1)
    assert again(file).found == {1}


def test_on_a_disk_every_name_is_synced_before_it_counts(file, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    file.on_tmpfs = False
    file.add(1)
    assert len(synced) == 1
    file.on_tmpfs = True
    file.add(2)
    assert len(synced) == 1


def test_every_damaged_byte_is_noticed_or_harmless(file):
    for name in range(1, 40):
        file.add(name)
    raw = file.path.read_bytes()
    for place in [*range(64), *range(4096, 4096 + 39 * 16)]:
        file.path.write_bytes(raw[:place] + bytes([raw[place] ^ 4]) + raw[place + 1 :])
        try:
            assert again(file).found == set(range(1, 40))
        except TierError:
            continue
        assert place >= 40, "the head is hashed"
        assert place < 4096, "every name is hashed"


def test_no_file_is_no_damage(tmp_path):
    assert Tombstones(tmp_path / "none").read() is False
