"""``shadeproxy check``: its rows about directories that a start would refuse, or that another process has
locked. The command changes nothing.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shadeproxy.cli import looks
from shadeproxy.core.locks import lock
from shadeproxy.tiers.version import VERSION_NAME, write_version

HERE = ("--set", "origin.endpoint=http://origin:7480")


def rows(result, mark):
    """Return the rows with this mark, each as ("name: detail", "what to change")."""
    lines = [*result.stdout.splitlines(), ""]
    return [
        (line.removeprefix(mark).strip(), lines[number + 1].strip().removeprefix("change: "))
        for number, line in enumerate(lines)
        if line.startswith(mark)
    ]


def snapshot(directory: Path) -> dict[str, tuple[bytes, int]]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.fixture
def ram(tmp_path):
    """Return a directory of the RAM tier with a cache of http://origin:7480."""
    path = tmp_path / "ram"
    path.mkdir(mode=0o700)
    (path / "lock").touch()
    (path / "000000.seg").touch()
    write_version(path, "s3 http://origin:7480", 4 << 20)
    return path


@pytest.fixture
def hold():
    """Return a function ``hold(directory, ...)``. It starts a process that locks the directories and listens
    at a port. It returns the port.
    """
    code = (
        "import os, socket, sys; from pathlib import Path; from shadeproxy.core.locks import lock\n"
        "kept = [lock(Path(path) / 'lock') for path in sys.argv[1:]]\n"
        "listener = socket.create_server(('127.0.0.1', 0)); print(listener.getsockname()[1], flush=True)\n"
        "os.read(0, 1)"
    )
    children = []

    def hold(*directories: Path) -> tuple[int, int]:
        command = [sys.executable, "-c", code, *map(str, directories)]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        children.append(child)
        return child.pid, int(child.stdout.readline())

    yield hold
    for child in children:
        child.communicate("\n", timeout=30)


def test_the_cache_of_this_origin_is_well_in_any_spelling(check, ram, tmp_path):
    before = snapshot(tmp_path)
    result = check.run("--set", "origin.endpoint=http://ORIGIN:7480/")
    assert result.exit_code == 0, result.stdout
    assert not rows(result, "warning")
    assert snapshot(tmp_path) == before


def test_pages_of_another_size_are_named_before_a_start_drops_them(check, ram, tmp_path):
    before = snapshot(tmp_path)
    result = check.run("--set", "origin.endpoint=http://origin:7480", "--set", "cache.page_size=1 MiB")
    assert result.exit_code == 0, result.stdout
    text = " ".join(result.stdout.split())
    assert f"{ram} has pages of 4 MiB, and cache.page_size is 1 MiB: a start drops them" in text
    assert 'set cache.page_size = "4 MiB" to keep them' in text
    assert snapshot(tmp_path) == before


def test_the_cache_of_another_origin_fails_with_the_text_of_serve(check, ram, tmp_path):
    before = snapshot(tmp_path)
    result = check.run("--set", "origin.endpoint=http://other:7480")
    assert result.exit_code == 1
    ((found, advice),) = rows(result, "failed")
    assert found == (
        f"cache.ram.path: {ram} is a cache of s3 http://origin:7480, and the origin is now"
        " s3 http://other:7480"
    )
    assert advice == (
        'correct origin.endpoint; or, if both are one origin, set origin.name = "s3 http://origin:7480"; or'
        " drop the cache (shadeproxy purge --all), choose another directory, or set"
        ' cache.on_other_origin = "set-aside" to keep it beside a new one'
    )
    assert snapshot(tmp_path) == before
    result = check.run("--set", "origin.kind=file", "--set", f"origin.path={tmp_path}")
    ((_, advice), *_) = rows(result, "failed")
    assert advice.startswith("correct origin.path; or, if both are one origin,")


def test_a_directory_that_was_never_used_is_well_for_any_origin(check, ram, tmp_path):
    (ram / "000000.seg").unlink()
    before = snapshot(tmp_path)
    result = check.run("--set", "origin.endpoint=http://other:7480")
    assert result.exit_code == 0, result.stdout
    assert not rows(result, "warning")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("version", "what"),
    [
        (None, "the cache of another origin (s3 http://origin:7480)"),
        ({"format": 999, "store": "00"}, "a cache of another format"),
    ],
)
def test_a_cache_that_a_start_would_set_aside_is_a_warning(check, ram, tmp_path, version, what):
    if version is not None:
        (ram / VERSION_NAME).write_text(json.dumps(version))
    before = snapshot(tmp_path)
    result = check.run("--set", "cache.on_other_origin=set-aside")
    assert result.exit_code == 0, result.stdout
    assert rows(result, "warning") == [
        (
            f"cache.ram.path: {ram} has {what}: a start renames it, and begins an empty one",
            "delete it (shadeproxy purge --all) if it is not needed, or choose another directory",
        )
    ]
    assert snapshot(tmp_path) == before


