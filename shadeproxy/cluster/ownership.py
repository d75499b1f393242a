"""Ownership of objects by leases. ``OwnedObjects`` asks ``Membership`` which objects this node owns. It
implements the engine's port (engine/ownership.py), and the routes to the other nodes (routes.py).

Laws: a lease ends by time alone, so every call that grants a right reads the clock. The first of these calls
after the end of the lease voids all page handles, flights and checks before it returns. Page handles are
judged by the time of a ``LeaseClock``, and reading that clock is one of these calls.
"""

import asyncio
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from shadeproxy.cluster.heartbeat import Heartbeat
from shadeproxy.cluster.log import ViewRecord
from shadeproxy.cluster.membership import Keep, Membership
from shadeproxy.cluster.view import NodeFacts, View
from shadeproxy.cluster.worker_routes import RoutesRecord
from shadeproxy.core.clock import Clock, boot_time_s
from shadeproxy.core.errors import ClusterUnavailable
from shadeproxy.core.identity import object_hash
from shadeproxy.core.memo import Memo
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.ownership import Began, Standing
from shadeproxy.hints.datasets import Bits, Hashes
from shadeproxy.hints.order.share import OwnedShare
from shadeproxy.telemetry.counters import ClusterCounters

_LOOK_S = 0.02
_WAIT_S = 5.0
"""Seconds for which a write waits at most until this process owns the object. That is longer than a lease,
because the objects of a dead proxy get another owner when its lease is over.
"""
_DISTRUST_S = 10.0
_MOST_PLACES = 32_768
_MOST_LAPSES = 1024


class _Place(NamedTuple):
    """The nodes of one object. ``home``: the node that caches it. ``reader``: the result of
    ``Routes.reader``; it counts only while this node may have a seat in the view. ``named``: True if this
    node owns the object while it has the lease.
    """

    home: str | None
    reader: NodeFacts | None
    named: bool


