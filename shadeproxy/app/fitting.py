"""Whether the settings fit the machine: tiers on their file systems, and all of it in memory.

The one judgement of ``check``, ``serve`` and ``doctor``. Settings that end in an OOM kill are refused.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from shadeproxy.config import Settings
from shadeproxy.core.errors import ConfigError
from shadeproxy.core.memory_limit import MemoryLimit, is_memory, memory_limit
from shadeproxy.core.units import format_size
from shadeproxy.tiers.room import Verdict

_MIB = 1024**2
PROCESS_BYTES = 128 * _MIB
"""Memory of a process beside tiers and reads under way: 64 MiB when it starts, and the index of its pages."""


class TierSetting(NamedTuple):
    """A tier as configured. ``key``: its table in the configuration."""

    key: str
    path: Path
    capacity_bytes: int
    min_free_bytes: int


def tier_settings(settings: Settings) -> Iterator[TierSetting]:
    """Yield the tiers that are switched on, fastest first."""
    cache = settings.cache
    yield TierSetting("cache.ram", cache.ram.path, cache.ram.capacity, cache.ram.min_free)
    if cache.disk.capacity:
        yield TierSetting("cache.disk", cache.disk.path, cache.disk.capacity, cache.disk.min_free)


def judge_memory(settings: Settings, limit: MemoryLimit) -> Verdict:
    """Return whether tiers in memory, reads under way and the processes fit below ``limit``."""
    tiers = [tier for tier in tier_settings(settings) if is_memory(tier.path)]
    rest_bytes = settings.cache.inflight + PROCESS_BYTES * settings.s3.workers
    needed_bytes = rest_bytes + sum(tier.capacity_bytes for tier in tiers)
    if needed_bytes <= limit.limit_bytes:
        return Verdict(possible=True)
    named = ", ".join(f"{tier.key}.capacity {format_size(tier.capacity_bytes)}" for tier in tiers)
    left_bytes = limit.limit_bytes - rest_bytes
    return Verdict(
        False,
        f"memory: {f'{named}, ' if named else ''}cache.inflight {format_size(settings.cache.inflight)} and"
        f" {settings.s3.workers} x {format_size(PROCESS_BYTES)} for processes are"
        f" {format_size(needed_bytes)}, but {limit.place} allows {format_size(limit.limit_bytes)}, and the"
        " kernel would kill the proxy",
        f'set {tiers[0].key}.capacity to at most "{left_bytes // _MIB} MiB", or raise the limit'
        if tiers and left_bytes >= _MIB
        else "lower cache.inflight or s3.workers, or raise the limit",
    )


def require_memory(settings: Settings) -> None:
    """Raise ConfigError for settings that need more memory than there may be (blocking, tiny)."""
    verdict = judge_memory(settings, memory_limit())
    if not verdict.possible:
        raise ConfigError(f"{verdict.cause}; {verdict.remedy}")
