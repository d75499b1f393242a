"""Checks the directories of a configuration, and empties them. A check looks at the room of a directory, the
rights on it, its origin, and the process that holds it.

Laws: a check creates and changes nothing. It holds a lock only for a moment; a proxy that starts in that
moment waits for the lock. Disks that hang hold up a command for LOOK_S, however many they are.
"""

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import typer

from shadeproxy.app.bounded_looks import LOOK_S
from shadeproxy.app.fitting import TierSetting, tier_settings
from shadeproxy.app.origins import origin_name
from shadeproxy.cli.looks import Look
from shadeproxy.cli.rows import CheckRow
from shadeproxy.config import Settings
from shadeproxy.config.fields import write_size
from shadeproxy.core.errors import ConfigError
from shadeproxy.core.locks import LOCK_NAME, holder_of, holders_of, suppress_full
from shadeproxy.core.units import format_size
from shadeproxy.tiers.directory import refuse_foreign
from shadeproxy.tiers.dropping import drop_cache
from shadeproxy.tiers.origin_change import why_unusable
from shadeproxy.tiers.room import judge, look_at
from shadeproxy.tiers.segment import SUFFIX
from shadeproxy.tiers.version import OTHER_ORIGIN, VERSION_NAME, other_origin, read_version

_PROCESSES = Path("/proc")
_TABLES = ("tcp", "tcp6")
_LISTENING = "0A"
_FIRST_FILES_BYTES = 64 * 1024  # For the marks, the lock and the tombstones of a new tier.


class Holder(NamedTuple):
    """A process that holds directories. ``directories``: its directories, each under the name of the setting
    for it. ``listens_at``: names of the settings for the addresses at which the process listens.
    """

    described: str
    directories: dict[str, Path]
    listens_at: tuple[str, ...]


class Seen(NamedTuple):
    """A directory as a look showed it. ``holder``: the process that has locked it, as ``holder_of`` names it;
    "" if no process has. ``pids``: the ids of all processes that have the lock file open.
    """

    path: Path
    holder: str = ""
    pids: frozenset[int] = frozenset()


class DirectoryLooks:
    """Looks at all directories of a configuration at the same time."""

    def __init__(self, settings: Settings) -> None:
        checks: dict[str, Callable[[], CheckRow]] = {
            f"{tier.key}.path": partial(check_tier, settings, tier) for tier in tier_settings(settings)
        }
        checks["state.path"] = partial(check_writable, "state.path", settings.state.path)
        self._paths = directories_of(settings)
        self._rows = {setting: Look(check) for setting, check in checks.items()}
        self._holders = {setting: Look(partial(_see, path)) for setting, path in self._paths.items()}

    def rows(self) -> Iterator[CheckRow]:
        """Yield a row for each directory, those of the tiers first."""
        for setting, row in self._rows.items():
            yield hanging(setting, self._paths[setting]) if row.hangs() else row.result()

    def hanging(self) -> list[str]:
        """Return the settings whose directories do not answer."""
        return [setting for setting, row in self._rows.items() if row.hangs()]

    def seen(self) -> dict[str, Seen]:
        """Return the directories that answer, each under the name of the setting for it."""
        return {setting: look.result() for setting, look in self._holders.items() if not look.hangs()}


def hanging(setting: str, path: Path, *, name: str = "") -> CheckRow:
    """Return the row for a directory that does not answer. ``name``: that of the row, if not ``setting``."""
    return CheckRow(
        name or setting,
        ok=False,
        detail=f"{path} did not answer within {LOOK_S:g} s: its disk hangs",
        change=f"see the kernel's log, repair or remount the disk, or set {setting}",
    )


def _see(path: Path) -> Seen:
    lock = path / LOCK_NAME
    holder = holder_of(lock)
    return Seen(path, holder, frozenset(holders_of(lock)) if holder else frozenset())


def directories_of(settings: Settings) -> dict[str, Path]:
    """Return the directories that a proxy with these settings locks, each under the name of the setting for
    it.
    """
    tiers = {f"{tier.key}.path": tier.path for tier in tier_settings(settings)}
    return tiers | {"state.path": settings.state.path}


def find_holders(settings: Settings, directories: dict[str, Seen]) -> list[Holder]:
    """Return the processes that now hold directories of this configuration."""
    listeners = {name: address.port for name, address in settings.listeners.items()}
    found: dict[str, Holder] = {}
    for setting, (path, described, pids) in directories.items():
        if not described:
            continue
        if described not in found:
            places = [
                name for name, port in listeners.items() if port and any(_listens(pid, port) for pid in pids)
            ]
            found[described] = Holder(described, {}, tuple(places))
        found[described].directories[setting] = path
    return list(found.values())


def check_holders(holders: list[Holder]) -> Iterator[CheckRow]:
    """Yield a row for a proxy that already runs with this configuration, and a row for each directory that
    another process holds.
    """
    for holder in holders:
        if holder.listens_at:
            yield CheckRow(
                "running proxy",
                ok=True,
                detail=f"{holder.described} holds {_listed(holder.directories)}, and listens at"
                f" {_listed(holder.listens_at)}: this configuration is in use",
            )
            continue
        for setting, path in holder.directories.items():
            yield CheckRow(
                f"{setting} is held",
                ok=True,
                detail=f"{holder.described} holds {path}, and listens at no address of this configuration",
                change="it may be starting or ending; a proxy of another configuration has to be stopped"
                " first, or choose another directory",
            )


