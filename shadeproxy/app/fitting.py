"""Checks that the settings fit the machine: that tiers, reads and processes fit into its memory, tiers into
the limit of address space, processes onto its cores, and files and connections below the limit of
descriptors.

``check``, ``serve`` and ``doctor`` all judge by this module. Settings are refused if the kernel would kill
the proxy for want of memory, or if the proxy would get no descriptor for the next file.
"""

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import structlog

from shadeproxy.app.address_space import FIXED_BYTES, NO_LIMIT, address_space_limit
from shadeproxy.app.limits import client_descriptors, own_descriptors
from shadeproxy.app.origins import origin_name
from shadeproxy.config import Settings
from shadeproxy.core.cores import available_cores
from shadeproxy.core.errors import ConfigError
from shadeproxy.core.memory_limit import MemoryLimit, is_memory, memory_limit
from shadeproxy.core.units import format_size
from shadeproxy.engine.placement.histories import ghosts_for
from shadeproxy.hints.reuse.ghosts import BYTES
from shadeproxy.policy.registry import POLICIES
from shadeproxy.tiers.files import default_segment_bytes, most_segments
from shadeproxy.tiers.origin_change import why_unusable
from shadeproxy.tiers.room import Verdict
from shadeproxy.tiers.version import INCOMPATIBLE, OTHER_ORIGIN, moved_aside, read_version

_log = structlog.get_logger(__name__)
_MIB = 1024**2
PROCESS_BYTES = 128 * _MIB
"""Memory of one process, besides the tiers and the reads under way. The process takes 64 MiB at its start,
and more for the index of the pages.
"""

_HISTORIES_BYTES = 64 * _MIB
"""Read histories up to this size count as part of ``PROCESS_BYTES``."""


class TierSetting(NamedTuple):
    """A tier of the configuration. ``key``: the name of its table there, as ``cache.ram``."""

    key: str
    path: Path
    capacity_bytes: int
    min_free_bytes: int


def tier_settings(settings: Settings) -> Iterator[TierSetting]:
    """Yield the tiers that the settings configure, the fastest first."""
    cache = settings.cache
    yield TierSetting("cache.ram", cache.ram.path, cache.ram.capacity, cache.ram.min_free)
    for name, disk in cache.disk_tiers.items():
        yield TierSetting(f"cache.{name}", disk.path, disk.capacity, disk.min_free)


def judge_memory(settings: Settings, limit: MemoryLimit) -> Verdict:
    """Judge whether the proxy's memory fits below ``limit``: tiers and renamed caches that lie in memory,
    reads under way, processes and read histories.
    """
    tiers = [tier for tier in tier_settings(settings) if is_memory(tier.path)]
    aside = _aside(settings)
    aside_bytes = sum(aside.values())
    history_bytes = _history_bytes(settings)
    rest_bytes = _rest_bytes(settings)
    needed_bytes = rest_bytes + aside_bytes + sum(tier.capacity_bytes for tier in tiers)
    if needed_bytes <= limit.limit_bytes:
        return Verdict(possible=True)
    parts = [f"{tier.key}.capacity {format_size(tier.capacity_bytes)}" for tier in tiers]
    parts.append(f"cache.inflight {format_size(settings.cache.inflight)}")
    parts.append(f"{settings.s3.processes} x {format_size(PROCESS_BYTES)} for processes")
    parts += [f"{format_size(history_bytes)} for read histories"] * bool(history_bytes)
    parts += [f"{format_size(aside_bytes)} in caches set aside"] * bool(aside)
    return Verdict(
        False,
        f"memory: {', '.join(parts[:-1])} and {parts[-1]} are {format_size(needed_bytes)}, but {limit.place}"
        f" allows {format_size(limit.limit_bytes)}, and the kernel would kill the proxy",
        _remedy(tiers, aside, limit.limit_bytes - rest_bytes, needed_bytes - limit.limit_bytes),
    )


