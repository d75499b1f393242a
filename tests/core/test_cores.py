"""The number of cores that a process may use, read from /proc and cgroup files as kernels and containers show
them.
"""

import os
from pathlib import Path

import pytest

from shadeproxy.core.cores import available_cores

V2 = "30 23 0:26 / {point} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1 = "35 31 0:32 / {point} rw,relatime - cgroup cgroup rw,cpu,cpuacct"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a function ``machine(line of mountinfo, /proc/self/cgroup, {file below the mount: content})``.
    It makes these files, and returns the path that stands for /proc. The process may run on 16 cores.
    """
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)))

    def make(mount: str, group: str, files: dict[str, str]) -> Path:
        own = tmp_path / "proc" / "self"
        own.mkdir(parents=True)
        (own / "mountinfo").write_text(mount.format(point=tmp_path / "groups") + "\n")
        (own / "cgroup").write_text(group)
        for name, content in files.items():
            file = tmp_path / "groups" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        return tmp_path / "proc"

    return make


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"a/b/cpu.max": "max 100000"}, 16),
        ({"a/b/cpu.max": "400000 100000"}, 4),
        ({"a/b/cpu.max": "399999 100000"}, 3),
        ({"a/b/cpu.max": "50000 100000"}, 1),
        ({"a/b/cpu.max": "9900000 100000"}, 16),
        ({"a/b/cpu.max": "800000 100000", "a/cpu.max": "200000 100000"}, 2),
        ({"a/b/cpu.max": "none"}, 16),
        ({}, 16),
    ],
)
def test_version_2(machine, files, cores):
    assert available_cores(machine(V2, "0::/a/b\n", files)) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 16), ("300000", 3)])
def test_version_1(machine, quota, cores):
    files = {"docker/cpu.cfs_quota_us": quota, "docker/cpu.cfs_period_us": "100000"}
    assert available_cores(machine(V1, "4:cpu,cpuacct:/docker\n3:memory:/x\n", files)) == cores


def test_without_groups_the_affinity_counts(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3, 5, 7})
    assert available_cores(tmp_path) == 3