def check_tier(settings: Settings, tier: TierSetting) -> CheckRow:
    """Return the row for a tier's directory. It says why a start would refuse the directory, or what a start
    would warn about.
    """
    name = f"{tier.key}.path"
    if not (row := check_writable(name, tier.path)).ok:
        return row
    found = _contents(settings, name, tier.path) if tier.path.is_dir() else None
    if found is not None and not found.ok:
        return found
    room = look_at(tier.path)
    if room.free_bytes < _FIRST_FILES_BYTES and not (tier.path / VERSION_NAME).exists():
        return CheckRow(
            name,
            ok=False,
            detail=f"{tier.path} has no cache yet, and {format_size(room.free_bytes)} free: a start needs"
            " room for its first files",
            change=f"free space there, or choose another {name}",
        )
    verdict = judge(
        tier.key, tier.path, room, capacity_bytes=tier.capacity_bytes, min_free_bytes=tier.min_free_bytes
    )
    if verdict.cause and (found is None or not verdict.possible):
        return CheckRow(name, ok=verdict.possible, detail=verdict.cause, change=verdict.remedy)
    room_bytes = room.free_bytes + room.own_bytes - tier.min_free_bytes
    return found or CheckRow(name, ok=True, detail=f"{tier.path}, {format_size(room_bytes)} free")


def _contents(settings: Settings, name: str, path: Path) -> CheckRow | None:
    """Return a row if the directory has content that this configuration cannot use. Return None if the
    directory is empty, or has a cache that can be used.
    """
    try:
        refuse_foreign(path, name)
        version = read_version(path)
        wanted = origin_name(settings)
        reason = why_unusable(path, version, wanted)
    except ConfigError as error:
        return CheckRow(name, ok=False, detail=error.cause.removeprefix(f"{name}: "), change=error.remedy)
    except OSError as error:
        return CheckRow(
            name,
            ok=False,
            detail=f"{path} cannot be read: {error.strerror}",
            change=f"make it readable for this user, or set {name}",
        )
    if version is None or not reason:
        return None if version is None else _page_size(settings, name, path, version.page_bytes)
    if reason == OTHER_ORIGIN and settings.cache.on_other_origin != "set-aside":
        cause, remedy = other_origin(path, version.contents, wanted)
        return CheckRow(name, ok=False, detail=cause, change=remedy)
    what = "a cache of another format"
    if reason == OTHER_ORIGIN:
        what = f"the cache of another origin ({version.contents})"
    return CheckRow(
        name,
        ok=True,
        detail=f"{path} has {what}: a start renames it, and begins an empty one",
        change="delete it (shadeproxy purge --all) if it is not needed, or choose another directory",
    )


def _page_size(settings: Settings, name: str, path: Path, known_bytes: int) -> CheckRow | None:
    """Return a row if the pages in the directory have another size than ``cache.page_size``, which is
    ``known_bytes``. Return None if they have that size, or if there are no pages.
    """
    if known_bytes == settings.cache.page_size or not any(path.glob(f"*{SUFFIX}")):
        return None
    known, now = write_size(known_bytes), write_size(settings.cache.page_size)
    return CheckRow(
        name,
        ok=True,
        detail=f"{path} has pages of {known}, and cache.page_size is {now}: a start drops them",
        change=f'set cache.page_size = "{known}" to keep them',
    )


def check_writable(name: str, path: Path) -> CheckRow:
    """Return a row that says whether a start could create the directory ``path``, or write into it."""
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    try:
        with suppress_full(), tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return CheckRow(
            name,
            ok=False,
            detail=f"{path} cannot be written: {error.strerror}",
            change=f"make it writable for this user, or set {name}",
        )
    return CheckRow(name, ok=True, detail=f"{path} can be written")


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _listens(pid: int, port: int) -> bool:
    """Return whether process ``pid`` listens at TCP port ``port``, on any address, as far as /proc shows this
    to the user (proc(5)).
    """
    process = _PROCESSES / str(pid)
    try:
        sockets = _listening(process, port)
        return any(_target(file) in sockets for file in (process / "fd").iterdir())
    except OSError:
        return False


def _listening(process: Path, port: int) -> set[str]:
    found = set()
    for table in _TABLES:
        with suppress(OSError):  # The machine has no IPv6.
            for line in (process / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{fields[9]}]")
    return found


def _target(file: Path) -> str:
    with suppress(OSError):  # The process has closed the file meanwhile.
        return str(file.readlink())
    return ""


def empty_caches(settings: Settings, place: str, *, dry_run: bool, as_json: bool) -> None:
    """Empty the directories of the tiers, and print how many bytes they had. Raises ConfigError, also if the
    user gave a ``place`` (a prefix or URL): directories are always emptied as a whole.
    """
    if place:
        raise ConfigError(
            "--all empties the cache directories of this configuration while no proxy runs on them:"
            f" leave out {place}, or --all"
        )
    paths = {"cache.ram.path": settings.cache.ram.path}
    paths |= {f"cache.{name}.path": disk.path for name, disk in settings.cache.disk_tiers.items()}
    # Check all directories before any of them is changed.
    for setting, path in paths.items():
        drop_cache(path, setting=setting, dry_run=True)
    for setting, path in paths.items():
        dropped_bytes = drop_cache(path, setting=setting, dry_run=dry_run)
        if as_json:
            typer.echo(json.dumps({"path": str(path), "bytes": dropped_bytes, "dry_run": dry_run}))
        else:
            typer.echo(f"{'would drop' if dry_run else 'dropped'} {format_size(dropped_bytes)} in {path}")
