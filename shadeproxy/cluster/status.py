"""The state of a cluster as one of its nodes sees it, for people, and for clients that call nodes
directly.
"""

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from shadeproxy.cluster.heartbeat import Heartbeat
from shadeproxy.cluster.log import ClusterLog
from shadeproxy.cluster.node_stats import NodeStats
from shadeproxy.cluster.ownership import OwnedObjects
from shadeproxy.cluster.peers import NOT_ASKED, PeerState
from shadeproxy.cluster.view import View
from shadeproxy.core.clock import boot_time_s
from shadeproxy.core.errors import ClusterUnavailable, Conflict, UnknownName


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the view. ``share``: the part of all objects that the node owns, from 0 to 1. ``away``: its
    lease is over, and other nodes act for it. ``s3``, ``control``, ``peer``: addresses, "" if there are none.
    ``p99_s``: the 99th percentile of the time that the answering node waited for the head of an answer of
    this node; 0.0 if there were no answers. ``skipped``: this node failed several times, and reads of the
    answering node now go past it.
    """

    node: str
    weight: float
    share: float
    away: bool
    s3: str
    control: str
    peer: str
    release: str
    p99_s: float = 0.0
    skipped: bool = False


class ClusterSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster, seen by ``node``. ``name`` "": there is none, and all else is empty.

    ``view``: number of the newest view. ``settled``: number of the last view for which no node can still act
    by an older one. 0: there is no such view. ``lease_s``: seconds that are left of this node's lease.
    ``problem``: why the last beat got no usable answer. ``refusal``: why this node asks for no place in the
    view. ``conflict``: another living process has this node's id. ``forgotten``: an operator removed this
    node. ``round_trip_s``: seconds from the last beat to its answer. ``pages``: "owned" if each object is
    cached by one node, "local" if each node keeps its own cache. ``cut_off``: the log has not answered for a
    lease. ``distrusted``: how often this node had to distrust what it cached, all or a part of it.
    ``drained``: this node was asked to give up its share. ``moving``: this node has asked for another weight,
    which does not count everywhere yet. ``late``: nodes that have not adopted the newest view yet.
    """

    name: str = ""
    pages: str = ""
    node: str = ""
    view: int = 0
    settled: int = 0
    lease_s: float = 0.0
    cut_off: bool = False
    problem: str = ""
    refusal: str = ""
    conflict: bool = False
    forgotten: bool = False
    round_trip_s: float = 0.0
    distrusted: int = 0
    drained: bool = False
    moving: bool = False
    late: list[str] = []
    nodes: list[NodeStatus] = []


class ObjectOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of one object, and its home, the node that keeps its pages. The two differ while the home is
    away.
    """

    uri: str
    owner: str
    home: str
    here: bool
    """True if the answering node is the owner, and has the lease now."""


class ClusterStatus:
    """Answers questions about the cluster ``name``, as the node of ``heartbeat`` sees it."""

    def __init__(
        self,
        name: str,
        heartbeat: Heartbeat,
        log: ClusterLog,
        clock: Callable[[], float] = boot_time_s,
        *,
        owned: OwnedObjects | None = None,
        stats: Callable[[], Awaitable[list[NodeStats]]] | None = None,
        peers: Callable[[], Mapping[str, PeerState]] = dict,
    ) -> None:
        """Make the object. ``owned``: None unless the nodes share their pages. ``stats``: asks all nodes for
        their statistics; None if ``owned`` is None. ``peers``: returns the states of the other nodes that
        were asked.
        """
        self._peers = peers
        self._owned = owned
        self._ask_for_stats = stats
        self._weight = heartbeat.membership.duties.facts.weight
        self._drained = False
        self._name = name
        self._heartbeat = heartbeat
        self._log = log
        self._clock = clock

    @property
    def node(self) -> str:
        """The name of the answering node."""
        return self._heartbeat.membership.node

    def summary(self) -> ClusterSummary:
        heartbeat, now_s = self._heartbeat, self._clock()
        member = heartbeat.membership
        view, settled, duties = member.view, member.settled, member.duties
        return ClusterSummary(
            name=self._name,
            pages="local" if self._owned is None else "owned",
            node=member.node,
            view=view.id.number if view is not None else 0,
            settled=settled.id.number if settled is not None else 0,
            lease_s=round(member.lease_left_s(now_s), 3),
            cut_off=member.cut_off(now_s),
            problem=heartbeat.problem,
            refusal=duties.refusal,
            conflict=duties.conflict,
            forgotten=duties.forgotten,
            round_trip_s=round(heartbeat.round_trip_s, 6),
            distrusted=0 if self._owned is None else self._owned.counters.distrusted,
            drained=self._drained,
            moving=self._is_moving(),
            late=list(duties.late),
            nodes=self._nodes(),
        )

    def owner(self, uri: str, object_hash: int) -> ObjectOwner:
        """Return the owner and the home of an object by the newest view. Raises Conflict if there is no view
        yet.
        """
        member = self._heartbeat.membership
        if member.view is None:
            raise Conflict("this node has no view of the cluster yet", hint="see problem in GET /v1/cluster")
        return ObjectOwner(
            uri=uri,
            owner=member.view.owner(object_hash) or "",
            home=member.view.home(object_hash) or "",
            here=member.mine(object_hash, self._clock()),
        )

    def shared_view(self) -> View | None:
        """Return the newest view, so that clients can call the node that caches what they read. None: each
        node keeps a cache of its own, or no view is known.
        """
        member = self._heartbeat.membership
        return None if self._owned is None or member.duties.refusal else member.view

    async def forget(self, node: str) -> ClusterSummary:
        """Remove a node from the view at once. It stays removed until its process restarts, even if it beats
        again. Raises UnknownName, ClusterUnavailable.
        """
        member = self._heartbeat.membership
        if member.view is None or node not in member.view.seats:
            known = ", ".join(member.view.seats) if member.view is not None else ""
            raise UnknownName(f"the cluster has no node {node!r}", hint=f"nodes: {known or 'none'}")
        try:
            await self._log.forget(member.view.id.inc, node)
        except ClusterUnavailable as error:
            raise ClusterUnavailable(
                f"{error}; the node may be removed nevertheless: call `shadeproxy cluster status`, and repeat"
                " the call if it still has the node"
            ) from error
        await self._heartbeat.beat()
        return self.summary()

    async def stats(self) -> list[NodeStats]:
        """Return the statistics of all nodes of the newest view. Raises Conflict if the nodes do not share
        their pages.
        """
        if self._ask_for_stats is None:
            raise Conflict(
                'with cluster.pages = "local" the nodes do not talk to each other',
                hint="call GET /v1/stats at each of them",
            )
        return await self._ask_for_stats()

    @property
    def drained(self) -> bool:
        """True while this node has no share because ``drain`` was called."""
        return self._drained

    def drain(self, *, drain: bool) -> ClusterSummary:
        """Ask for a view in which this node has no share. With ``drain`` False, ask for a view in which it
        has its share again. ``moving`` is True until that view is settled. A node stays drained until a call
        asks for its share again, or its process ends. Raises Conflict.
        """
        duties = self._heartbeat.membership.duties
        if drain:
            self._require_a_share()
        weight = 0.0 if drain else self._weight
        if duties.facts.weight != weight:
            duties.change_facts(msgspec.structs.replace(duties.facts, weight=weight))
            self._heartbeat.hurry()
        self._drained = drain
        return self.summary()

    def _require_a_share(self) -> None:
        """Raise Conflict if this node has no share to give up, or no other node could take the share."""
        member = self._heartbeat.membership
        if self._owned is None:
            raise Conflict(
                'with cluster.pages = "local" this node has no share that another could take',
                hint="send its clients to another proxy, and stop it",
            )
        if member.duties.refusal:
            raise Conflict(
                f"this node has no share: {member.duties.refusal}", hint="see refusal in GET /v1/cluster"
            )
        view = member.view
        if view is None:
            raise Conflict("this node has no view of the cluster yet", hint="see problem in GET /v1/cluster")
        if not any(
            facts.weight > 0 and node != member.node and not view.seats[node].away
            for node, facts in view.facts.items()
        ):
            raise Conflict(
                "this is the only node here that has a weight, so no other could take its share",
                hint="start another node first, or undo the drain of one",
            )

    def _is_moving(self) -> bool:
        member = self._heartbeat.membership
        weight = member.duties.facts.weight
        facts = [view.facts.get(member.node) for view in (member.view, member.settled) if view is not None]
        return len(facts) < 2 or any(one is None or one.weight != weight for one in facts)

    def _nodes(self) -> list[NodeStatus]:
        view = self._heartbeat.membership.view
        if view is None:
            return []
        peers = self._peers()
        return [
            NodeStatus(
                node=node,
                weight=facts.weight,
                share=round(view.part_of(node) or 0.0, 6),
                away=view.seats[node].away,
                s3=facts.s3,
                control=facts.control,
                peer=facts.peer,
                release=facts.release,
                p99_s=round((peer := peers.get(node, NOT_ASKED)).p99_s, 6),
                skipped=peer.skipped,
            )
            for node, facts in sorted(view.facts.items())
        ]
