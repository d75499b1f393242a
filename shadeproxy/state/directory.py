"""The state directory: one process locks it. A damaged database in it is renamed, never deleted.

SQLite cannot even read a database if the medium has no room for a journal. In that case, the proxy copies the
database to another medium, together with a journal that a killed process may have left, and reads the copy.
It changes nothing on the full medium.
"""

import errno
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shadeproxy.core.errors import ConfigError
from shadeproxy.core.locks import FULL, LOCK_NAME, Held, lock

DATABASE_NAME = "cache.db"
_MAGIC = b"SQLite format 3\0"
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EIO})
_RIGHTS = f"make the directory and its files readable and writable for user id {os.geteuid()}"
# Advice for errors of SQLite, by their primary result codes.
_HINTS = {
    sqlite3.SQLITE_FULL: "free space there",
    sqlite3.SQLITE_IOERR: "free space there, or mend the disk",
    sqlite3.SQLITE_BUSY: "stop the other process that has it open",
    sqlite3.SQLITE_CANTOPEN: _RIGHTS,
    sqlite3.SQLITE_PERM: _RIGHTS,
    sqlite3.SQLITE_READONLY: _RIGHTS,
}


def hold(path: Path) -> int:
    """Create the directory ``path`` (mode 0700), lock it, and return the descriptor of the lock. Raises
    ConfigError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise refusal(path, error) from error
    try:
        return lock(path / LOCK_NAME)
    except Held as holder:
        raise ConfigError(
            f"state.path: {path} is in use by {holder}; stop it or choose another directory"
        ) from None
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise ConfigError(
                f"state.path: cannot lock {path}: {error.strerror}; choose a local disk"
            ) from error
        raise refusal(path, error) from error


def identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode numbers of the database in ``path``, or None if there is no database."""
    try:
        status = (path / DATABASE_NAME).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def is_database(path: Path) -> bool:
    """Return whether the file of the database in ``path`` begins as databases of SQLite do."""
    try:
        with (path / DATABASE_NAME).open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def refusal(path: Path, error: OSError) -> ConfigError:
    """Return the error to raise if a directory, or a file in it, cannot be used. Its text says why."""
    hint = f"choose a directory that user id {os.geteuid()} can write"
    if error.errno in FULL:
        hint = "free space there or choose another directory"
    # mkdir says "File exists" if a file is in the way.
    reason = "not a directory" if isinstance(error, FileExistsError) else error.strerror
    return ConfigError(f"state.path: cannot use {path}: {reason}", remedy=hint)


def is_sound(path: Path) -> bool:
    """Return True if SQLite's check finds no fault in the pages and indexes of the database in ``path``, or
    if there is no database.

    Raises ConfigError if the database cannot be read for another reason than damage.
    """
    database = path / DATABASE_NAME
    if not database.exists():
        return True
    connection = sqlite3.connect(database)
    try:
        return bool(connection.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",))
    except sqlite3.Error as error:
        refuse_trouble(path, error)
        return False
    finally:
        connection.close()


def refuse_trouble(path: Path, error: BaseException | None) -> None:
    """Raise ConfigError if ``error`` comes from the medium, or from missing permissions. The database itself
    may be undamaged then, so it must not be replaced.
    """
    code = getattr(error, "sqlite_errorcode", None)
    hint = _HINTS.get(code & 0xFF) if code is not None else None
    if hint is not None:
        raise ConfigError(
            f"state.path: cannot use {path / DATABASE_NAME}: {error}; {hint}, or choose another directory"
        ) from error


def move_aside(path: Path) -> Path:
    """Rename the database and its journal. Return the database's new name. Raises OSError."""
    number = 1
    while (target := path / f"{DATABASE_NAME}.damaged-{number}").exists():
        number += 1
    for suffix in ("-wal", "-shm", ""):
        part = path / f"{DATABASE_NAME}{suffix}"
        if part.exists():
            part.rename(f"{target}{suffix}")
    return target


_ROOM_BYTES = 1 << 20
"""The room that SQLite needs on the medium, with a reserve: its journal and the journal's index take at least
36 KiB.
"""
_PLACES = (None, Path("/dev/shm"))  # noqa: S108 - the files made there are private to this user


def has_no_room(path: Path) -> bool:
    """Return whether the medium of directory ``path`` has too few free bytes for SQLite, or no free inode."""
    try:
        status = os.statvfs(path)
    except OSError:
        return False
    return status.f_bavail * status.f_frsize < _ROOM_BYTES or (status.f_files > 0 and status.f_favail == 0)


@contextmanager
def copied(path: Path) -> Iterator[Path]:
    """Yield a temporary directory with a copy of the database in ``path``. The copy is deleted when the block
    ends.

    Raises OSError, for example if ``path`` has no database.
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
    """Return a directory on a medium with room for ``needed_bytes``; None stands for the system's temporary
    directory. That directory is tried first. It is also the result if no directory has enough room.
    """
    for place in _PLACES:
        status = os.statvfs(place or tempfile.gettempdir())
        if status.f_bavail * status.f_frsize > needed_bytes:
            return place
    return None
