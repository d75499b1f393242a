"""The memory that this process may use. The machine and the process's control groups (v1 and v2) limit it.

Source: cgroups(7), "Memory" in the kernel's cgroup-v2 documentation, memory.txt for version 1. A group's
limit covers all groups below it. So of the limits of the process's group and of all groups above it, the
smallest one applies. Files on a tmpfs take memory too.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from shadeproxy.core.control_groups import Mount, control_groups, mounts

_V1_FILE = "memory.limit_in_bytes"
_V2_FILES = ("memory.max", "memory.high")


class MemoryLimit(NamedTuple):
    """A limit of memory. ``place``: the file that states it, or "this machine"."""

    limit_bytes: int
    place: str


def memory_limit(proc: Path = Path("/proc")) -> MemoryLimit:
    """Return the smallest limit that applies to this process. A limit that cannot be read is ignored."""
    limits = [MemoryLimit(_machine_bytes(), "this machine")]
    with suppress(OSError, ValueError):
        limits += _group_limits(proc)
    return min(limits, key=lambda limit: limit.limit_bytes)


def is_memory(path: Path, proc: Path = Path("/proc")) -> bool:
    """Return whether files below ``path`` take memory because it lies on a tmpfs. ``path`` need not exist."""
    found: list[Mount] = []
    with suppress(OSError, ValueError):
        # Resolve symbolic links: mountinfo lists mount points without links.
        place = Path(os.path.realpath(path))
        found = [mount for mount in mounts(proc) if place.is_relative_to(mount.point)]
    # If several file systems are mounted at the same point, the one that was mounted last hides the others.
    nearest = max(found, key=lambda mount: len(mount.point), default=None)
    last = [mount for mount in found if nearest is not None and mount.point == nearest.point]
    return bool(last) and last[-1].kind in {"tmpfs", "ramfs"}


def _machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _group_limits(proc: Path) -> list[MemoryLimit]:
    found = []
    for directory, version in control_groups("memory", proc):
        for name in (_V1_FILE,) if version == 1 else _V2_FILES:
            file = directory / name
            with suppress(OSError, ValueError):
                # "max" is no number and means that there is no limit.
                found.append(MemoryLimit(int(file.read_text()), str(file)))
    return found
