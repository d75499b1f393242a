"""The routes to the other nodes, as a worker knows them. A worker takes no part in the protocol of leases and
views: it gets the newest view from its coordinator.

Law: the routes may be out of date. A node that no longer caches an object refuses to read it. The coordinator
then finds the right node.
"""

from typing import NamedTuple

from shadeproxy.cluster.log import ViewRecord
from shadeproxy.cluster.signed import Seals
from shadeproxy.cluster.view import NodeFacts, View
from shadeproxy.core.identity import object_hash
from shadeproxy.core.memo import Memo
from shadeproxy.core.types import ObjectRef

_MOST_HOMES = 32_768


class RoutesRecord(NamedTuple):
    """A view as the coordinator sends it to workers. ``inc``: the view's incarnation. ``asks``: whether reads
    may go to other nodes.
    """

    inc: str
    view: ViewRecord
    asks: bool


class WorkerRoutes:
    """The routes from ``node`` to the other nodes, by the last record that it adopted."""

    def __init__(self, node: str, seals: Seals) -> None:
        self._node = node
        self._seals = seals
        self._view: View | None = None
        self._asks = False
        self._homes: Memo[int, str] = Memo(_MOST_HOMES)

    def adopt(self, record: RoutesRecord) -> None:
        """Use a record from now on. Raises PeerError if a node's facts are forged, and then changes
        nothing.
        """
        self._view = View(record.inc, record.view, self._seals)
        self._asks = record.asks
        self._homes = Memo(_MOST_HOMES)

    def reader(self, ref: ObjectRef) -> NodeFacts | None:
        """Return the other node to ask for a read of the object; None if there is none to ask."""
        view, home = self._view, self._home(ref)
        if view is None or home is None or home == self._node or not self._asks or view.seats[home].away:
            return None
        return view.facts[home]

    def is_elsewhere(self, ref: ObjectRef) -> bool:
        """Return whether another node caches the object."""
        home = self._home(ref)
        return home is not None and home != self._node

    def others(self) -> list[NodeFacts]:
        """Return the facts of all other nodes."""
        return (
            [] if self._view is None else [one for one in self._view.facts.values() if one.node != self._node]
        )

    def away(self) -> list[str]:
        """Return the nodes that are away: their last lease is over, and they have no new one yet."""
        return [] if self._view is None else [node for node, seat in self._view.seats.items() if seat.away]

    def _home(self, ref: ObjectRef) -> str | None:
        """Return the node that caches the object, which may be this one; None if no view is known, or the
        view has no nodes.
        """
        if self._view is None:
            return None
        hashed = object_hash(ref)
        home = self._homes.get(hashed)
        if home is None and (home := self._view.home(hashed)) is not None:
            self._homes.put(hashed, home)
        return home
