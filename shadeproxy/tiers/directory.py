"""The directory of a tier: who owns it, which format it has, and what to do when it is not ours.

Nothing that this process or an earlier one did not create is ever deleted: a directory of another format is
renamed, a directory with foreign files is refused. Every refusal is a ConfigError that says what to change.
"""

import errno
import fcntl
import json
import logging
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from shadeproxy.core.errors import ConfigError
from shadeproxy.core.units import format_size
from shadeproxy.tiers.medium import punch_hole
from shadeproxy.tiers.record import FORMAT_VERSION
from shadeproxy.tiers.segment import PRIVATE_DIRECTORY, PRIVATE_FILE, SUFFIX, share
from shadeproxy.tiers.session import Session

_logger = logging.getLogger(__name__)

LOCK_NAME = "lock"
VERSION_NAME = "version.json"
PROBE_NAME = "probe"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# A fresh ext4 file system has it in its root, which may well be the cache directory.
_IGNORED = frozenset({"lost+found"})


@dataclass(frozen=True, slots=True)
class Claim:
    """A directory held by this process. ``store_id``: the 64-bit id that its records carry."""

    path: Path
    store_id: int
    descriptor: int
    session: Session

    @property
    def unflushed(self) -> bool:
        """Whether the machine went down while the directory was in use, or erasures were lost: what was
        erased last may have come back, and what was written last may be torn.
        """
        return self.session.unflushed

    @property
    def boot(self) -> int:
        """A number for the boot of the machine that this is, and the last time that all was put in doubt."""
        return self.session.epoch

    def holds_path(self) -> bool:
        """Whether ``path`` is still the directory that was locked."""
        try:
            return os.path.samestat((self.path / LOCK_NAME).stat(), os.fstat(self.descriptor))
        except OSError:
            return False

    def release(self, *, clean: bool = True) -> None:
        """Unlock; ``clean`` after a use that ended in order, with every erasure on the medium. The lock file
        stays: deleting it would let two processes lock two files.
        """
        try:
            self.session.end(clean=clean and self.holds_path())
        except OSError as error:
            _logger.warning("%s stays marked as in use: %s", self.path, error.strerror)
        finally:
            os.close(self.descriptor)


def claim(
    path: Path, *, setting: str, contents: str = "", group_id: int | None = None, place: Path | None = None
) -> Claim:
    """Create or check ``path``, lock it and read its version (blocking I/O).

    ``setting`` is the configuration key that names the directory. ``contents`` says of what it is a cache:
    when that was something else before, the store gets a new id, under which no old record counts.
    ``group_id``: whose members may read the segment files that are there, and enter the directory.
    ``place``: the directory of its tombstones, itself where none is given. Raises ConfigError.
    """
    try:
        held = _claim(path, setting, contents, place or path)
    except OSError as error:
        raise ConfigError(_refusal(path, setting, error)) from error
    try:
        _share(held, setting, group_id)
    except BaseException:
        held.release(clean=False)
        raise
    return held


def _share(held: Claim, setting: str, group_id: int | None) -> None:
    """Who may read what is there, as it is set now and whatever it was before. Raises ConfigError."""
    try:
        for file in held.path.glob(f"*{SUFFIX}"):
            share(file, group_id, mode=PRIVATE_FILE)
        share(held.path, group_id, mode=PRIVATE_DIRECTORY)
    except OSError as error:
        if group_id is None:
            raise ConfigError(
                f"{setting}: cannot change the mode of {error.filename or held.path}: {error.strerror}; "
                f"make user id {os.geteuid()} the owner of all in it, or choose another directory"
            ) from error
        raise ConfigError(
            f"cache.group: cannot give {held.path} to group id {group_id}: {error.strerror}; "
            f"make user id {os.geteuid()} a member of the group, or set cache.group to another ({setting})"
        ) from error


