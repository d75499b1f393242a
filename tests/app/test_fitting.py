"""The settings are compared with the memory, the cores and the descriptors that the machine allows."""

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from shadeproxy.app import fitting
from shadeproxy.app.fitting import (
    judge_descriptors,
    judge_hint_memory,
    judge_memory,
    judge_workers,
    require_fit,
)
from shadeproxy.config import Settings
from shadeproxy.core.errors import ConfigError
from shadeproxy.core.memory_limit import MemoryLimit
from shadeproxy.tiers.record import FORMAT_VERSION

MIB = 1024**2
_GROUPS = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


def settings(*values: str) -> Settings:
    return Settings.load(None, ["cache.ram.path=/dev/shm/none", "cache.ram.capacity=512 MiB", *values])


def limit(size_bytes: int) -> MemoryLimit:
    return MemoryLimit(size_bytes, "/sys/fs/cgroup/memory.max")


def test_all_that_takes_memory_counts():
    """The tier, the fills and the processes count: 512 MiB, 256 MiB and 128 MiB, together 896 MiB."""
    assert judge_memory(settings(), limit(896 * MIB)).possible
    verdict = judge_memory(settings(), limit(895 * MIB))
    assert verdict.cause == (
        "memory: cache.ram.capacity 512.0 MiB, cache.inflight 256.0 MiB and 1 x 128.0 MiB for processes are"
        " 896.0 MiB, but /sys/fs/cgroup/memory.max allows 895.0 MiB, and the kernel would kill the proxy"
    )
    assert verdict.remedy == 'set cache.ram.capacity to at most "511 MiB", or raise the limit'


def test_a_disk_tier_on_a_tmpfs_counts_and_one_on_disk_does_not(tmp_path):
    disk = "cache.disk.capacity=300 MiB"
    assert not judge_memory(settings(disk, "cache.disk.path=/dev/shm/other"), limit(900 * MIB)).possible
    assert judge_memory(settings(disk, f"cache.disk.path={tmp_path}"), limit(900 * MIB)).possible


def test_read_histories_of_a_big_disk_tier_count(tmp_path):
    """Read histories take 12 bytes for each 2 KiB of capacity, at most 768 MiB.

    The memory that is counted for one process already has 64 MiB of them.
    """
    disk = ["cache.disk.capacity=100 GiB", f"cache.disk.path={tmp_path}"]
    verdict = judge_memory(settings(*disk), limit(1400 * MIB))
    assert "539.0 MiB for read histories are 1.4 GiB, but" in verdict.cause
    assert verdict.remedy == 'set cache.ram.capacity to at most "477 MiB", or raise the limit'
    assert judge_memory(settings(*disk), limit(1435 * MIB)).possible
    assert judge_memory(settings(*disk, "policy.name=lru"), limit(900 * MIB)).possible
    assert judge_memory(settings("cache.disk.capacity=20 TiB", disk[1]), limit(1700 * MIB)).possible


