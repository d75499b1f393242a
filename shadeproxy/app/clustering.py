"""Takes a running proxy into the cluster that [cluster] names: opens the parts that share hints and pages.

If [cluster] names no cluster, these parts are not opened, and the client library of Redis is not imported.
"""

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import NamedTuple

import msgspec
import structlog

from shadeproxy import __version__
from shadeproxy.api.control.context import CacheAdmin
from shadeproxy.api.control.order_builder import OrderBuilder
from shadeproxy.app.admin import EngineAdmin
from shadeproxy.app.cluster_agreement import agreement, origin_digest
from shadeproxy.app.cluster_checkup import collect_facts
from shadeproxy.app.cluster_diagnosis import ClusterFacts
from shadeproxy.app.origins import read_bounds
from shadeproxy.app.owned_pages import OwnedPages
from shadeproxy.app.pinning import DurablePins
from shadeproxy.app.shared_admin import Places, SharedAdmin
from shadeproxy.cluster.applier import Applier
from shadeproxy.cluster.contents import Contents
from shadeproxy.cluster.events import WIRE
from shadeproxy.cluster.heartbeat import Heartbeat
from shadeproxy.cluster.log import ClusterLog
from shadeproxy.cluster.membership import Membership
from shadeproxy.cluster.replication import Replication
from shadeproxy.cluster.signed import Seals
from shadeproxy.cluster.snapshot import Place, Snapshots
from shadeproxy.cluster.snapshot_keeper import Node, SnapshotKeeper
from shadeproxy.cluster.status import ClusterStatus
from shadeproxy.cluster.timing import Timing
from shadeproxy.cluster.view import NodeFacts
from shadeproxy.config import Settings
from shadeproxy.config.fields import parse_address
from shadeproxy.core.clock import Clock, boot_time_s
from shadeproxy.core.deadline import LATE_WRITE_S
from shadeproxy.core.errors import ConfigError, ShadeProxyError
from shadeproxy.engine.rules import Rules
from shadeproxy.hints.changes import Changes, OwnChanges
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.state.store import StateStore
from shadeproxy.telemetry.counters import ClusterCounters
from shadeproxy.telemetry.history import History
from shadeproxy.telemetry.stats import Stats

_log = structlog.get_logger(__name__)
_KIND = "cluster"
_NODE, _BOOT, _REACHED = "node", "boot", "reached"
_SAVE_S = 1.0
_GIB = 1024**3
_EXTRA = "install its client: pip install 'redis[hiredis]>=8.0'"


class Parts(NamedTuple):
    """The parts of a proxy that share hints. ``admin``: administers the cache of this proxy alone."""

    hints: HintRegistry
    store: StateStore
    order_builder: OrderBuilder
    pins: DurablePins
    admin: EngineAdmin
    pool: Executor


