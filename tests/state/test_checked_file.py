"""A file of checked blocks is always replaced as a whole, and a changed byte in it is always found."""

import os
import random
from contextlib import closing

import pytest

from shadeproxy.core.errors import StateError
from shadeproxy.state.checked_file import CheckedFileWriter, read_checked

BLOCKS = [b"first", b"second" * 50, b"third"]


def write(path, blocks=BLOCKS):
    with closing(CheckedFileWriter(path)) as file:
        for block in blocks:
            file.add(block)
        file.commit()
        return file.size_bytes


@pytest.fixture
def path(tmp_path):
    return tmp_path / "learnt"


def test_blocks_come_back_in_order(path):
    size = write(path)
    assert list(read_checked(path)) == BLOCKS
    assert path.stat().st_size == size


def test_there_may_be_no_file(path):
    assert list(read_checked(path)) == []


def test_only_the_owner_may_read_it(path):
    old = os.umask(0)
    try:
        write(path)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_is_not_committed_leaves_the_old_file(path):
    write(path, [b"old"])
    with closing(CheckedFileWriter(path)) as file:
        file.add(b"new")
    assert list(read_checked(path)) == [b"old"]
    assert list(path.parent.iterdir()) == [path]


def test_a_kill_while_it_is_written_leaves_the_old_file(path):
    write(path, [b"old"])
    with closing(CheckedFileWriter(path)) as killed:
        killed.add(b"new")
        left = path.with_name("learnt.new").read_bytes()
    path.with_name("learnt.new").write_bytes(left)
    assert list(read_checked(path)) == [b"old"]
    write(path, [b"newer"])
    assert list(read_checked(path)) == [b"newer"]
    assert list(path.parent.iterdir()) == [path]


def test_every_changed_byte_is_found(path):
    write(path)
    good, chance = path.read_bytes(), random.Random(1)
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1 << chance.randrange(8)
        path.write_bytes(bad)
        with pytest.raises(StateError, match="damaged"):
            list(read_checked(path))


def test_every_cut_is_found(path):
    write(path)
    good = path.read_bytes()
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(StateError, match=f"{path} is damaged, or cut off"):
            list(read_checked(path))
    path.write_bytes(good + b"x")
    with pytest.raises(StateError, match="it goes on after its end"):
        list(read_checked(path))


def test_blocks_that_changed_places_are_found(path):
    write(path, [b"first", b"other"])
    good = path.read_bytes()
    one = 4 + 5 + 8
    start = len(good) - 2 * one - 4 - 8
    path.write_bytes(
        good[:start] + good[start + one : start + 2 * one] + good[start : start + one] + good[-12:]
    )
    with pytest.raises(StateError, match="damaged"):
        list(read_checked(path))


def test_a_place_that_cannot_be_used_is_named(tmp_path):
    path = tmp_path / "missing" / "learnt"
    with pytest.raises(StateError, match=f"{path} cannot be written: No such file or directory"):
        CheckedFileWriter(path)
    with pytest.raises(StateError, match="cannot be read: Is a directory"):
        list(read_checked(tmp_path))
