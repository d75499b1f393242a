"""The memory that this process may use: of the machine, and of its control groups (v1 and v2).

Source: cgroups(7), "Memory" in the kernel's cgroup-v2 documentation, memory.txt for version 1. The limit of a
group holds for all below it, so the smallest on the way up counts. Pages of a tmpfs count against it.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_V1_FILE = "memory.limit_in_bytes"
_V2_FILES = ("memory.max", "memory.high")


class MemoryLimit(NamedTuple):
    """``place``: the file that says so, or "this machine"."""

    limit_bytes: int
    place: str


class _Mount(NamedTuple):
    """A line of mountinfo (proc(5)): what of a file system is mounted where."""

    root: str
    point: str
    kind: str
    options: frozenset[str]


def memory_limit(proc: Path = Path("/proc")) -> MemoryLimit:
    """Return the smallest limit that holds for this process; one that cannot be read is none."""
    limits = [MemoryLimit(_machine_bytes(), "this machine")]
    with suppress(OSError, ValueError):
        limits += _group_limits(proc)
    return min(limits, key=lambda limit: limit.limit_bytes)


def is_memory(path: Path, proc: Path = Path("/proc")) -> bool:
    """Return whether files in ``path``, existing or not, take memory: whether it lies on a tmpfs."""
    mounts = []
    with suppress(OSError, ValueError):
        # Where links lead: mount points are told without any.
        place = Path(os.path.realpath(path))
        mounts = [mount for mount in _mounts(proc) if place.is_relative_to(mount.point)]
    # Of two on one point the later one is on top.
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
    """Limits of a group and of all above it, as far as this mount shows them."""
    # A group outside of what a container sees: its own is the root of the mount.
    inside = Path("/")
    if Path("/", group).is_relative_to(mount.root):
        inside /= Path("/", group).relative_to(mount.root)
    found = []
    for level in (inside, *inside.parents):
        for name in names:
            file = Path(mount.point) / level.relative_to("/") / name
            with suppress(OSError, ValueError):
                # "max" is no number, and no limit.
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