class Clustering:
    """One proxy's part in its cluster; it does nothing if there is no cluster. Call ``open`` once."""

    def __init__(self, settings: Settings, clock: Clock, stats: Stats) -> None:
        self._settings = settings
        self._clock = clock
        self._stats = stats
        self._replication: Replication | None = None
        self._snapshots: Snapshots | None = None
        self._log: ClusterLog | None = None
        self._node: Node | None = None
        self._kept: dict[str, bytes] = {}
        self._counters = ClusterCounters()
        self._tasks: list[asyncio.Task[None]] = []
        self._heartbeat: Heartbeat | None = None
        self._status: ClusterStatus | None = None
        self.owned: OwnedPages | None = None
        """The parts by which proxies share pages; None if each proxy keeps its own pages."""

    def note(self, kind: str, name: str) -> None:
        """Note that a hint has changed: the next snapshot stores it again. Of a job that is gone, nothing is
        sent to the other proxies any more.
        """
        if self._snapshots is not None and self._replication is not None:
            self._snapshots.note(kind, name)
            self._replication.note(kind, name)

    @property
    def clock(self) -> Clock:
        """The clock by which page handles are judged."""
        return self._clock if self.owned is None else self.owned.clock

    async def prepare(
        self,
        store: StateStore,
        rules: Rules,
        hints: HintRegistry,
        take_part: Callable[[float], None],
        on_lease: Callable[[float], None],
    ) -> OwnedPages | None:
        """Give this node its name and the number of this start, before the engine is made. Return ``owned``.
        ``take_part``, ``on_lease``: as for ``OwnedPages``. Raises ConfigError.
        """
        if not self._settings.cluster.name:
            return None
        self._counters = self._stats.count_cluster(self._gauges)
        self._kept = await asyncio.to_thread(store.load_all, _KIND)
        self._node = self._name(store, self._kept)
        if self._settings.cluster.is_owned:
            self.owned = OwnedPages(
                self._settings,
                self._node.name,
                boot=str(self._node.boot),
                rules=rules,
                hints=hints,
                clock=self._clock,
                stats=self._stats,
                counters=self._counters,
                take_part=take_part,
                on_lease=on_lease,
            )
        return self.owned

    async def open(self, parts: Parts, stack: AsyncExitStack) -> tuple[Changes, CacheAdmin]:
        """Join the cluster in the background. Return the object that makes changes of hints, and the one that
        administers the cache. Raises ConfigError.
        """
        node = self._node
        if node is None:
            return OwnChanges(parts.hints, self._clock), parts.admin
        if self.owned is not None:
            self.owned.pins = parts.pins
        self._log = log = await asyncio.to_thread(open_log, self._settings)
        log.counters = self._counters
        stack.push_async_callback(_close, log)
        replication, places = self._share(parts, log, node, self._kept)
        stack.push_async_callback(self._aclose, parts, replication, places)
        # The listeners open later, so they close earlier. So the lease is given up after the last answer.
        stack.push_async_callback(self._say_goodbye)
        replication.start()
        saving = self._save(parts.store, replication)
        self._tasks.append(asyncio.create_task(saving, name="cluster position"))
        _log.info("hints are shared", cluster=self._settings.cluster.name, node=node.name)
        return replication, SharedAdmin(parts.admin, parts.pins, replication)

    def status(self) -> ClusterStatus | None:
        """Return the cluster's status; None without a cluster, or until the listeners are open."""
        return self._status

    def beat(self, *, s3: str, control: str, history: History) -> None:
        """Send beats from now on, and so ask for a seat in the cluster's view. ``s3``, ``control``: addresses
        of the listeners. ``history``: the history of this proxy's reads.
        """
        if self._log is None or self._node is None:
            return
        cluster, cache, owned = self._settings.cluster, self._settings.cache, self.owned
        capacity = cache.capacity_bytes / _GIB
        peer = cluster.advertise or (str(cluster.listen) if owned is None else owned.address)
        facts = NodeFacts(
            node=self._node.name,
            weight=capacity if isinstance(cluster.weight, str) else cluster.weight,
            peer=peer,
            s3=from_outside(s3, peer),
            control=from_outside(control, peer),
            wire=WIRE,
            origin=self._node.origin,
            accepts=self._seals().accepted,
            boot=str(self._node.boot),
            release=__version__,
            **agreement(self._settings),
        )
        timing = Timing(
            lease_s=cluster.lease, leave_after_s=cluster.leave_after, failover_s=cluster.engine_failover
        )
        if (late_write_s := read_bounds(self._settings).late_write_s) > LATE_WRITE_S:
            timing = replace(timing, late_write_s=late_write_s)
        is_new = _NODE not in self._kept
        membership = Membership(facts, secrets.token_hex(8), self._seals(), timing, is_new=is_new)
        objects = None if owned is None else owned.objects
        self._heartbeat = heartbeat = Heartbeat(
            membership,
            self._log,
            adopted=(lambda: None) if objects is None else objects.adopted,
            changed=self._look_soon,
            lapsed=(lambda: None) if objects is None else objects.lapsed,
            counters=self._counters,
        )
        if owned is not None:
            owned.member, owned.history = membership, history
            owned.objects.join(heartbeat, distrust=owned.distrust, void=owned.void)
        heartbeat.start()
        self._status = ClusterStatus(
            cluster.name,
            heartbeat,
            self._log,
            owned=objects,
            stats=None if owned is None else owned.all_stats,
            peers=dict if owned is None else owned.peer_states,
        )

    async def facts(self) -> ClusterFacts | None:
        """Return the cluster's facts for the doctor; None without a cluster, or until it is joined."""
        heartbeat, replication = self._heartbeat, self._replication
        if heartbeat is None or replication is None or self._status is None:
            return None
        return await collect_facts(self._status, heartbeat, replication, self.owned)

    def reloaded(self, settings: Settings) -> None:
        """Apply reloaded settings, and tell the other nodes those in which all nodes must agree."""
        if self.owned is not None:
            self.owned.reloaded(settings.telemetry)
        if self._heartbeat is not None:
            duties = self._heartbeat.membership.duties
            duties.change_facts(msgspec.structs.replace(duties.facts, **agreement(settings)))

    async def _say_goodbye(self) -> None:
        if self._heartbeat is not None:
            await self._heartbeat.aclose()

    def _look_soon(self) -> None:
        if self._replication is not None:
            self._replication.keeper.look.set()  # The log may have lost its data, and so its snapshot.
        if self.owned is not None:
            self.owned.view_changed()

    def _seals(self) -> Seals:
        cluster = self._settings.cluster
        return Seals(cluster.name, cluster.resolve_secrets())

    def warnings(self) -> list[str]:
        """Return in words what this proxy cannot do in the cluster now."""
        warning = self._warning()
        return [warning] if warning else []

    def _warning(self) -> str:
        replication, heartbeat = self._replication, self._heartbeat
        if replication is None:
            return ""
        if replication.refusal:
            return f"no hints are shared with the cluster: {replication.refusal}"
        if heartbeat is not None and (hindrance := heartbeat.membership.duties.hindrance):
            return hindrance
        unwritten = self.owned is not None and not self._is_leased()
        if replication.cut_off:
            return "cut off from the cluster: hints stay at this proxy" + ", writes are refused" * unwritten
        if unwritten:
            return "this proxy has no lease in the cluster: writes are refused"
        # Leave out the reason, because it names the engine's address, and any caller may ask for warnings.
        return "hints wait: the cluster's engine takes none now" if replication.sending_problem else ""

    def _is_leased(self) -> bool:
        return self._heartbeat is not None and self._heartbeat.membership.leased(boot_time_s())

    def _name(self, store: StateStore, kept: dict[str, bytes]) -> Node:
        """Return this proxy's name and the number of this start. Both are kept in the state directory."""
        name = kept.get(_NODE, b"").decode() or secrets.token_hex(8)
        # Let the number rise even if the clock was set back: other proxies ignore events of lower numbers.
        boot = max(int(self._clock.now_s() * 1000), int(kept.get(_BOOT, b"0")) + 1)
        store.put(_KIND, _NODE, name.encode())
        store.put(_KIND, _BOOT, str(boot).encode())
        return Node(name, boot, origin_digest(self._settings))

    def _share(
        self, parts: Parts, log: ClusterLog, node: Node, kept: dict[str, bytes]
    ) -> tuple[Replication, Places]:
        clock, hints = self._clock, parts.hints
        seals, contents = self._seals(), Contents(log)
        places = Places(parts.admin)
        applier = Applier(
            hints,
            contents,
            clock=clock,
            pool=parts.pool,
            settle=lambda job: parts.order_builder.settled(hints.orders, job),
            on_place=places.begin,
        )
        self._snapshots = snapshots = Snapshots(
            log,
            seals,
            contents,
            hints,
            origin=node.origin,
            clock=clock,
            pool=parts.pool,
            dirty=hints.dirty,
        )
        keeper = SnapshotKeeper(
            log, node, snapshots, applier, hints, clock=clock, pins=lambda: _pinned(parts.pins)
        )
        self._replication = Replication(
            log,
            seals,
            node,
            applier=applier,
            keeper=keeper,
            hints=hints,
            clock=clock,
            pool=parts.pool,
            counters=self._counters,
            reached=_reached(kept, self._settings.cluster.name),
        )
        return self._replication, places

    def _gauges(self) -> dict[str, float]:
        replication = self._replication
        if replication is None:
            return {}
        member = None if self._heartbeat is None else self._heartbeat.membership
        view = None if member is None else member.view
        settled = None if member is None else member.settled
        left_s = 0.0 if member is None else member.lease_left_s(boot_time_s())
        return {
            "view": 0.0 if view is None else float(view.id.number),
            "settled": 0.0 if settled is None else float(settled.id.number),
            "lease_seconds_left": left_s,
            "drained": float(self._status is not None and self._status.drained),
            "members": 0.0 if view is None else float(len(view.seats)),
            "cut_off": float(replication.cut_off),
            "waiting_events": float(len(replication.backlog)),
            "waiting_bytes": float(replication.backlog.size_bytes),
            "dropped_events": float(replication.backlog.dropped),
            "leased": float(self._is_leased()),
            "skipped_peers": 0.0 if self.owned is None else float(self.owned.skipped_peers),
        }

    async def _save(self, store: StateStore, replication: Replication) -> None:
        """Save the position up to which events were applied. After a restart, this proxy makes the purges,
        unpins and deletions that come after that position.
        """
        saved = replication.reached
        while True:
            await self._clock.sleep(_SAVE_S)
            if (reached := replication.reached) != saved:
                saved = reached
                store.put(_KIND, _REACHED, f"{self._settings.cluster.name} {reached}".encode())

    async def _aclose(self, parts: Parts, replication: Replication, places: "Places") -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await replication.aclose()
        await places.aclose()
        if replication.reached:
            reached = f"{self._settings.cluster.name} {replication.reached}"
            parts.store.put(_KIND, _REACHED, reached.encode())


