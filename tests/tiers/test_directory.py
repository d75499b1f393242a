"""The directory of a tier: each refusal says what to change, and no file of other programs is ever
deleted.
"""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from shadeproxy.core.errors import ConfigError
from shadeproxy.core.types import ObjectMeta, ObjectRef, Page
from shadeproxy.tiers import directory, session
from shadeproxy.tiers.base import RecordHeader
from shadeproxy.tiers.room import look_at
from shadeproxy.tiers.store import SegmentStore


def refuse(bench, text, **options):
    with pytest.raises(ConfigError, match=text) as caught:
        bench.open(**options)
    return str(caught.value)


def test_a_locked_directory_names_the_holder(bench):
    bench.open()
    text = re.escape(f"cache.disk.path: {bench.path} is in use by process {os.getpid()}; stop it or choose")
    refuse(bench, text)


def test_the_lock_of_a_dead_process_does_not_count(bench):
    code = (
        "import os, sys; from pathlib import Path; from shadeproxy.tiers.store import SegmentStore\n"
        "SegmentStore('disk', Path(sys.argv[1]), 1 << 20).open(); print('locked', flush=True); os.read(0, 1)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(bench.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout.readline() == "locked\n"
        refuse(bench, f"is in use by process {child.pid};")
        child.kill()
    bench.open()


@pytest.mark.parametrize("version", ['{"format": 999, "store": "00"}', "garbage", "[]", '{"format": 1}'])
def test_an_unknown_format_is_moved_aside(bench, sample, version):
    store, _ = bench.open()
    bench.add(store, sample(1, 100))
    store.close()
    (bench.path / directory.VERSION_NAME).write_text(version)
    segments = sorted(file.name for file in bench.path.glob("*.seg"))
    store, recovered = bench.open()
    assert recovered == []
    bench.add(store, sample(2, 100))
    store.close()
    aside = bench.path.with_name("tier.incompatible-1")
    assert sorted(file.name for file in aside.glob("*.seg")) == segments
    (bench.path / directory.VERSION_NAME).write_text(version)
    bench.open()
    assert bench.path.with_name("tier.incompatible-2").is_dir()


def test_a_full_disk_behind_a_directory_that_was_moved_aside_is_named(bench, sample, monkeypatch):
    store, _ = bench.open()
    bench.add(store, sample(1, 100))
    store.close()
    (bench.path / directory.VERSION_NAME).write_text("garbage")
    closed, close = [], os.close

    def noted(descriptor):
        closed.append(descriptor)
        close(descriptor)

    def full(path, *_):
        if path.with_name("tier.incompatible-1").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return prepare(path, *_)

    prepare = directory._prepare
    monkeypatch.setattr(directory, "_prepare", full)
    monkeypatch.setattr(os, "close", noted)
    refuse(bench, os.strerror(errno.ENOSPC))
    assert len(set(closed)) == len(closed)


def test_foreign_files_are_refused_and_kept(bench):
    bench.path.mkdir()
    (bench.path / "thesis.tex").write_text("years of work")
    refuse(bench, "has files that are not a cache; choose an empty directory")
    assert (bench.path / "thesis.tex").read_text() == "years of work"
    assert [file.name for file in bench.path.iterdir()] == ["thesis.tex"]


def test_the_root_of_a_fresh_file_system_is_empty_enough(bench):
    (bench.path / "lost+found").mkdir(parents=True)
    bench.open()


def test_files_that_only_look_like_segments_are_left_alone(bench, sample):
    store, _ = bench.open()
    bench.add(store, sample(1, 100))
    store.close()
    (bench.path / "backup.seg").write_text("mine")
    (bench.path / "000099.seg").touch()
    _, recovered = bench.open()
    assert len(recovered) == 1
    assert (bench.path / "backup.seg").read_text() == "mine"
    assert not (bench.path / "000099.seg").exists()


def test_wrong_owner(bench, monkeypatch):
    bench.path.mkdir()
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    refuse(
        bench, f"belongs to user id {owner}, but the proxy runs as {owner + 1}; change its owner or choose"
    )


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (errno.EROFS, "choose a directory that user id"),
        (errno.EACCES, "choose a directory that user id"),
        (errno.ENOSPC, "free space there or choose another directory"),
    ],
)
def test_an_unwritable_directory(bench, monkeypatch, code, hint):
    real = os.open

    def fail(path, flags, *rest, **options):
        if flags & os.O_CREAT and str(path).startswith(str(bench.path)):
            raise OSError(code, os.strerror(code))
        return real(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", fail)
    refuse(bench, re.escape(f"cache.disk.path: cannot use {bench.path}: {os.strerror(code)}; {hint}"))


def test_a_start_can_do_without_a_further_disk(tmp_path):
    """A start can leave out one of several disks. Each disk has a table in the settings, and the refusal
    names the table to leave out.
    """
    (tmp_path / "disk").touch()
    store = SegmentStore("disks[1]", tmp_path / "disk", 1 << 20)
    with pytest.raises(
        ConfigError, match=r"^cache\.disks\[1\]\.path: .*, or leave its table out until the disk"
    ):
        store.open()


def test_a_file_in_the_way(bench):
    bench.path.touch()
    refuse(bench, "cannot use .*: not a directory; choose a directory")


def test_a_file_system_without_holes(bench, monkeypatch):
    def fail(*_):
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(directory, "punch_hole", fail)
    refuse(bench, "cannot punch holes; choose a directory on tmpfs, ext4, xfs or btrfs")


def test_a_file_system_that_can_never_hold_the_capacity(bench):
    total_bytes = look_at(bench.path.parent).total_bytes
    refuse(
        bench,
        "cache.disk.capacity is .*, but the file system of .* has .* in all; lower cache.disk.min_free",
        min_free_bytes=total_bytes,
    )
    bench.open()


def test_a_file_system_that_is_too_full_now_does_not_keep_a_tier_from_starting(
    bench, sample, caplog, monkeypatch
):
    store, _ = bench.open()
    bench.add(store, sample(1, 100))
    store.close()
    # Use fixed numbers, because the free space of a real file system changes during the test.
    total_bytes, free_bytes, room_bytes = 1 << 30, 512 << 10, 128 << 10
    blocks = {"f_blocks": total_bytes // 4096, "f_bavail": free_bytes // 4096, "f_favail": 1, "f_files": 1}
    for name in ("statvfs", "fstatvfs"):
        monkeypatch.setattr(os, name, lambda _: SimpleNamespace(f_frsize=4096, **blocks))
    min_free_bytes = free_bytes - room_bytes
    store, recovered = bench.open(min_free_bytes=min_free_bytes)
    assert len(recovered) == 1
    # The tier may use the free space and the segment that it already has.
    assert room_bytes < store.limit_bytes <= room_bytes + (1 << 18)
    assert "the tier holds less; free space there" in caplog.text


def test_too_many_open_files(bench, sample):
    store, _ = bench.open()
    bench.add(store, sample(1, 100))
    store.close()
    code = (
        "import resource, sys; from pathlib import Path; from shadeproxy.tiers.store import SegmentStore\n"
        "store = SegmentStore('disk', Path(sys.argv[1]), 1 << 20)\n"
        # Enough descriptors for the lock, the tombstones and the probe, and too few for a segment.
        "import os; limit = os.dup(0) + 4; resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))\n"
        "store.open()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(bench.path)], check=False, capture_output=True, text=True
    )
    assert "needs up to 12 open files (ulimit -n)" in done.stderr
    assert len(bench.open()[1]) == 1


def test_closing_after_the_executor_is_shut_down(bench):
    def submit(_):
        raise RuntimeError("cannot schedule new futures after shutdown")

    store = SegmentStore("disk", bench.path, 1 << 20, submit=submit)
    claim = directory.claim(bench.path, setting="cache.disk.path")
    store.claim = claim
    store.close()
    bench.open()


def test_after_the_machine_went_down_pages_are_to_be_checked(tmp_path, recover):
    """After the machine went down, the pages must be checked. A process that did not close leaves its mark
    "boot". The mark names an earlier boot of the machine.
    """
    page = Page(ObjectRef("b", "k"), '"e"', 0)
    header = RecordHeader(page, ObjectMeta('"e"', 4), 4, 1234.5)

    def reopened(boot: str | None) -> float:
        if boot is not None:
            (tmp_path / "c" / "boot").write_text(boot)
        store = SegmentStore("disk", tmp_path / "c", 1 << 20, segment_bytes=1 << 16)
        store.open()
        found = [one.header.validated_s for one in recover(store)]
        store.close()
        return found[0]

    store = SegmentStore("disk", tmp_path / "c", 1 << 20, segment_bytes=1 << 16)
    store.open()
    store.write(store.reserve(store.record_bytes(page, header.meta, 4)), header, b"body")
    store.close()
    assert reopened(None) == 1234.5  # The session has ended in order.
    killed = SegmentStore("disk", tmp_path / "c", 1 << 20, segment_bytes=1 << 16)
    killed.open()
    killed.claim.release(clean=False)
    assert reopened(None) == 1234.5  # The process was killed, but the kernel's page cache has all its writes.
    assert reopened("another boot") == 0
    assert reopened(None) == 0  # The page has not been checked since then.


def test_files_of_another_user_in_a_directory_of_ours(bench, sample, monkeypatch):
    """A start that finds files of another user in the directory is refused with advice. A proxy that was once
    started as root leaves such files.
    """
    store, _ = bench.open()
    bench.add(store, sample(1, 100))
    store.close()

    def fail(*_, **__):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(bench.path / "000000.seg"))

    monkeypatch.setattr(os, "chmod", fail)
    text = refuse(bench, re.escape(f"cannot change the mode of {bench.path / '000000.seg'}: Operation not"))
    assert f"make user id {os.geteuid()} the owner of all in it, or choose another directory" in text
    assert "cache.group" not in text


def test_what_took_the_place_of_a_deleted_directory_is_left_alone(bench, sample, pages):
    store, _ = bench.open()
    one = sample(1, 100)
    location = bench.add(store, one)
    bench.path.rename(bench.path.with_name("aside"))
    bench.path.mkdir()
    (bench.path / session.BOOT_NAME).write_text("of another")
    store.close(pages(store, [(location, one)]))
    assert [path.name for path in bench.path.iterdir()] == [session.BOOT_NAME]


class Sized:
    """A directory whose store is opened with different page sizes."""

    def __init__(self, path, recover):
        self._path, self._recover = path, recover

    def opened(self, page_bytes):
        store = SegmentStore("disk", self._path, 1 << 20, segment_bytes=1 << 16, page_bytes=page_bytes)
        store.open()
        return store

    def fill(self, page_bytes):
        store = self.opened(page_bytes)
        page = Page(ObjectRef("b", "k"), '"e"', 0)
        location = store.reserve(4)
        store.write(location, RecordHeader(page, ObjectMeta('"e"', 4), 4, 1234.5), b"body")
        store.close()

    def pages(self, page_bytes):
        """Return the number of pages that a start with this page size finds."""
        store = self.opened(page_bytes)
        found = len(self._recover(store))
        store.close()
        return found


@pytest.fixture
def sized(tmp_path, recover):
    return Sized(tmp_path / "c", recover)


def test_pages_of_another_size_are_dropped_and_named(sized, tmp_path, caplog):
    sized.fill(1 << 18)
    assert sized.pages(1 << 18) == 1
    assert not caplog.records
    assert sized.pages(1 << 20) == 0
    (record,) = caplog.records
    assert record.getMessage() == (
        f"cache.disk.path: the pages in {tmp_path / 'c'} have 262,144 bytes, and cache.page_size is now"
        " 1,048,576: they are dropped"
    )
    assert sized.pages(1 << 18) == 0, "they do not come back"


def test_an_unused_directory_takes_the_new_page_size(sized, caplog):
    assert sized.pages(1 << 18) == 0
    sized.fill(1 << 20)
    assert sized.pages(1 << 20) == 1
    assert not caplog.records


@pytest.mark.parametrize("deleted", range(4))
def test_a_start_that_is_killed_while_it_drops_pages_leaves_none_to_a_later_one(sized, monkeypatch, deleted):
    sized.fill(1 << 18)
    left, unlink = [deleted], Path.unlink

    def unlink_or_end(path, **options):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        unlink(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", unlink_or_end)
        with pytest.raises(KeyboardInterrupt):
            sized.opened(1 << 20)
    assert sized.pages(1 << 20) == 0


def test_a_version_file_without_a_page_size_means_the_usual_one(sized, tmp_path):
    sized.fill(4 << 20)
    file = tmp_path / "c" / "version.json"
    version = json.loads(file.read_text())
    assert version.pop("page_size") == 4 << 20
    file.write_text(json.dumps(version))
    assert sized.pages(4 << 20) == 1
    assert sized.pages(1 << 20) == 0
