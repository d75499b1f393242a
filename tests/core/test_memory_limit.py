"""The memory limits of control groups, read from files as kernels and containers show them."""

from pathlib import Path

import pytest

from shadeproxy.core.memory_limit import is_memory, memory_limit

GIB = 1024**3
V2 = "30 23 0:26 {root} {point} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1 = "35 31 0:32 {root} {point} rw,relatime - cgroup cgroup rw,memory"


@pytest.fixture
def machine(tmp_path):
    """Return a function ``machine(line of mountinfo, /proc/self/cgroup, {file below the mount: content})``.
    It makes these files, and returns the path that stands for /proc.
    """

    def machine(mount: str, group: str, files: dict[str, str], root: str = "/") -> Path:
        point = tmp_path / "cgroup"
        own = tmp_path / "proc" / "self"
        own.mkdir(parents=True)
        (own / "mountinfo").write_text(
            f"22 1 0:2 / / rw - ext4 /dev/x rw\n{mount.format(root=root, point=point)}\n"
        )
        (own / "cgroup").write_text(group)
        for name, content in files.items():
            (point / name).parent.mkdir(parents=True, exist_ok=True)
            (point / name).write_text(content)
        return tmp_path / "proc"

    return machine


def test_version_2_takes_the_smallest_on_the_way_up(machine, tmp_path):
    proc = machine(
        V2,
        "0::/user/job\n",
        {"user/job/memory.max": "max\n", "user/memory.max": f"{GIB}\n", "user/memory.high": f"{2 * GIB}\n"},
    )
    assert memory_limit(proc) == (GIB, str(tmp_path / "cgroup" / "user" / "memory.max"))


def test_version_2_in_a_container_that_sees_its_group_as_the_root(machine, tmp_path):
    proc = machine(V2, "0::/\n", {"memory.max": f"{GIB}\n"})
    assert memory_limit(proc) == (GIB, str(tmp_path / "cgroup" / "memory.max"))


def test_version_1(machine, tmp_path):
    proc = machine(
        V1,
        "5:cpu:/elsewhere\n4:memory:/docker/abc\n0::/\n",
        {
            "docker/abc/memory.limit_in_bytes": f"{GIB}\n",
            "memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert memory_limit(proc) == (GIB, str(tmp_path / "cgroup" / "docker" / "abc" / "memory.limit_in_bytes"))


def test_version_1_in_a_container_without_a_namespace(machine):
    """With version 1, a container without a cgroup namespace gets its own limit. The process sees the group's
    name on the host. The root of the mount is this group.
    """
    proc = machine(V1, "4:memory:/docker/abc\n", {"memory.limit_in_bytes": f"{GIB}\n"}, root="/docker/abc")
    assert memory_limit(proc).limit_bytes == GIB


def test_without_limits_the_machine_is_one(machine):
    proc = machine(V2, "0::/\n", {"memory.max": "max\n"})
    found = memory_limit(proc)
    assert found.place == "this machine"
    assert found.limit_bytes > GIB // 4


def test_a_proc_that_cannot_be_read_is_no_limit(tmp_path):
    assert memory_limit(tmp_path).place == "this machine"


def test_this_machine_can_be_read():
    assert memory_limit().limit_bytes > 0


def test_tmpfs_is_memory_and_other_file_systems_are_not(machine, tmp_path):
    proc = machine("40 22 0:9 / {point} rw - tmpfs tmpfs rw", "0::/\n", {"there": ""})
    assert is_memory(tmp_path / "cgroup" / "tier" / "not-there-yet", proc)
    assert not is_memory(tmp_path / "disk", proc)


def test_a_link_to_a_tmpfs_is_memory_and_a_link_from_there_is_not(machine, tmp_path):
    proc = machine("40 22 0:9 / {point} rw - tmpfs tmpfs rw", "0::/\n", {"there/file": ""})
    (tmp_path / "linked").symlink_to(tmp_path / "cgroup" / "there")
    (tmp_path / "cgroup" / "elsewhere").symlink_to(tmp_path / "disk")
    assert is_memory(tmp_path / "linked", proc)
    assert is_memory(tmp_path / "linked" / "not-there-yet", proc)
    assert not is_memory(tmp_path / "cgroup" / "elsewhere", proc)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert not is_memory(tmp_path / "loop", proc)


def test_without_a_table_of_mounts_no_path_is_memory(tmp_path):
    assert not is_memory(tmp_path, tmp_path)
