"""Judges whether a file system has room for a tier, in the same way for ``check``, ``serve`` and ``doctor``.

A capacity that the file system can never hold is a wrong setting. A capacity that it cannot hold now, because
other files take the space, is no reason to refuse a start: the tier then holds less, and a warning is logged.
"""

import os
from pathlib import Path
from typing import NamedTuple

from shadeproxy.core.units import format_size
from shadeproxy.tiers.segment import SUFFIX

_MIB = 1024**2


class Room(NamedTuple):
    """Space of a file system. ``total_bytes``: all of it. ``free_bytes``: the part that this user may still
    take. ``own_bytes``: the part that the tier's segments take. ``inodes_left``: True if another file can be
    made.
    """

    total_bytes: int
    free_bytes: int
    own_bytes: int
    inodes_left: bool


class Verdict(NamedTuple):
    """The result of ``judge``. ``possible``: False if the capacity is a wrong setting. ``cause``: why the
    tier does not fit; "" if the tier fits.
    """

    possible: bool
    cause: str = ""
    remedy: str = ""


def look_at(path: Path) -> Room:
    """Return the room at ``path``, or at its nearest existing parent. Raises OSError."""
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    status = os.statvfs(existing)
    own_bytes = sum(file.stat().st_blocks * 512 for file in path.glob(f"*{SUFFIX}")) if path.is_dir() else 0
    return Room(
        total_bytes=status.f_blocks * status.f_frsize,
        free_bytes=status.f_bavail * status.f_frsize,
        own_bytes=own_bytes,
        # A file system that makes inodes on demand reports none (btrfs).
        inodes_left=status.f_favail > 0 or status.f_files == 0,
    )


def judge(key: str, path: Path, room: Room, *, capacity_bytes: int, min_free_bytes: int) -> Verdict:
    """Return whether a tier of ``capacity_bytes`` fits. ``key``: the configuration table of the tier, for the
    text of the verdict.
    """
    kept = f" and {key}.min_free {format_size(min_free_bytes)}" if min_free_bytes else ""
    most_bytes = room.total_bytes - min_free_bytes
    if capacity_bytes > most_bytes:
        return Verdict(
            False,
            f"{key}.capacity is {format_size(capacity_bytes)}{kept}, but the file system of {path} has"
            f" {format_size(room.total_bytes)} in all",
            f"{_smaller(key, most_bytes, min_free_bytes)}choose another {key}.path, or enlarge it (tmpfs:"
            " mount -o remount,size=..., docker --shm-size)",
        )
    room_bytes = max(room.free_bytes + room.own_bytes - min_free_bytes, 0)
    if capacity_bytes > room_bytes:
        return Verdict(
            True,
            f"{path} has room for {format_size(room_bytes)}, not for {format_size(capacity_bytes)}{kept}:"
            " the tier holds less",
            f"free space there, {_smaller(key, room_bytes, min_free_bytes)}or choose another {key}.path",
        )
    if not room.inodes_left:
        return Verdict(
            True,
            f"the file system of {path} has no free inodes: the tier makes no more segment files",
            f"delete files there, or choose another {key}.path",
        )
    return Verdict(True)


def _smaller(key: str, most_bytes: int, min_free_bytes: int) -> str:
    """Return the advice to lower settings so that the tier fits. It ends with ", ". Return "" if no capacity
    would help.
    """
    if most_bytes >= _MIB:
        return f'set {key}.capacity to at most "{most_bytes // _MIB} MiB", '
    return f"lower {key}.min_free and {key}.capacity, " if min_free_bytes else ""
