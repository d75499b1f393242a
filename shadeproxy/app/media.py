"""Builds the tiers from ``[cache]``, and the threads that do the I/O of the disk tiers."""

import asyncio
import grp
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

from shadeproxy.app.io_pool import IoPool
from shadeproxy.app.origins import origin_name
from shadeproxy.config import Settings
from shadeproxy.config.sections import DiskCache
from shadeproxy.core.errors import ConfigError
from shadeproxy.core.types import Source
from shadeproxy.engine.placement.histories import counted_bytes
from shadeproxy.engine.storage.medium import Medium, RunIO
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.policy.registry import POLICIES
from shadeproxy.telemetry.counters import TierGauges
from shadeproxy.tiers.medium import SYSTEM, Calls, is_tmpfs
from shadeproxy.tiers.read_speed import measure_read_speed
from shadeproxy.tiers.store import SegmentStore

_DISK_READERS = 8


class Media:
    """The tiers of a proxy: the RAM tier first, then the disk tiers. Each disk tier has one thread for
    writes, which keeps their order, and several threads for reads.

    ``calls``: by the name of a tier, system calls on its segments that replace those of the kernel.
    ``left_out``: returns whether the latest start did not use the store with a given id, so that its pages
    are in doubt.
    """

    def __init__(
        self,
        settings: Settings,
        calls: Mapping[str, Calls] | None = None,
        left_out: Callable[[int], bool] | None = None,
    ) -> None:
        calls = calls or {}
        cache = settings.cache
        self._pools: list[IoPool] = []
        # The directory records its origin, because two origins may have the same buckets and keys.
        contents, set_aside = origin_name(settings), cache.on_other_origin == "set-aside"
        group_id = _group_id(cache.group)
        ram = SegmentStore(
            "ram",
            cache.ram.path,
            _without_ghosts(settings, cache.ram.capacity),
            min_free_bytes=cache.ram.min_free,
            contents=contents,
            page_bytes=cache.page_size,
            set_aside=set_aside,
            sendfile=True,
            group_id=group_id,
            calls=calls.get("ram", SYSTEM),
            left_out=left_out,
        )
        self._stores = [ram]
        self.media = [Medium(ram, Source.RAM)]
        for name, disk in cache.disk_tiers.items():
            writer = self._pool(1, f"{name}-writer")
            readers = self._pool(_DISK_READERS, f"{name}-reader")
            store = SegmentStore(
                name,
                disk.path,
                _without_ghosts(settings, disk.capacity),
                min_free_bytes=disk.min_free,
                contents=contents,
                page_bytes=cache.page_size,
                set_aside=set_aside,
                group_id=group_id,
                submit=partial(_submit, writer),
                calls=calls.get(name, SYSTEM),
                tombstones=_tombstones(settings),
                left_out=left_out,
            )
            self._stores.append(store)
            write, load = _runner(writer), _runner(readers)
            speed, busy_s = partial(_read_speed, disk), partial(_longest_s, (writer, readers))
            medium = Medium(store, Source.DISK, write=write, load=load, read_speed=speed, busy_s=busy_s)
            self.media.append(medium)

    @property
    def store_ids(self) -> list[int]:
        """Return the ids of the stores of all tiers, which must be open."""
        return [store.claim.store_id for store in self._stores if store.claim is not None]

    def close(self) -> None:
        """Wait until all queued I/O has run. Blocks. Close the tiers before you call this."""
        for pool in self._pools:
            pool.shutdown()

    def _pool(self, threads: int, name: str) -> IoPool:
        pool = IoPool(threads, name)
        self._pools.append(pool)
        return pool


def _read_speed(disk: DiskCache, room_bytes: int) -> float:
    """Return the read speed that the configuration gives. If it gives none, measure the disk, which
    blocks.
    """
    return float(disk.read_speed) or measure_read_speed(disk.path, room_bytes)


def _longest_s(pools: Iterable[IoPool]) -> float:
    return max(pool.busy_s for pool in pools)


def _submit(writer: Executor, work: Callable[[], None]) -> None:
    writer.submit(work)


def _without_ghosts(settings: Settings, capacity_bytes: int) -> int:
    """Return the bytes that a tier may use for pages: its configured capacity without its share of the
    ghosts' memory.
    """
    return capacity_bytes - round(capacity_bytes * ghost_share(settings))


def ghost_share(settings: Settings) -> float:
    """Return the share of the cache's capacity that ghosts take. It is 0.6 % for most caches, and 0 if the
    policy does not learn.
    """
    total_bytes = settings.cache.capacity_bytes
    learns = POLICIES[settings.policy.name].learns
    return counted_bytes(total_bytes) / total_bytes if learns and total_bytes else 0.0


def _tombstones(settings: Settings) -> Path:
    """Return the directory for tombstones: that of the RAM tier if it lies in memory, where no disk can fail;
    otherwise the state directory.
    """
    ram = settings.cache.ram.path
    there = next((one for one in (ram, *ram.parents) if one.is_dir()), ram)
    # The directory need not exist yet: the RAM tier, which is opened first, creates it.
    return ram if is_tmpfs(there) else settings.state.path


def _group_id(name: str) -> int | None:
    """Return the id of the group with this name; None for "". Raises ConfigError."""
    if not name:
        return None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(
            f'cache.group = "{name}": there is no such group on this machine; create it (groupadd {name}),'
            ' or write "" so that only the proxy\'s user can read the cache'
        ) from None


def _runner(pool: Executor) -> RunIO:
    async def run(work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(pool, work)

    return run


def tier_gauges(medium: Medium, cache: PageCache, index: int) -> Callable[[], TierGauges]:
    """Return a function that reads the current statistics of a tier."""
    tier, members = medium.tier, cache.residents.members[index]
    return lambda: TierGauges(
        tier.used_bytes,
        tier.capacity_bytes,
        members.pages,
        limit_bytes=tier.limit_bytes,
        pinned_bytes=members.pinned_bytes,
        disabled=int(tier.disabled_reason is not None),
        hanging=int(medium.hangs),
        dropped_records=tier.dropped.records,
        dropped_catalogues=tier.dropped.catalogues,
        dropped_lists=tier.dropped.lists,
        owed_erasures=tier.erasures.owed,
        tombstones=tier.erasures.tombstones,
        in_doubt=int(tier.erasures.in_doubt),
        read_speed=cache.transfers.disks.speeds.get(tier.name, 0),
        disabled_reason=tier.disabled_reason or "",
    )
