"""The state of a cluster as one of its nodes sees it, for people and for clients that call nodes directly."""

from collections.abc import Callable

import msgspec

from shadeproxy.cluster.heartbeat import Heartbeat, boot_time_s
from shadeproxy.cluster.log import ClusterLog
from shadeproxy.cluster.ownership import OwnedObjects
from shadeproxy.cluster.view import View
from shadeproxy.core.errors import Conflict, UnknownName


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the view. ``share``: the part of all objects that it owns, from 0 to 1. ``away``: its lease
    is over, and the others act for it. Addresses are "" if there are none.
    """

    node: str
    weight: float
    share: float
    away: bool
    s3: str
    control: str
    peer: str
    release: str


class ClusterSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster, seen by ``node``. ``name`` "": there is none, and all else is empty.

    ``view``, ``settled``: numbers of the newest view, and of the last one that no node can still act against;
    0: none. ``lease_s``: seconds that are left of this node's lease. ``problem``: why the last beat got no
    usable answer. ``refusal``: why this node asks for no place in the view. ``conflict``: another living
    process has this node's id. ``round_trip_s``: time of the last beat. ``pages``: "owned" if each object is
    cached by one node, "local" if each node keeps its own cache. ``cut_off``: the log has not answered for a
    lease. ``distrusted``: how often this node had to distrust what it cached, all or a part of it.
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
    round_trip_s: float = 0.0
    distrusted: int = 0
    nodes: list[NodeStatus] = []


class ObjectOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of one object, and the node that keeps its pages; they differ while the latter is away."""

    uri: str
    owner: str
    home: str
    here: bool
    """True if the answering node is the owner, and may act as such now."""


class ClusterStatus:
    """Answers about the cluster ``name`` at the node of ``heartbeat``."""

    def __init__(
        self,
        name: str,
        heartbeat: Heartbeat,
        log: ClusterLog,
        clock: Callable[[], float] = boot_time_s,
        *,
        owned: OwnedObjects | None = None,
    ) -> None:
        """``owned``: None unless the nodes share their pages."""
        self._owned = owned
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
            round_trip_s=round(heartbeat.round_trip_s, 6),
            distrusted=0 if self._owned is None else self._owned.counters.distrusted,
            nodes=self._nodes(),
        )

    def owner(self, uri: str, object_hash: int) -> ObjectOwner:
        """Return the owner of an object by the newest view. Raises Conflict if there is no view yet."""
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
        """Return the newest view, by which clients may call the nodes that keep what they read. None: nodes
        keep pages of their own, or none is known.
        """
        member = self._heartbeat.membership
        return None if self._owned is None or member.duties.refusal else member.view

    async def forget(self, node: str) -> ClusterSummary:
        """Remove a node from the view without waiting for it to come back; it stays out until its process
        restarts. Raises UnknownName, ClusterUnavailable.
        """
        member = self._heartbeat.membership
        if member.view is None or node not in member.view.seats:
            known = ", ".join(member.view.seats) if member.view is not None else ""
            raise UnknownName(f"the cluster has no node {node!r}", hint=f"nodes: {known or 'none'}")
        await self._log.forget(member.view.id.inc, node)
        await self._heartbeat.beat()
        return self.summary()

    def _nodes(self) -> list[NodeStatus]:
        view = self._heartbeat.membership.view
        if view is None:
            return []
        weights = dict(zip(view.owners.nodes, view.owners.weights, strict=True))
        whole = sum(weights.values())
        return [
            NodeStatus(
                node=node,
                weight=facts.weight,
                share=round(weights.get(node, 0.0) / whole, 6) if whole else 0.0,
                away=view.seats[node].away,
                s3=facts.s3,
                control=facts.control,
                peer=facts.peer,
                release=facts.release,
            )
            for node, facts in sorted(view.facts.items())
        ]
