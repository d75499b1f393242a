"""Settings against the machine's memory."""

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from shadeproxy.app import fitting
from shadeproxy.app.fitting import judge_memory, require_memory
from shadeproxy.config import Settings
from shadeproxy.core.errors import ConfigError
from shadeproxy.core.memory_limit import MemoryLimit

MIB = 1024**2
_GROUPS = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


def settings(*values: str) -> Settings:
    return Settings.load(None, ["cache.ram.path=/dev/shm/none", "cache.ram.capacity=512 MiB", *values])


def limit(size_bytes: int) -> MemoryLimit:
    return MemoryLimit(size_bytes, "/sys/fs/cgroup/memory.max")


def test_all_that_takes_memory_counts():
    """512 MiB of tier, 256 MiB in flight, 128 MiB for a process."""
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


def test_it_is_refused_with_what_to_change(monkeypatch):
    monkeypatch.setattr(fitting, "memory_limit", lambda: limit(100 * MIB))
    with pytest.raises(ConfigError, match=r"lower cache.inflight or s3.workers, or raise the limit$"):
        require_memory(settings())


@pytest.fixture
def group():
    """A real control group of 400 MiB, where this machine lets us make one."""
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
    """A process in the group is refused before it takes what it would be killed for."""
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
