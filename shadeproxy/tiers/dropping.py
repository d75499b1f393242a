"""Drop the cache in a tier's directory while no proxy uses it (``shadeproxy purge --all``)."""

import os
from pathlib import Path

from shadeproxy.core.errors import ConfigError
from shadeproxy.core.locks import LOCK_NAME
from shadeproxy.tiers import catalogue, disowned
from shadeproxy.tiers.directory import BOOT_NAME, PROBE_NAME, lock_directory
from shadeproxy.tiers.segment import SUFFIX
from shadeproxy.tiers.version import VERSION_NAME

_NAMES = frozenset(
    {BOOT_NAME, f"{BOOT_NAME}.new", PROBE_NAME, VERSION_NAME, f"{VERSION_NAME}.new", disowned.NAME}
)


def drop_cache(path: Path, *, setting: str, dry_run: bool = False) -> int:
    """Delete every file that a tier keeps in ``path`` and return their size on the medium in bytes.

    Files of other names stay. Returns 0 for a directory that is not there. Raises ConfigError for one that a
    process holds, that is no cache, or whose files cannot be deleted.
    """
    if not path.is_dir():
        return 0
    if not any((path / name).exists() for name in (LOCK_NAME, VERSION_NAME)):
        raise ConfigError(f"{setting}: {path} is no cache of this proxy; nothing was deleted")
    try:
        descriptor = lock_directory(path, setting)
    except OSError as error:
        raise ConfigError(f"{setting}: cannot lock {path}: {error.strerror}; nothing was deleted") from error
    try:
        # Segments first: what is left by a kill in between is a smaller cache, never one without its version.
        files = [file for file in path.iterdir() if file.suffix in {SUFFIX, catalogue.SUFFIX}]
        files += [file for file in path.iterdir() if file.name in _NAMES]
        dropped_bytes = sum(file.stat().st_blocks * 512 for file in files)
        for file in () if dry_run else files:
            file.unlink()
    except OSError as error:
        raise ConfigError(f"{setting}: cannot delete {error.filename}: {error.strerror}") from error
    finally:
        os.close(descriptor)
    return dropped_bytes