class OwnedObjects:
    """The objects that this process owns: none until ``join`` is called. Call ``join`` only once.

    ``by_rule``: returns whether an object is answered by its freshness rule while the log is out of reach.
    ``counters``: counts lapses of the lease, and rises of the trust epoch. ``on_lease``: called with the end
    of the lease (seconds since boot). Workers, which answer from the same cache, may use pages without a
    check until that time.
    """

    def __init__(
        self,
        *,
        by_rule: Callable[[ObjectRef], bool],
        counters: ClusterCounters | None = None,
        on_lease: Callable[[float], None] = lambda _until_s: None,
        clock: Callable[[], float] = boot_time_s,
    ) -> None:
        self.counters = ClusterCounters() if counters is None else counters
        self.lease: memoryview[float] = memoryview(array("d", [inf]))
        """Time (seconds since boot, one f64) until which ``notice`` has nothing to do: the end of the lease,
        and inf while there is no lease.
        """
        self.clock = clock
        """Seconds since boot."""
        self._on_lease = on_lease
        self._by_rule = by_rule
        self._heartbeat: Heartbeat | None = None
        self._member: Membership | None = None
        self._distrust: Callable[[Keep | None], None] = lambda _keep: None
        self._void: Callable[[], None] = lambda: None
        self._epoch = 0
        self._leased = False
        self._lapsed_s: deque[float] = deque(maxlen=_MOST_LAPSES)
        self._ruled = False
        """True if, since the log last answered, ``standing`` returned OWN for an object without a lease, by
        the object's freshness rule alone.
        """
        self._views: tuple[View | None, View | None] = (None, None)
        self._places: Memo[int, _Place] = Memo(_MOST_PLACES)
        """The ``_Place`` of each object hash, by the two views in ``_views``. Computing one takes some
        microseconds for each node.
        """

    def join(
        self,
        heartbeat: Heartbeat,
        *,
        distrust: Callable[[Keep | None], None],
        void: Callable[[], None],
    ) -> None:
        """Take part in the cluster by the beats of ``heartbeat``. Make it with ``adopted=self.adopted``.

        ``distrust`` is called at each rise of the trust epoch, with a function that says which objects are
        still trusted; None: no object is. ``void`` is called when the lease has ended: page handles, flights
        and checks that began before may no longer answer.
        """
        self._heartbeat, self._member = heartbeat, heartbeat.membership
        self._distrust, self._void = distrust, void

    def adopted(self) -> None:
        """Act on an answer of the log that the membership has just adopted."""
        member = self._member
        if member is None:
            return
        epoch, self._epoch = self._epoch, member.epoch
        if member.epoch != epoch:
            self.counters.distrusted += 1
            # Marking the distrusted pages takes some milliseconds. The workers do not wait for that, so they
            # must not answer from the cache meanwhile.
            self.lapsed()
            self._distrust(member.keep_since(epoch))
        if member.leased(self.clock()):
            self._leased, self._ruled = True, False
        else:
            self.notice()
            # The log answers again, but grants no lease. From now on a freshness rule alone does not make an
            # object OWN.
            if self._ruled:
                self._ruled = False
                self._void()
        self._show(member.lease_until_s)

    def lapsed(self) -> None:
        """Keep the workers from answering from the cache, until the log has answered the next beat."""
        self._show(-inf)

    def _show(self, until_s: float) -> None:
        self.lease[0] = until_s if self._leased else inf
        self._on_lease(until_s)

    def notice(self) -> None:
        """Void page handles, flights and checks, if the lease has ended since the last call."""
        if self._leased and self._member is not None and not self._member.leased(self.clock()):
            self._leased, self.lease[0] = False, inf
            self.counters.lapses += 1
            self._lapsed_s.append(self.clock())
            self._void()

    def lapses_within(self, seconds: float) -> int:
        """Return how often the lease has lapsed in the last ``seconds``."""
        self.notice()
        since_s = self.clock() - seconds
        return sum(at_s >= since_s for at_s in self._lapsed_s)

    # ------------------------------------------------------------------ routes.py ``Routes``

    def reader(self, ref: ObjectRef) -> NodeFacts | None:
        """Return the other node to ask for a read of the object; None if there is none to ask."""
        member = self._member
        # These lines repeat ``_view`` to save a call, because each relayed read comes here.
        if member is None or member.view is None or member.duties.refusal:
            return None
        return self._place(member, member.view, object_hash(ref)).reader

    def writer(self, ref: ObjectRef) -> NodeFacts | None:
        """Return the other node that executes writes of the object; None if this node does, or none can."""
        view = self._view()
        return None if view is None else self._other(view, view.owner(object_hash(ref)))

    def is_hindered(self) -> bool:
        """Return whether this node has no part in the cluster, although the cluster's log answers."""
        return self._member is not None and bool(self._member.duties.hindrance)

    def others(self) -> list[NodeFacts]:
        """Return all other nodes of the newest view."""
        member = self._member
        if member is None or member.view is None:
            return []
        return [facts for node, facts in member.view.facts.items() if node != member.node]

    def away(self) -> list[str]:
        """Return the nodes of the newest view that are away: their last lease is over, and they have no new
        one yet.
        """
        view = None if self._member is None else self._member.view
        return [] if view is None else [node for node, seat in view.seats.items() if seat.away]

    def part(self) -> float | None:
        """Return the part of all objects that this node owns by the newest view; None if the view does not
        have this node.
        """
        view = self._view()
        return None if view is None or self._member is None else view.part_of(self._member.node)

    def routes_record(self) -> RoutesRecord | None:
        """Return the routes of the newest view, in the form for workers; None if there is no view."""
        member = self._member
        if member is None or member.view is None:
            return None
        view = member.view
        record = ViewRecord(view.id.number, tuple(view.seats.values()))
        return RoutesRecord(view.id.inc, record, asks=not member.duties.refusal)

    def share(self) -> OwnedShare:
        """Return the objects that this node caches by the newest view, for the announced orders of jobs."""
        view = self._view()
        if view is None or self._member is None:
            return OwnedShare(None, _none)
        homes, node = view.homes, self._member.node
        if node not in homes.nodes:
            return OwnedShare((), _none)
        return OwnedShare(
            (homes.nodes, homes.weights),
            lambda hashes: homes.find_many(hashes) == homes.nodes.index(node),
            lambda hashed: homes.find(hashed) == node,
        )

    def _view(self) -> View | None:
        """Return the newest view, if this node may have a seat in it. A node that may not has other settings
        or another origin than the nodes of the view, and must not ask them.
        """
        member = self._member
        return None if member is None or member.duties.refusal else member.view

    def _other(self, view: View, node: str | None) -> NodeFacts | None:
        assert self._member is not None, "there is a view"
        if node is None or node == self._member.node or view.seats[node].away:
            return None
        return view.facts[node]

    # ------------------------------------------------------------------ engine/ownership.py ``Ownership``

    def standing(self, ref: ObjectRef) -> Standing:
        """Return the right of this process to answer reads of the object now: OWN, CHECK or FOREIGN."""
        self.notice()
        member = self._member
        if member is None or member.view is None:
            return Standing.CHECK
        now_s, hashed = self.clock(), object_hash(ref)
        place = self._place(member, member.view, hashed)
        if place.home != member.node:
            return Standing.FOREIGN
        if place.named and member.leased(now_s):
            return Standing.CHECK if member.must_check(hashed, now_s) else Standing.OWN
        if member.cut_off(now_s) and self._by_rule(ref):
            self._ruled = True
            return Standing.OWN
        return Standing.CHECK

    def may_store(self, ref: ObjectRef) -> bool:
        """Return whether this process may store pages of the object. False before the first view: the object
        may belong to another node, and the page would then stay here.
        """
        member = self._member
        known = member is not None and member.view is not None
        return known and self.standing(ref) is not Standing.FOREIGN

    def own_for_s(self, ref: ObjectRef) -> float:
        """Return for how many seconds the object stays OWN: 0.0 if it is not OWN, else infinity. Infinity is
        safe, because a ``LeaseClock`` voids page handles when the lease ends.
        """
        return inf if self.standing(ref) is Standing.OWN else 0.0

    def begin(self) -> Began:
        """Return this instant. Call it before a read of the origin, and give the result to ``trusts``."""
        return Began(0 if self._member is None else self._member.epoch, self.clock())

    def trusts(self, ref: ObjectRef, began: Began) -> bool:
        """Return whether the answer to a read of the origin, begun at ``began``, may serve later readers."""
        if self.standing(ref) is not Standing.OWN:
            return False
        member, hashed = self._member, object_hash(ref)
        assert member is not None, "without a membership nothing is OWN"
        return member.trusts(hashed, began.epoch) and not member.must_check(hashed, began.at_s)

    def mine(self, ref: ObjectRef) -> bool:
        """Return whether this process, and no other, may execute writes of the object now."""
        self.notice()
        member = self._member
        if member is None or member.view is None or not member.leased(self.clock()):
            return False
        return self._place(member, member.view, object_hash(ref)).named

    def writes_here(self, ref: ObjectRef) -> bool:
        """Return whether the newest view lets this process execute the object's writes. True if there is no
        view: then no other process is known to write.
        """
        view = None if self._member is None else self._member.view
        return view is None or self._member is None or view.owner(object_hash(ref)) == self._member.node

    async def wait_until_mine(self, refs: Sequence[ObjectRef]) -> bool:
        """Wait until all objects are ``mine``, for ``_WAIT_S`` at most, and return whether they are. End the
        wait early if the newest view gives one of the objects to another node.
        """
        until_s = self.clock() + _WAIT_S
        while not all(map(self.mine, refs)):
            moved = not all(map(self.writes_here, refs))
            if moved or self.clock() >= until_s:
                reason = "moved" if moved else "lease"
                self.counters.refused_writes[reason] = self.counters.refused_writes.get(reason, 0) + 1
                return False
            await self._look_later()
        return True

    async def distrust_bucket(self, bucket: str, namespace: str) -> None:
        """Let every proxy distrust its cached pages of a bucket, and return when all have done so. They
        distrust the pages of all buckets, because a view cannot name a bucket. Raises ClusterUnavailable.
        """
        del namespace
        if self._member is None:
            raise _not_distrusted(bucket)
        number, until_s = self._member.ask_for_distrust(), self.clock() + _DISTRUST_S
        while not self._member.is_distrusted(number):
            if self.clock() >= until_s:
                raise _not_distrusted(bucket)
            await self._look_later()

    def _place(self, member: Membership, view: View, hashed: int) -> "_Place":
        views = (view, member.settled)
        if views != self._views:
            self._views = views
            self._places = Memo(_MOST_PLACES)
        place = self._places.get(hashed)
        if place is None:
            home = view.home(hashed)
            place = _Place(home, self._other(view, home), member.is_named(hashed))
            self._places.put(hashed, place)
        return place

    async def _look_later(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.hurry()
        await asyncio.sleep(_LOOK_S)


class LeaseClock:
    """The clock by which page handles are judged. Reading it after the end of the lease voids all page
    handles.
    """

    def __init__(self, clock: Clock, ownership: OwnedObjects) -> None:
        self.wall_s = clock.now_s
        """Returns Unix time. Does not check whether the lease has ended."""
        self._notice = ownership.notice
        self._boot_s = ownership.clock
        self._lease = ownership.lease
        self.monotonic_s = clock.monotonic_s
        self.sleep = clock.sleep

    @property
    def lease(self) -> "memoryview[float] | None":
        """The end of the lease, until which ``wall_s`` may be called instead of ``now_s``. None if the lease
        is judged by another clock than ``boot_time_s``: then only ``now_s`` may be called.
        """
        return self._lease if self._boot_s is boot_time_s else None

    def now_s(self) -> float:
        """Return Unix time. If the lease has ended, void the page handles before."""
        if self._boot_s() >= self._lease[0]:
            self._notice()
        return self.wall_s()


def _none(hashes: Hashes) -> Bits:
    return np.zeros(len(hashes), np.bool_)


def _not_distrusted(bucket: str) -> ClusterUnavailable:
    return ClusterUnavailable(
        f"not all proxies of the cluster know that bucket {bucket!r} changed: the origin has made the change;"
        " repeat the call"
    )
