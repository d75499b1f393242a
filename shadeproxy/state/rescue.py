"""Read the state database on a full medium, where SQLite has no room for the journal that it needs.

Law: nothing changes on that medium. A copy of the database is read, with the journal that a kill left.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shadeproxy.state.directory import DATABASE_NAME

_ROOM_BYTES = 1 << 20
"""SQLite's journal and its index take 36 KiB and more."""
_PLACES = (None, Path("/dev/shm"))  # noqa: S108 - what is made there is private to this user


def has_no_room(path: Path) -> bool:
    """Return whether the medium of a directory is full, of bytes or of inodes."""
    try:
        status = os.statvfs(path)
    except OSError:
        return False
    return status.f_bavail * status.f_frsize < _ROOM_BYTES or (status.f_files > 0 and status.f_favail == 0)


@contextmanager
def copied(path: Path) -> Iterator[Path]:
    """Yield a directory with a copy of the database of ``path``, for as long as the block runs.

    Raises OSError, also where there is no database to copy.
    """
    sources = [path / f"{DATABASE_NAME}{suffix}" for suffix in ("", "-wal")]
    needed_bytes = 2 * sum(source.stat().st_size for source in sources if source.exists()) + _ROOM_BYTES
    with tempfile.TemporaryDirectory(dir=_roomy_place(needed_bytes), prefix="shadeproxy-") as copy:
        shutil.copyfile(sources[0], Path(copy, DATABASE_NAME))
        for source in sources[1:]:
            if source.exists():
                shutil.copyfile(source, Path(copy, source.name))
        yield Path(copy)


def _roomy_place(needed_bytes: int) -> Path | None:
    """Return the first place that has room for the bytes; None is the system's temporary directory."""
    for place in _PLACES:
        status = os.statvfs(place or tempfile.gettempdir())
        if status.f_bavail * status.f_frsize > needed_bytes:
            return place
    return None
