"""The memory that this process may use: of the machine, and of its control groups (v1 and v2).

Source: cgroups(7), "Memory" in the kernel's cgroup-v2 documentation, memory.txt for version 1. A group's
limit covers all groups below it, so the smallest limit on the way up counts. Pages of a tmpfs count too.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_V1_FILE = "memory.limit_in_bytes"
_V2_FILES = ("memory.max", "memory.high")


class MemoryLimit(NamedTuple):
    """A limit and its source: ``place`` is the file that holds it, or "this machine"."""

    limit_bytes: int
    place: str


class _Mount(NamedTuple):
    """A line of mountinfo (proc(5)): ``root`` of a file system of type ``kind`` is mounted at ``point``."""

    root: str
    point: str
    kind: str
    options: frozenset[str]


def memory_limit(proc: Path = Path("/proc")) -> MemoryLimit:
    """Return the smallest limit of this process. A limit that cannot be read is ignored."""
    limits = [MemoryLimit(_machine_bytes(), "this machine")]
    with suppress(OSError, ValueError):
        limits += _group_limits(proc)
    return min(limits, key=lambda limit: limit.limit_bytes)


def is_memory(path: Path, proc: Path = Path("/proc")) -> bool:
    """Return whether files in ``path``, existing or not, take memory because it lies on a tmpfs."""
    mounts = []
    with suppress(OSError, ValueError):
        # Resolve links: mountinfo lists mount points without links.
        place = Path(os.path.realpath(path))
        mounts = [mount for mount in _mounts(proc) if place.is_relative_to(mount.point)]
    # Where two mounts have one mount point, the later one hides the earlier.
    nearest = max(mounts, key=lambda mount: len(mount.point), default=None)
    last = [mount for mount in mounts if nearest is not None and mount.point == nearest.point]
    return bool(last) and last[-1].kind in {"tmpfs", "ramfs"}


def _machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _group_limits(proc: Path) -> list[MemoryLimit]:
    found = []
    mounts = _mounts(proc)
    for line in (proc / "self" / "cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        for mount in mounts:
            if mount.kind == ("cgroup" if controllers else "cgroup2") and (
                not controllers or "memory" in mount.options
            ):
                names = (_V1_FILE,) if controllers else _V2_FILES
                found += _limits_up(mount, group, names)
    return found


def _limits_up(mount: _Mount, group: str, names: tuple[str, ...]) -> list[MemoryLimit]:
    """Return the limits of a group and of all groups above it, as far as this mount shows them."""
    # The container does not see its group's path: there the group is the root of the mount.
    inside = Path("/")
    if Path("/", group).is_relative_to(mount.root):
        inside /= Path("/", group).relative_to(mount.root)
    found = []
    for level in (inside, *inside.parents):
        for name in names:
            file = Path(mount.point) / level.relative_to("/") / name
            with suppress(OSError, ValueError):
                # "max" is no number and means no limit.
                found.append(MemoryLimit(int(file.read_text()), str(file)))
    return found


def _mounts(proc: Path) -> list[_Mount]:
    found = []
    for line in (proc / "self" / "mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        _, _, _, root, point, *_ = fields.split(" ")
        kind, _, options = rest.split(" ", 2)
        found.append(_Mount(_unescaped(root), _unescaped(point), kind, frozenset(options.split(","))))
    return found


def _unescaped(path: str) -> str:
    """Return a path of mountinfo, where space, tab, newline and backslash are octal (proc(5))."""
    for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(octal, character)
    return path
