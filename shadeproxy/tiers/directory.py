"""Claims the directory of a tier for this process: locks it, checks its format, and refuses a directory that
is not the proxy's.

Law: a file that no proxy created is never deleted. A directory of another format is renamed; a directory with
foreign files is refused. Every refusal is a ConfigError with a remedy.
"""

import errno
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shadeproxy.core.errors import ConfigError
from shadeproxy.core.locks import FULL, LOCK_NAME, Held, lock, suppress_full
from shadeproxy.tiers.medium import PROBE_NAME, punch_hole
from shadeproxy.tiers.origin_change import IGNORED, files_of, forget_sessions, is_of, why_unusable
from shadeproxy.tiers.room import judge, look_at
from shadeproxy.tiers.segment import PRIVATE_DIRECTORY, PRIVATE_FILE, SUFFIX, share
from shadeproxy.tiers.session import Session
from shadeproxy.tiers.version import (
    OTHER_ORIGIN,
    USUAL_PAGE_BYTES,
    VERSION_NAME,
    move_aside,
    read_version,
    refuse_other_origin,
    write_version,
)

_logger = logging.getLogger(__name__)

_FURTHER = "cache.disks["  # The settings of further disks begin so. A start can do without these disks.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class HeldDirectory:
    """A directory locked by this process. ``store_id``: the 64-bit id that the directory's records carry."""

    path: Path
    store_id: int
    descriptor: int
    session: Session

    @property
    def unflushed(self) -> bool:
        """True if the machine went down while the directory was in use, or if erasures were lost. The last
        erased records may then be readable again, and the last written records may be torn.
        """
        return self.session.unflushed

    @property
    def boot(self) -> int:
        """A number that changes with each boot of the machine, and whenever all records are put in doubt."""
        return self.session.epoch

    def holds_path(self) -> bool:
        """Return whether ``path`` is still the directory that was locked."""
        try:
            return os.path.samestat((self.path / LOCK_NAME).stat(), os.fstat(self.descriptor))
        except OSError:
            return False

    def release(self, *, clean: bool = True, checked: bool = False) -> None:
        """Unlock the directory. ``clean``: the session ended in order, with every erasure on the medium.
        ``checked``: every page was checked with the origin. The lock file stays: if it were deleted, two
        processes could lock two different files.
        """
        try:
            self.session.end(clean=clean and self.holds_path(), checked=checked)
        except OSError as error:
            _logger.warning("%s stays marked as in use: %s", self.path, error.strerror)
        finally:
            os.close(self.descriptor)


def claim(
    path: Path,
    *,
    setting: str,
    contents: str = "",
    page_bytes: int = USUAL_PAGE_BYTES,
    set_aside: bool = False,
    group_id: int | None = None,
    place: Path | None = None,
    left_out: Callable[[int], bool] | None = None,
) -> HeldDirectory:
    """Create or check ``path``, lock it and read its version (blocking I/O).

    ``setting``: the configuration key that names the directory. ``contents``: the name of the origin that the
    directory caches. A cache of another origin is refused, or with ``set_aside`` renamed; an unused directory
    is given to the new origin. ``page_bytes``: the size of the pages. Pages of another size are dropped,
    because their numbers mean other bytes. ``group_id``: the group whose members may enter the directory and
    read the segment files. ``place``: the directory of the tombstones, by default ``path`` itself.
    ``left_out``: returns True if the proxy's latest start did not use the store with the given id. That store
    may have missed writes, so its pages are in doubt.
    Raises ConfigError.
    """
    try:
        held = _claim(
            path, setting, contents, page_bytes, set_aside=set_aside, place=place or path, left_out=left_out
        )
    except OSError as error:
        raise ConfigError(_refusal(path, setting, error)) from error
    try:
        _share(held, setting, group_id)
    except BaseException:
        held.release(clean=False)
        raise
    return held


def _share(held: HeldDirectory, setting: str, group_id: int | None) -> None:
    """Give the directory and its segments the permissions that ``group_id`` asks for. Raises ConfigError."""
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


def check_medium(held: HeldDirectory, setting: str, capacity_bytes: int, min_free_bytes: int) -> None:
    """Raise ConfigError for a file system that can never hold the capacity or cannot punch holes. Log a
    warning when it has too little room now.
    """
    try:
        room = look_at(held.path)
        _probe_hole(held.path / PROBE_NAME)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            raise ConfigError(
                f"{setting}: the file system of {held.path} cannot punch holes; "
                "choose a directory on tmpfs, ext4, xfs or btrfs"
            ) from error
        raise ConfigError(_refusal(held.path, setting, error)) from error
    key = setting.removesuffix(".path")
    verdict = judge(key, held.path, room, capacity_bytes=capacity_bytes, min_free_bytes=min_free_bytes)
    if not verdict.possible:
        raise ConfigError(verdict.cause, remedy=verdict.remedy)
    if verdict.cause:
        _logger.warning("%s: %s; %s", setting, verdict.cause, verdict.remedy)


