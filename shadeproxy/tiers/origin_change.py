"""Judges whether a tier's directory can be used for an origin: its format, the origin that it names, and
whether it was ever used. Lists its files.

Law: only an unused directory, which holds nothing but the small files of a start, is given to another origin.
Any segment, even a damaged or an empty one, and any file of another name or kind makes the directory a cache.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

from shadeproxy.core.locks import LOCK_NAME
from shadeproxy.core.origin_names import canonical_origin
from shadeproxy.tiers import catalogue, legacy_tombstones, tombstones
from shadeproxy.tiers.medium import PROBE_NAME
from shadeproxy.tiers.read_speed import SPEED_NAME
from shadeproxy.tiers.segment import SUFFIX
from shadeproxy.tiers.session import BOOT_NAME, STOPPED_NAME, lists_of
from shadeproxy.tiers.version import INCOMPATIBLE, OTHER_ORIGIN, VERSION_NAME, Version, read_version

RESERVE_NAME = "reserve"
MARKS = frozenset(
    {
        BOOT_NAME,
        f"{BOOT_NAME}.new",
        PROBE_NAME,
        RESERVE_NAME,
        STOPPED_NAME,
        VERSION_NAME,
        f"{VERSION_NAME}.new",
        legacy_tombstones.NAME,
    }
)
"""Names of the small files that a start writes into the directory."""
# A fresh ext4 file system has this entry in its root, and the root may well be the cache directory.
IGNORED = frozenset({"lost+found"})
_UNUSED = MARKS | {LOCK_NAME, SPEED_NAME}
# The names of tombstone files. The RAM tier's directory may also have those of the disk tiers.
_TOMBSTONES = re.compile(
    rf"[0-9a-f]{{16}}({re.escape(tombstones.SUFFIX)}|{re.escape(tombstones.FRESH_SUFFIX)})"
)


def why_unusable(path: Path, version: Version | None, contents: str) -> str:
    """Return why the directory ``path`` cannot be used for the origin ``contents``: ``INCOMPATIBLE``,
    ``OTHER_ORIGIN``, or "" if it can. An unused directory can be used, whatever origin it names. Raises
    OSError.
    """
    if version is None:
        return ""
    if version.store_id is None:
        return INCOMPATIBLE
    return "" if is_of(version, contents) or _is_unused(path) else OTHER_ORIGIN


def is_of(version: Version, contents: str) -> bool:
    """Return whether the version file names the origin ``contents``, in any spelling."""
    return canonical_origin(version.contents) == canonical_origin(contents)


def _is_unused(path: Path) -> bool:
    with os.scandir(path) as entries:
        return all(
            one.name in IGNORED
            or (
                one.is_file(follow_symlinks=False)
                and (one.name in _UNUSED or _TOMBSTONES.fullmatch(one.name) is not None)
            )
            for one in entries
        )


def forget_sessions(path: Path, store_id: int) -> None:
    """Delete the marks and the tombstones of an unused directory, before it becomes another store. The caller
    holds the directory's lock. Raises OSError.

    If the process is killed meanwhile, the directory still counts as unused.
    """
    fresh = f"{store_id:016x}{tombstones.FRESH_SUFFIX}"
    here = [path / fresh, path / f"{store_id:016x}{tombstones.SUFFIX}"]
    # The marks go last, because they name the tombstones.
    marks = [path / name for name in (legacy_tombstones.NAME, BOOT_NAME, STOPPED_NAME)]
    for file in [*lists_of(path, store_id), *here, *marks]:
        with suppress(FileNotFoundError):
            file.unlink()


def files_of(path: Path) -> list[Path]:
    """Return all files of a tier in the order of their deletion.

    The version file and the marks that name tombstones come last. So if the process is killed during the
    deletion, a smaller cache is left that is still valid. Raises OSError.
    """
    there = list(path.iterdir())
    ours = (SUFFIX, catalogue.SUFFIX, catalogue.FRESH_SUFFIX)
    files = [file for file in there if file.name.endswith(ours)]
    version = read_version(path)
    if version is not None and version.store_id is not None:
        fresh = f"{version.store_id:016x}{tombstones.FRESH_SUFFIX}"
        files += lists_of(path, version.store_id)
        files += [file for file in there if file.name == fresh]
    files += [file for file in there if file.suffix == tombstones.SUFFIX]
    marks = [file for file in there if file.name in MARKS]
    return files + sorted(marks, key=lambda file: file.name == VERSION_NAME)