def judge_hint_memory(settings: Settings, limit: MemoryLimit) -> Verdict:
    """Judge whether all that registered hints may take fits below ``limit``, beside what ``judge_memory``
    counts. If not, the proxy can run nevertheless, because hints rarely take so much.
    """
    tiers_bytes = sum(tier.capacity_bytes for tier in tier_settings(settings) if is_memory(tier.path))
    left_bytes = limit.limit_bytes - tiers_bytes - sum(_aside(settings).values()) - _rest_bytes(settings)
    most_bytes, left_bytes = settings.control.hint_memory, max(left_bytes, 0)
    if most_bytes <= left_bytes:
        return Verdict(possible=True)
    return Verdict(
        True,
        f"hints: control.hint_memory is {format_size(most_bytes)}, but tiers, reads and processes leave"
        f" {format_size(left_bytes)} of what {limit.place} allows; if hints take more, the kernel kills the"
        " proxy",
        f'set control.hint_memory to at most "{left_bytes // _MIB} MiB", or raise the limit',
    )


def _rest_bytes(settings: Settings) -> int:
    """Return the bytes of the reads under way, the processes and the read histories."""
    return settings.cache.inflight + PROCESS_BYTES * settings.s3.processes + _history_bytes(settings)


def _history_bytes(settings: Settings) -> int:
    """Return the bytes of the read histories of all tiers beyond those that ``PROCESS_BYTES`` includes."""
    capacity_bytes = sum(tier.capacity_bytes for tier in tier_settings(settings))
    learns = POLICIES[settings.policy.name].learns
    return max(ghosts_for(capacity_bytes) * BYTES - _HISTORIES_BYTES, 0) if learns else 0


def _remedy(tiers: list[TierSetting], aside: dict[Path, int], left_bytes: int, excess_bytes: int) -> str:
    """Return in words what to change so that the proxy fits. ``left_bytes``: room for tiers and renamed
    caches. ``excess_bytes``: the bytes that do not fit.
    """
    delete, enough = "", sum(aside.values()) >= excess_bytes
    if aside:
        delete = f"delete {', '.join(map(str, aside))}{', or' if enough else ' and'} "
    if enough:
        # The user may delete the renamed caches or keep them. Name the capacity that fits if they are kept.
        left_bytes -= sum(aside.values())
    left_bytes -= sum(tier.capacity_bytes for tier in tiers[1:])
    if not tiers or left_bytes < _MIB:
        return f"{delete}lower cache.inflight or s3.workers, or raise the limit"
    return f'{delete}set {tiers[0].key}.capacity to at most "{left_bytes // _MIB} MiB", or raise the limit'


def _aside(settings: Settings) -> dict[Path, int]:
    """Return, for each cache directory that a start has renamed or would rename, the bytes that it takes in
    memory.
    """
    found: dict[Path, int] = {}
    for tier in tier_settings(settings):
        with suppress(OSError):
            paths = moved_aside(tier.path)
            if _would_move_aside(settings, tier.path):
                paths.append(tier.path)
            found.update((path, _held_bytes(path)) for path in paths if is_memory(path))
    return {path: held_bytes for path, held_bytes in found.items() if held_bytes}


def _would_move_aside(settings: Settings, path: Path) -> bool:
    """Return whether a start would rename the cache at ``path`` instead of using it or refusing to start."""
    reason = why_unusable(path, read_version(path), origin_name(settings))
    return reason == INCOMPATIBLE or (
        reason == OTHER_ORIGIN and settings.cache.on_other_origin == "set-aside"
    )


def _held_bytes(path: Path) -> int:
    held_bytes = 0
    for directory, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):  # The directory was deleted meanwhile.
                held_bytes += Path(directory, name).lstat().st_blocks * 512
    return held_bytes


def judge_workers(settings: Settings, cores: int) -> Verdict:
    """Judge whether each process has a core of its own. More processes than cores only take turns, and cost
    memory.
    """
    processes = settings.s3.processes
    if processes <= cores:
        return Verdict(possible=True)
    return Verdict(
        True,
        f"s3.workers: {processes} processes share {cores} core{'s' * (cores > 1)}",
        f'set s3.workers to at most {cores}, or to "auto"',
    )