def _probe_hole(path: Path) -> None:
    path.unlink(missing_ok=True)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in FULL:
            return  # A full disk must not keep the proxy from starting.
        raise
    try:
        with suppress_full():
            os.pwrite(descriptor, b"probe", 0)
        punch_hole(descriptor, 0, 4096)
    finally:
        os.close(descriptor)
        path.unlink()


def _refusal(path: Path, setting: str, error: OSError) -> str:
    if error.errno in FULL:
        hint = "free space there or choose another directory"
    else:
        hint = f"choose a directory that user id {os.geteuid()} can write"
    if setting.startswith(_FURTHER):
        hint += ", or leave its table out until the disk is back"
    # mkdir reports "File exists" when a file stands in the way.
    reason = "not a directory" if isinstance(error, FileExistsError) else error.strerror
    return f"{setting}: cannot use {path}: {reason}; {hint}"


def _claim(
    path: Path,
    setting: str,
    contents: str,
    page_bytes: int,
    *,
    set_aside: bool,
    place: Path,
    left_out: Callable[[int], bool] | None,
) -> HeldDirectory:
    _prepare(path, setting)
    descriptor = lock_directory(path, setting)
    try:
        version = read_version(path)
        reason = why_unusable(path, version, contents)
        if version is not None and reason == OTHER_ORIGIN and not set_aside:
            refuse_other_origin(path, setting, version.contents, contents)
        if reason:
            moved = move_aside(path, reason)
            _logger.warning("%s: the cache that was there is moved to %s", setting, moved)
            closed, descriptor = descriptor, -1
            os.close(closed)
            _prepare(path, setting)
            descriptor = lock_directory(path, setting)
            version = None
        elif version is not None and version.page_bytes != page_bytes:
            _drop_pages(path, setting, version.page_bytes, page_bytes)
            version = None
        elif version is not None and version.store_id is not None and not is_of(version, contents):
            _logger.info("%s was prepared for %s and never used", path, version.contents)
            forget_sessions(path, version.store_id)
            version = None
        known = None if version is None else version.store_id
        store_id = write_version(path, contents, page_bytes) if known is None else known
        session = Session(path, boot=_BOOT_ID.read_text(), place=place, store_id=store_id)
        # A new store has no pages, so it cannot have missed a write.
        session.begin(left_out=left_out is not None and known is not None and left_out(known))
    except BaseException:
        if descriptor >= 0:
            os.close(descriptor)
        raise
    return HeldDirectory(path, store_id, descriptor, session)


def _drop_pages(path: Path, setting: str, known_bytes: int, page_bytes: int) -> None:
    """Delete the files of a store whose pages have another size. Raises OSError.

    If the process is killed meanwhile, the version file still names the old size, so the next start deletes
    the rest.
    """
    files = files_of(path)
    if any(file.suffix == SUFFIX for file in files):
        _logger.warning(
            "%s: the pages in %s have %s bytes, and cache.page_size is now %s: they are dropped",
            *(setting, path, f"{known_bytes:,}", f"{page_bytes:,}"),
        )
    for file in files:
        file.unlink(missing_ok=True)


def _prepare(path: Path, setting: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    refuse_foreign(path, setting)


def refuse_foreign(path: Path, setting: str) -> None:
    """Raise ConfigError if the directory belongs to another user, or has files that are not of a cache.
    Change nothing. Raises OSError.
    """
    status = path.stat()
    if status.st_uid != os.geteuid():
        raise ConfigError(
            f"{setting}: {path} belongs to user id {status.st_uid}, but the proxy runs as {os.geteuid()}",
            remedy="change its owner or choose another directory",
        )
    names = {entry.name for entry in path.iterdir()} - IGNORED
    if names and not names & {LOCK_NAME, VERSION_NAME}:
        raise ConfigError(
            f"{setting}: {path} has files that are not a cache", remedy="choose an empty directory"
        )


def lock_directory(path: Path, setting: str, *, remedy: str = "stop it or choose another directory") -> int:
    """Lock a tier's directory and return the descriptor that holds the lock. ``remedy``: the advice in the
    error when another process holds the lock. Raises ConfigError, OSError.
    """
    try:
        return lock(path / LOCK_NAME)
    except Held as holder:
        raise ConfigError(f"{setting}: {path} is in use by {holder}", remedy=remedy) from None
