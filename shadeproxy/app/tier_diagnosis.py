"""Diagnoses a tier. The functions are pure: they make findings from facts."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shadeproxy.core.units import format_count, format_size
from shadeproxy.tiers.room import Room, judge


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of the doctor. ``severity`` is "wrong" if reads fail or the cache does not work now, and
    "warning" if that may soon happen.
    """

    name: str
    severity: Literal["wrong", "warning"]
    cause: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TierFacts:
    """Facts about a tier. ``limit_bytes``: the bytes that it may hold now. ``file_system_bytes`` and
    ``free_bytes``: size and free bytes of its file system. ``detached``: its directory was deleted or
    replaced. ``aside``: directories that earlier starts renamed because they could not use them.
    ``set_aside``: renamed caches of other origins. ``owed_erasures``: number of old pages that could not be
    erased yet. ``refused_writes``: the reason why some writes are refused, or "". ``hangs_s``: for how many
    seconds its disk has not answered, 0 if it answers.
    """

    name: str
    path: str
    capacity_bytes: int
    limit_bytes: int
    used_bytes: int
    min_free_bytes: int
    file_system_bytes: int
    free_bytes: int
    disabled_reason: str = ""
    error: str = ""
    detached: bool = False
    aside: tuple[str, ...] = ()
    set_aside: tuple[str, ...] = ()
    inodes_left: bool = True
    owed_erasures: int = 0
    refused_writes: str = ""
    hangs_s: float = 0.0


def tier_findings(tier: TierFacts) -> Iterator[Finding]:
    """Yield the findings about one tier."""
    where = f"cache.{tier.name}"
    if tier.disabled_reason:
        yield Finding(
            f"tier {tier.name} disabled",
            "wrong",
            f"{tier.disabled_reason}; its pages are still read",
            f"mend the medium of {tier.path} (see the kernel's log), then restart",
        )
    if tier.hangs_s:
        yield Finding(
            f"disk of tier {tier.name} hangs",
            "wrong",
            f"an operation on {tier.path} has taken {tier.hangs_s:.0f} s so far: the tier stores no pages"
            " meanwhile, and the origin answers reads that need the disk",
            f'mend the medium of {tier.path} (see the kernel\'s log), or restart with {where}.capacity = "0"',
        )
    if tier.refused_writes:
        yield Finding(
            f"tier {tier.name} refuses writes",
            "wrong",
            f"{tier.refused_writes}: such writes are answered 503",
            f"mend the media of {tier.path} and of state.path, or set cache.ram.path to a tmpfs",
        )
    if tier.owed_erasures:
        yield Finding(
            f"tier {tier.name} owes erasures",
            "warning",
            f"{format_count(tier.owed_erasures, 'old page', 'd')} could not be erased from {tier.path}: none"
            " is served, each is tried again, and is listed elsewhere so that no restart brings it back",
            f"mend the medium of {tier.path} (see the kernel's log)",
        )
    if tier.aside:
        yield aside_finding(f"cache of tier {tier.name}", tier.aside)
    if tier.set_aside:
        yield Finding(
            f"cache of tier {tier.name} set aside",
            "warning",
            f"{', '.join(tier.set_aside)}: the cache of another origin; no capacity counts its space",
            "delete it when that origin is not coming back",
        )
    if tier.detached:
        yield Finding(
            f"tier {tier.name} deleted",
            "wrong",
            f"{tier.path} was deleted or replaced while the proxy runs: its pages are still served, take"
            " its space, and are lost at the end",
            f"restart the proxy, and keep cleaners of old files away from {tier.path}",
        )
    elif tier.error:
        yield Finding(
            f"tier {tier.name} unreadable",
            "wrong",
            f"{tier.path} cannot be looked at: {tier.error}",
            f"mend it, or choose another {where}.path",
        )
    elif not tier.hangs_s:
        yield from _room(tier, where)


def _room(tier: TierFacts, where: str) -> Iterator[Finding]:
    room = Room(tier.file_system_bytes, tier.free_bytes, tier.used_bytes, tier.inodes_left)
    verdict = judge(
        where,
        Path(tier.path),
        room,
        capacity_bytes=tier.capacity_bytes,
        min_free_bytes=tier.min_free_bytes,
    )
    if not verdict.possible:
        yield Finding(f"tier {tier.name} too big", "wrong", verdict.cause, verdict.remedy)
    elif tier.limit_bytes < tier.capacity_bytes:
        yield Finding(
            f"tier {tier.name} full",
            "wrong",
            f"the file system of {tier.path} has {format_size(tier.free_bytes)} free and"
            f" {where}.min_free is {format_size(tier.min_free_bytes)}: the tier holds"
            f" {format_size(tier.limit_bytes)} of {format_size(tier.capacity_bytes)}",
            f"free space there, or lower {where}.capacity or min_free",
        )
    if not tier.inodes_left:
        yield Finding(
            f"tier {tier.name} without inodes",
            "wrong",
            f"the file system of {tier.path} has no free inodes: the tier makes no more segment files",
            f"delete files there, or choose another {where}.path",
        )


def aside_finding(what: str, paths: tuple[str, ...]) -> Finding:
    """Return the finding for directories that a start renamed because it could not use them."""
    return Finding(
        f"{what} moved aside",
        "warning",
        f"{', '.join(paths)}: an earlier start could not use it (damaged, or of another version) and began"
        " with an empty one; it takes space that no capacity counts",
        "delete it when it is not needed for inspection",
    )