def check_medium(held: Claim, *, setting: str, room_bytes: int) -> None:
    """Refuse a file system that is too full for ``room_bytes`` (what the cache holds already counts as
    room) or that cannot punch holes. Raises ConfigError.
    """
    try:
        own_bytes = sum(file.stat().st_blocks * 512 for file in held.path.glob(f"*{SUFFIX}"))
        status = os.statvfs(held.path)
        free_bytes = own_bytes + status.f_bavail * status.f_frsize
        _probe_hole(held.path / PROBE_NAME)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            raise ConfigError(
                f"{setting}: the file system of {held.path} cannot punch holes; "
                "choose a directory on tmpfs, ext4, xfs or btrfs"
            ) from error
        raise ConfigError(_refusal(held.path, setting, error)) from error
    if free_bytes < room_bytes:
        raise ConfigError(
            f"{setting}: the file system of {held.path} has {format_size(free_bytes)} to use, but the cache "
            f"needs {format_size(room_bytes)} with min_free; free space, lower capacity or min_free, "
            "or choose another directory"
        )


def _probe_hole(path: Path) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, b"probe", 0)
        punch_hole(descriptor, 0, 4096)
    finally:
        os.close(descriptor)
        path.unlink()


def _refusal(path: Path, setting: str, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "free space there or choose another directory"
    else:
        hint = f"choose a directory that user id {os.geteuid()} can write"
    # mkdir says "File exists" of a file that stands in the way.
    reason = "not a directory" if isinstance(error, FileExistsError) else error.strerror
    return f"{setting}: cannot use {path}: {reason}; {hint}"


def _claim(path: Path, setting: str, contents: str, place: Path) -> Claim:
    _prepare(path, setting)
    descriptor = _lock(path, setting)
    try:
        store_id = _read_version(path, contents)
        if store_id is None:
            moved = _move_aside(path)
            _logger.warning("%s: cache of another format moved to %s", setting, moved)
            os.close(descriptor)
            _prepare(path, setting)
            descriptor = _lock(path, setting)
            store_id = _read_version(path, contents) or 0
        session = Session(path, boot=_BOOT_ID.read_text(), place=place, store_id=store_id)
        session.begin()
    except BaseException:
        os.close(descriptor)
        raise
    return Claim(path, store_id, descriptor, session)


def _prepare(path: Path, setting: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.geteuid():
        raise ConfigError(
            f"{setting}: {path} belongs to user id {status.st_uid}, but the proxy runs as "
            f"{os.geteuid()}; change its owner or choose another directory"
        )
    names = {entry.name for entry in path.iterdir()} - _IGNORED
    if names and not names & {LOCK_NAME, VERSION_NAME}:
        raise ConfigError(f"{setting}: {path} has files that are not a cache; choose an empty directory")


def _lock(path: Path, setting: str) -> int:
    descriptor = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise ConfigError(
            f"{setting}: {path} is in use by process {holder}; stop it or choose another directory"
        ) from None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _read_version(path: Path, contents: str) -> int | None:
    """Store id of the directory, made now if it is new; None when the format is not ours."""
    try:
        version = json.loads((path / VERSION_NAME).read_bytes())
        store_id = int(version["store"], 16)
        if version["format"] != FORMAT_VERSION:
            return None
        known = str(version.get("contents", ""))
    except FileNotFoundError:
        return _write_version(path, contents)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if known == contents:
        return store_id
    _logger.warning("%s was a cache of %s and is emptied for %s", path, known or "another origin", contents)
    return _write_version(path, contents)


def _write_version(path: Path, contents: str) -> int:
    store_id = secrets.randbits(64)
    version = {"format": FORMAT_VERSION, "store": f"{store_id:016x}", "contents": contents}
    fresh = path / f"{VERSION_NAME}.new"
    fresh.touch(mode=0o600)
    fresh.write_text(json.dumps(version) + "\n")
    fresh.rename(path / VERSION_NAME)
    return store_id


def _move_aside(path: Path) -> Path:
    number = 1
    while (target := path.with_name(f"{path.name}.incompatible-{number}")).exists():
        number += 1
    path.rename(target)
    return target