@pytest.fixture
def shm():
    """Yield a directory on a tmpfs."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="shadeproxy-[test]-") as path:
        yield Path(path)


def put_aside(path: Path, size_mib: int) -> Path:
    (path / "deeper").mkdir(parents=True)
    (path / "deeper" / "0.seg").write_bytes(bytes(size_mib * MIB))
    return path


def test_caches_set_aside_on_a_tmpfs_count_and_can_be_deleted(shm, tmp_path):
    tier = shm / "ram"
    first = put_aside(shm / "ram.other-origin-1", 3)
    second = put_aside(shm / "ram.incompatible-12", 2)
    for other in ("ram", "ram.other-origin-x", "ram.backup-1", "ram2.other-origin-1"):
        put_aside(shm / other, 9)
    put_aside(tmp_path / "disk.other-origin-1", 9)
    ours = settings(
        f"cache.ram.path={tier}", "cache.disk.capacity=1 GiB", f"cache.disk.path={tmp_path / 'disk'}"
    )
    assert judge_memory(ours, limit(901 * MIB)).possible
    verdict = judge_memory(ours, limit(900 * MIB))
    assert verdict.cause == (
        "memory: cache.ram.capacity 512.0 MiB, cache.inflight 256.0 MiB, 1 x 128.0 MiB for processes and"
        " 5.0 MiB in caches set aside are 901.0 MiB, but /sys/fs/cgroup/memory.max allows 900.0 MiB, and the"
        " kernel would kill the proxy"
    )
    assert verdict.remedy == (
        f'delete {second}, {first}, or set cache.ram.capacity to at most "511 MiB", or raise the limit'
    )
    verdict = judge_memory(ours, limit(800 * MIB))
    assert verdict.remedy == (
        f'delete {second}, {first} and set cache.ram.capacity to at most "416 MiB", or raise the limit'
    )


@pytest.mark.parametrize(
    ("version", "rule", "counts"),
    [
        ({"format": FORMAT_VERSION, "store": "1", "contents": "elsewhere"}, "set-aside", True),
        ({"format": FORMAT_VERSION, "store": "1", "contents": "elsewhere"}, "refuse", False),
        ({"format": 1}, "refuse", True),
        ({"format": FORMAT_VERSION, "store": "1", "contents": "s3.aws"}, "set-aside", False),
        (None, "set-aside", False),
    ],
)
def test_a_cache_that_this_start_would_set_aside_counts(shm, version, rule, counts):
    """A cache that the start would set aside counts: it takes memory beside the new cache.

    The new cache is still empty at that time, but may grow to its capacity.
    """
    ours = settings(f"cache.ram.path={shm}", f"cache.on_other_origin={rule}", "origin.name=s3.aws")
    put_aside(shm / "segments", 2)
    if version is not None:
        (shm / "version.json").write_text(json.dumps(version))
    verdict = judge_memory(ours, limit(897 * MIB))
    assert verdict.possible is not counts
    if counts:
        assert "2.0 MiB in caches set aside" in verdict.cause
        assert verdict.remedy.startswith(f"delete {shm}, or set")


def test_with_two_tiers_in_memory_the_remedy_leaves_room_for_the_other():
    ours = settings("cache.disk.capacity=300 MiB", "cache.disk.path=/dev/shm/other")
    verdict = judge_memory(ours, limit(1000 * MIB))
    assert verdict.remedy == 'set cache.ram.capacity to at most "316 MiB", or raise the limit'


def test_hints_that_may_take_more_than_is_left_start_with_a_warning(monkeypatch, capfd):
    assert judge_hint_memory(settings(), limit((896 + 4096) * MIB)) == (True, "", "")
    verdict = judge_hint_memory(settings(), limit(1896 * MIB))
    assert verdict == (
        True,
        (
            "hints: control.hint_memory is 4.0 GiB, but tiers, reads and processes leave 1000.0 MiB of what"
            " /sys/fs/cgroup/memory.max allows; if hints take more, the kernel kills the proxy"
        ),
        'set control.hint_memory to at most "1000 MiB", or raise the limit',
    )
    monkeypatch.setattr(fitting, "memory_limit", lambda: limit(1896 * MIB))
    require_fit(settings("control.hint_memory=1000 MiB"))
    assert "hint_memory" not in "".join(capfd.readouterr())
    require_fit(settings())
    assert "much memory for hints" in "".join(capfd.readouterr())


def test_it_is_refused_with_what_to_change(monkeypatch):
    monkeypatch.setattr(fitting, "memory_limit", lambda: limit(100 * MIB))
    with pytest.raises(ConfigError, match=r"lower cache.inflight or s3.workers, or raise the limit$"):
        require_fit(settings())


@pytest.mark.parametrize(("workers", "cores"), [(1, 1), (2, 2), ("auto", 1)])
def test_a_core_for_each_process_is_enough(workers, cores):
    assert judge_workers(settings(f"s3.workers={workers}"), cores) == (True, "", "")


@pytest.mark.parametrize(("cores", "shared"), [(1, "1 core"), (3, "3 cores")])
def test_more_workers_than_cores_start_with_a_warning(cores, shared):
    verdict = judge_workers(settings("s3.workers=4"), cores)
    assert verdict == (
        True,
        f"s3.workers: 4 processes share {shared}",
        f'set s3.workers to at most {cores}, or to "auto"',
    )


RAISE = "raise the hard limit (LimitNOFILE=65536, ulimit -Hn, docker --ulimit nofile=65536)"


def test_all_connections_and_segments_need_descriptors():
    """20 segments need 40 descriptors, 4 pools of 128 connections need 512, and 64 are for other things.

    At least one segment, and one connection of each pool, must fit: 70 descriptors, without any client.
    """
    ours = settings("cache.disk.capacity=0")
    assert judge_descriptors(ours, 822) == (True, "", "")
    assert judge_descriptors(ours, 820) == (
        True,
        (
            "descriptors: the proxy may open 820 files and connections, but its tiers and"
            " origin.max_connections may take 616 and clients 205"
        ),
        f"{RAISE}, or lower origin.max_connections",
    )
    assert judge_descriptors(ours, 71).possible
    assert judge_descriptors(ours, 70) == (
        False,
        "descriptors: the proxy may open 70 files and connections, and needs more than 70 without any client",
        RAISE,
    )
    assert judge_descriptors(settings(), resource.RLIM_INFINITY).cause == ""


def test_connections_to_other_proxies_that_share_pages_need_descriptors():
    """Connections to other nodes need as many descriptors as those to the origin: 512 more than without a
    cluster.
    """
    names = ["name=c", "engine=redis://h", "secret=env:S", "pages=owned"]
    ours = settings("cache.disk.capacity=0", *(f"cluster.{name}" for name in names))
    assert judge_descriptors(ours, 1505) == (True, "", "")
    assert "origin.max_connections may take 1128 and clients 375" in judge_descriptors(ours, 1500).cause


@pytest.fixture
def group():
    """Yield the limit file of a real control group of 400 MiB. The test is skipped where none can be made."""
    for root in _GROUPS:
        file = root / "shadeproxy-test" / ("memory.limit_in_bytes" if root.name == "memory" else "memory.max")
        try:
            file.parent.mkdir()
            file.write_text(str(400 * MIB))
        except OSError:
            with suppress(OSError):
                file.parent.rmdir()
            continue
        yield file
        file.parent.rmdir()
        return
    pytest.skip("no control group can be made here")


def test_a_real_group_is_read(group, tmp_path):
    """The limit of the proxy's control group is read. The start is refused, before the kernel could kill the
    proxy for its memory.
    """
    command = [sys.executable, "-m", "shadeproxy", "serve", "--set", "origin.kind=file"]
    values = {
        "origin.path": tmp_path,
        "cache.ram.path": f"/dev/shm/{tmp_path.name}",
        "cache.ram.capacity": "512 MiB",
        "cache.disk.capacity": "0",
        "state.path": tmp_path / "state",
        "s3.listen": "127.0.0.1:0",
        "control.listen": "127.0.0.1:0",
    }
    for key, value in values.items():
        command += ["--set", f"{key}={value}"]
    tasks = group.with_name("cgroup.procs")
    ended = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: tasks.write_text(str(os.getpid())),
    )
    assert ended.returncode == 2, ended.stderr
    assert re.search(
        r"but \S+/shadeproxy-test/memory\.\w+ allows 400\.0 MiB, and the kernel would", ended.stderr
    )
