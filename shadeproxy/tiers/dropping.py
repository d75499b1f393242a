"""Deletes a tier's files while no proxy uses them: all files, or only enough to make room for a start.

A full disk does not keep the proxy from starting. A start must first write a few small files, the marks. On a
full disk the start deletes the directory's reserve file to make room for the marks. If there is no reserve
file, the start deletes a segment, whose pages can be read from the origin again.
"""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Protocol, TypeVar

from shadeproxy.core.errors import ConfigError
from shadeproxy.core.locks import FULL, LOCK_NAME
from shadeproxy.tiers import catalogue
from shadeproxy.tiers.directory import lock_directory
from shadeproxy.tiers.origin_change import RESERVE_NAME, files_of
from shadeproxy.tiers.segment import SUFFIX
from shadeproxy.tiers.version import VERSION_NAME

_RESERVE_BYTES = 64 * 1024
_LEAST_RESERVE_BYTES = 8 * 1024
_STOP_IT = (
    "nothing was deleted. Stop that proxy first; or drop single buckets or prefixes while it runs:"
    " shadeproxy purge s3://BUCKET/PREFIX"
)
_logger = logging.getLogger(__name__)


Store = TypeVar("Store", bound="HasPath")


class HasPath(Protocol):
    name: str
    path: Path


def making_room(open_tier: Callable[[Store], None]) -> Callable[[Store], None]:
    """Return a function that calls ``open_tier``. If the medium has no room for the marks of a start, the
    function deletes a file of the tier and calls ``open_tier`` again.
    """

    @wraps(open_tier)
    def open_with_room(store: Store) -> None:
        while True:
            try:
                open_tier(store)
            except ConfigError as error:
                cause = error.__cause__
                setting = f"cache.{store.name}.path"
                if not (
                    isinstance(cause, OSError) and cause.errno in FULL and _give_room(store.path, setting)
                ):
                    raise
            else:
                _keep_reserve(store.path / RESERVE_NAME)
                return

    return open_with_room


def _keep_reserve(path: Path) -> None:
    """Create the reserve file, so that the next start has room for its marks. On a nearly full medium the
    file is smaller than usual.
    """
    size_bytes = _RESERVE_BYTES
    while not path.exists() and size_bytes >= _LEAST_RESERVE_BYTES:
        try:
            path.touch(mode=0o600)
            path.write_bytes(bytes(size_bytes))
        except OSError:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        size_bytes //= 2


def _give_room(path: Path, setting: str) -> bool:
    """Delete the reserve file or, if there is none, the segment with the highest number that takes room.
    Return False if nothing was deleted, or if another process has locked the directory.
    """
    try:
        descriptor = lock_directory(path, setting)
    except (ConfigError, OSError):
        return False
    try:
        return _delete_one(path)
    finally:
        os.close(descriptor)


def _delete_one(path: Path) -> bool:
    try:
        if (reserve := path / RESERVE_NAME).exists():
            reserve.unlink()
            return True
        for segment in sorted(path.glob(f"*{SUFFIX}"), reverse=True):
            if segment.stat().st_blocks:
                _logger.warning("%s has no room: the cached pages of %s are dropped", path, segment.name)
                segment.with_suffix(catalogue.SUFFIX).unlink(missing_ok=True)
                segment.unlink()
                return True
    except OSError:
        return False
    return False


def drop_cache(path: Path, *, setting: str, dry_run: bool = False) -> int:
    """Delete every file that a tier keeps in ``path``. Return the size of these files on the medium in bytes.

    Files of other names stay. Returns 0 for a missing directory. Raises ConfigError when a process holds the
    directory, when it is not a cache, or when a file cannot be deleted.
    """
    if not path.is_dir():
        return 0
    if not any((path / name).exists() for name in (LOCK_NAME, VERSION_NAME)):
        raise ConfigError(f"{setting}: {path} is no cache of this proxy; nothing was deleted")
    try:
        descriptor = lock_directory(path, setting, remedy=_STOP_IT)
    except OSError as error:
        raise ConfigError(f"{setting}: cannot lock {path}: {error.strerror}; nothing was deleted") from error
    try:
        files = files_of(path)
        dropped_bytes = sum(file.stat().st_blocks * 512 for file in files)
        for file in () if dry_run else files:
            file.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{setting}: cannot delete {error.filename}: {error.strerror}") from error
    finally:
        os.close(descriptor)
    return dropped_bytes
