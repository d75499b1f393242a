"""Collects facts about the tiers of a running proxy, for the doctor and for the warnings of ``/readyz``."""

import os
from collections.abc import Iterator
from pathlib import Path

from shadeproxy.app.tier_diagnosis import TierFacts
from shadeproxy.config.sections import Cache, DiskCache, RamCache
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.tiers.room import Room, look_at
from shadeproxy.tiers.version import INCOMPATIBLE, OTHER_ORIGIN


def tier_warnings(medium: Medium) -> Iterator[str]:
    """Yield in words what a tier cannot do now. The texts name no path, because any caller may ask for
    them.
    """
    tier = medium.tier
    if medium.hangs:
        yield f"the disk of tier {tier.name} hangs"
    if tier.disabled_reason:
        yield f"tier {tier.name} takes no more pages"
    elif tier.limit_bytes < tier.capacity_bytes:
        yield f"the medium of tier {tier.name} is full: it holds less than its capacity"
    if tier.erasures.any_unmarked:
        yield f"some writes are refused: tier {tier.name} cannot record the pages they make old"
    if tier.erasures.owed:
        yield f"tier {tier.name} could not erase old pages, and tries again"


def look_at_tier(medium: Medium, cache: Cache, used_bytes: int) -> TierFacts:
    """Return the facts about a tier that has ``used_bytes``. Blocks, but does not look at a disk that
    hangs.
    """
    return _facts(medium, cache, used_bytes, medium.busy_s() if medium.hangs else 0.0)


def facts_unseen(medium: Medium, cache: Cache, used_bytes: int, waited_s: float) -> TierFacts:
    """Return the facts about a tier without a look at its disk, which did not answer a look for
    ``waited_s``.
    """
    return _facts(medium, cache, used_bytes, max(medium.busy_s(), waited_s))


def _facts(medium: Medium, cache: Cache, used_bytes: int, hangs_s: float) -> TierFacts:
    sections: dict[str, RamCache | DiskCache] = {"ram": cache.ram, **cache.disk_tiers}
    section, tier, hangs = sections[medium.tier.name], medium.tier, hangs_s > 0
    path = section.path
    room, error = (Room(0, 0, 0, inodes_left=True), "") if hangs else _room(path)
    return TierFacts(
        name=tier.name,
        path=str(path),
        capacity_bytes=tier.capacity_bytes,
        limit_bytes=tier.limit_bytes,
        used_bytes=used_bytes,
        min_free_bytes=section.min_free,
        file_system_bytes=room.total_bytes,
        free_bytes=room.free_bytes,
        inodes_left=room.inodes_left,
        disabled_reason=tier.disabled_reason or "",
        hangs_s=hangs_s,
        error=error,
        detached=not hangs and tier.is_detached(),
        owed_erasures=tier.erasures.owed,
        refused_writes=tier.erasures.any_unmarked,
        aside=() if hangs else _beside(path, INCOMPATIBLE),
        set_aside=() if hangs else _beside(path, OTHER_ORIGIN),
    )


def _room(path: Path) -> tuple[Room, str]:
    """Return the room of the file system at ``path``, or the reason why it cannot be read."""
    try:
        # Raise an error here if the directory is deleted. Otherwise ``look_at`` would return the room of its
        # parent's file system, which may be another one.
        path.stat()
        return look_at(path), ""
    except OSError as error:
        return Room(0, 0, 0, inodes_left=True), os.strerror(error.errno or 0)


def _beside(path: Path, reason: str) -> tuple[str, ...]:
    """Return the directories that earlier starts renamed for ``reason``."""
    return paths_like(path.with_name(f"{path.name}.{reason}-*"))


def paths_like(pattern: Path) -> tuple[str, ...]:
    """Return the paths that match the pattern, without the journals of databases."""
    found = pattern.parent.glob(pattern.name)
    return tuple(sorted(str(path) for path in found if not path.name.endswith(("-wal", "-shm"))))