def descriptor_limit() -> int:
    """Return the hard limit of descriptors. ``serve`` raises the soft limit to it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return hard


def connections_of_pool(settings: Settings) -> int:
    """Return the connections to reserve for each pool of the origin. In a cluster that shares pages, these
    are as many again for requests to other proxies.
    """
    return settings.origin.max_connections * (2 if settings.cluster.is_owned else 1)


def judge_descriptors(settings: Settings, limit: int) -> Verdict:
    """Judge whether the proxy can run at all with ``limit`` descriptors, and whether all connections fit."""
    capacities = [tier.capacity_bytes for tier in tier_settings(settings)]
    # A tier that cannot open further segments holds less. That is no reason to refuse the start.
    least = own_descriptors(origin_connections=1, segments=len(capacities))
    own = own_descriptors(
        origin_connections=connections_of_pool(settings),
        segments=sum(most_segments(size, default_segment_bytes(size)) for size in capacities),
    )
    clients = client_descriptors(limit, own)
    if limit == resource.RLIM_INFINITY or own + clients <= limit:
        return Verdict(possible=True)
    may_open = f"descriptors: the proxy may open {limit} files and connections"
    raise_limit = "raise the hard limit (LimitNOFILE=65536, ulimit -Hn, docker --ulimit nofile=65536)"
    if limit <= least:
        return Verdict(False, f"{may_open}, and needs more than {least} without any client", raise_limit)
    return Verdict(
        True,
        f"{may_open}, but its tiers and origin.max_connections may take {own} and clients {clients}",
        f"{raise_limit}, or lower origin.max_connections",
    )


def judge_address_space(settings: Settings, limit_bytes: int) -> Verdict:
    """Judge whether the mapped files of all tiers fit below the limit."""
    tiers_bytes = sum(tier.capacity_bytes for tier in tier_settings(settings))
    needed_bytes = tiers_bytes + settings.cache.inflight + FIXED_BYTES
    if limit_bytes == resource.RLIM_INFINITY or needed_bytes <= limit_bytes:
        return Verdict(possible=True)
    return Verdict(
        False,
        f"address space: ulimit -v allows {format_size(limit_bytes)}, and the proxy, which maps the files of"
        f" all tiers, needs at least {format_size(needed_bytes)}",
        NO_LIMIT,
    )


def require_fit(settings: Settings) -> None:
    """Raise ConfigError if the settings do not fit the machine; log a warning if they fit badly. Blocks for a
    short time.
    """
    verdicts = {
        "too little memory": judge_memory(settings, memory_limit()),
        "much memory for hints": judge_hint_memory(settings, memory_limit()),
        "too little address space": judge_address_space(settings, address_space_limit()),
        "more workers than cores": judge_workers(settings, available_cores()),
        "few descriptors": judge_descriptors(settings, descriptor_limit()),
    }
    for event, verdict in verdicts.items():
        if not verdict.possible:
            raise ConfigError(verdict.cause, remedy=verdict.remedy)
        if verdict.cause:
            _log.warning(event, cause=verdict.cause, hint=verdict.remedy)


class MemoryWatch:
    """Watches whether a running proxy fits into memory, and whether it would fit after a restart with the
    settings that were read last.
    """

    def __init__(self) -> None:
        self._now = self._after_restart = Verdict(possible=True)
        self._wanted: Settings | None = None

    @property
    def verdict(self) -> Verdict:
        """The more urgent of the two verdicts: on the proxy as it runs, or on the proxy after a restart."""
        if not self._now.possible or self._after_restart.possible:
            return self._now
        return self._after_restart._replace(cause=f"after a restart, {self._after_restart.cause}")

    def warnings(self) -> list[str]:
        """Return the warnings of ``/readyz`` about memory. They name no path, because any caller may ask."""
        if not self._now.possible:
            return ["the proxy may need more memory than its control group allows"]
        return ["the new settings need more memory than there is to start with"] * (not self.verdict.possible)

    def look(self, settings: Settings) -> None:
        """Read the memory limits, which may change while the proxy runs, and judge by them. Log each problem
        once. Blocks for a short time.
        """
        limit = memory_limit()
        before, self._now = self._now, judge_memory(settings, limit)
        if before.possible:
            _say("too little memory", self._now)
        if self._wanted is not None:
            before, self._after_restart = self._after_restart, judge_memory(self._wanted, limit)
            if before.possible and self._now.possible:
                _say("too little memory for a restart", self._after_restart)

    def reloaded(self, settings: Settings, wanted: Settings) -> None:
        """Judge new settings after a reload, and log again if they do not fit into memory.

        ``wanted``: the settings as they were read. ``settings``: the settings in force: new where a reload
        can change them, and otherwise as before.
        """
        self._now = self._after_restart = Verdict(possible=True)
        self._wanted = wanted
        self.look(settings)


def _say(what: str, verdict: Verdict) -> None:
    if not verdict.possible:
        _log.error(what, error=verdict.cause, hint=verdict.remedy)