def from_outside(address: str, peer: str) -> str:
    """Return the address of a listener for callers on other hosts; "" if there is no listener. If it listens
    on all addresses of this host, the result has the host of ``peer``, at which other proxies reach this one.
    """
    if not address or not (listener := parse_address(address)).is_unspecified:
        return address
    near = parse_address(peer)
    return address if near.is_unspecified else str(replace(near, port=listener.port))


def open_log(settings: Settings) -> ClusterLog:
    """Return the log of the cluster, without a connection yet. Raises ConfigError."""
    try:
        from shadeproxy.cluster.redis_log import RedisLog  # noqa: PLC0415 - only a cluster needs the library
    except ImportError as error:
        raise ConfigError(f"cluster.name: {error}", remedy=_EXTRA) from None
    cluster = settings.cluster
    return RedisLog(
        cluster.engine,
        cluster.name,
        password=cluster.resolve_engine_password() or "",
        ca_file=cluster.engine_ca_file,
    )


async def _close(log: ClusterLog) -> None:
    try:
        await log.close()
    except ShadeProxyError as error:
        _log.debug("the cluster's engine was not left in order", error=str(error))


def _pinned(pins: DurablePins) -> tuple[Place, ...]:
    return tuple(Place(*pin.place) for pin in pins.pins.by_call())


def _reached(kept: dict[str, bytes], cluster: str) -> str:
    name, _, position = kept.get(_REACHED, b"").decode().partition(" ")
    return position if name == cluster else ""