def test_a_directory_with_files_that_are_no_cache_fails(check, tmp_path):
    (tmp_path / "ram").mkdir()
    (tmp_path / "ram" / "thesis.txt").write_text("")
    assert rows(check.run(), "failed") == [
        (f"cache.ram.path: {tmp_path / 'ram'} has files that are not a cache", "choose an empty directory")
    ]


def test_directories_held_by_a_proxy_of_this_configuration_are_information(check, ram, tmp_path, hold):
    (tmp_path / "state").mkdir()
    pid, port = hold(ram, tmp_path / "state")
    before = snapshot(tmp_path)
    listen = ("--set", f"s3.listen=127.0.0.1:{port}", "--set", f"state.path={tmp_path / 'state'}")
    result = check.run(*HERE, *listen)
    assert result.exit_code == 0, result.stdout
    assert (
        f"ok      running proxy: process {pid} holds cache.ram.path and state.path, and listens at s3.listen:"
        " this configuration is in use\n"
    ) in result.stdout
    assert f"ok      s3.listen: 127.0.0.1:{port} is taken by that process\n" in result.stdout
    assert not rows(result, "warning")
    assert snapshot(tmp_path) == before


def test_a_directory_held_by_a_process_that_listens_elsewhere_is_a_warning(check, ram, hold):
    pid, _ = hold(ram)
    result = check.run(*HERE)
    assert result.exit_code == 0, result.stdout
    ((found, advice),) = rows(result, "warning")
    assert found == (
        f"cache.ram.path is held: process {pid} holds {ram}, and listens at no address of this configuration"
    )
    assert advice == (
        "it may be starting or ending; a proxy of another configuration has to be stopped first, or choose"
        " another directory"
    )


def test_a_port_that_somebody_else_took_still_fails_beside_a_held_directory(check, ram, hold, taken_port):
    hold(ram)
    result = check.run(*HERE, "--set", f"s3.listen=127.0.0.1:{taken_port}")
    assert result.exit_code == 1
    assert "s3.listen: 127.0.0.1" in rows(result, "failed")[0][0]


def test_a_check_does_not_keep_a_proxy_from_its_directory(check, ram):
    assert check.run(*HERE).exit_code == 0
    os.close(lock(ram / "lock"))


def test_a_directory_whose_disk_hangs_is_named_in_time(check, ram, monkeypatch):
    monkeypatch.setattr(looks, "LOOK_S", 3.0)
    (ram / VERSION_NAME).unlink()
    os.mkfifo(ram / VERSION_NAME)  # It has no writer, so whatever opens it waits for ever.
    result = check.run(*HERE)
    assert result.exit_code == 1
    detail = f"cache.ram.path: {ram} did not answer within 5 s: its disk hangs"
    change = "see the kernel's log, repair or remount the disk, or set cache.ram.path"
    assert rows(result, "failed") == [(detail, change)]
    assert "ok      memory: not checked, because cache.ram.path does not answer" in result.stdout
    assert "ok      origin: " in result.stdout


def test_a_lock_file_that_hangs_holds_up_no_other_look(check, ram, hold, tmp_path, monkeypatch):
    monkeypatch.setattr(looks, "LOOK_S", 3.0)
    state = tmp_path / "state"
    state.mkdir()
    pid, port = hold(state)
    (ram / "lock").unlink()
    os.mkfifo(ram / "lock")
    result = check.run(*HERE, "--set", f"state.path={state}", "--set", f"s3.listen=127.0.0.1:{port}")
    detail = f"process {pid} holds state.path, and listens at s3.listen: this configuration is in use"
    assert f"running proxy: {detail}" in result.stdout


def test_a_directory_of_buckets_whose_disk_hangs_is_named_in_time(check, monkeypatch, tmp_path):
    monkeypatch.setattr(looks, "LOOK_S", 3.0)
    exists = os.path.exists
    monkeypatch.setattr(
        Path, "exists", lambda path: time.sleep(60) if path.name == "buckets" else exists(path)
    )
    result = check.run("--set", "origin.kind=file", "--set", f"origin.path={tmp_path / 'buckets'}")
    detail = f"origin: {tmp_path / 'buckets'} did not answer within 5 s: its disk hangs"
    change = "see the kernel's log, repair or remount the disk, or set origin.path"
    assert rows(result, "failed") == [(detail, change)]
