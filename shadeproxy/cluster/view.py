"""A view: the numbered list of a cluster's nodes, from which each node computes the owners of objects. A view
never changes.
"""

from collections.abc import Iterable

import msgspec

from shadeproxy.cluster.log import Seat, ViewId, ViewRecord
from shadeproxy.cluster.rendezvous import Rendezvous
from shadeproxy.cluster.signed import Seals
from shadeproxy.core.errors import PeerError

_PURPOSE = "node"


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of one node that the other nodes need, sealed by the node itself.

    ``weight``: the node's share of the objects is in proportion to it, and with 0 the node gets no objects.
    ``peer``, ``s3``, ``control``: addresses of the node's listeners, "" if there is none. ``wire``: version
    of the messages between nodes. ``origin``: digest of the origin's name. ``config``: cluster.pages, and
    with owned pages a digest of all settings in which nodes must agree. ``settings``: the name and a digest
    of each of these settings, by which a misfit is named. ``accepts``: ``Seals.accepted`` of the node.
    ``lease_s``, ``failover_s``: as in the node's ``Timing``. Facts of earlier releases lack these four.
    ``distrust``: a number that the node changes when all nodes must distrust their cached pages. ``boot``:
    the number of the node's start. ``release``: the software's version, for people.
    """

    node: str
    weight: float
    peer: str = ""
    s3: str = ""
    control: str = ""
    wire: int = 1
    origin: str = ""
    config: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    accepts: tuple[str, ...] = ()
    lease_s: float = 0.0
    failover_s: float = 0.0
    distrust: int = 0
    boot: str = ""
    release: str = ""

    def misfit(self, other: "NodeFacts") -> str:
        """Return a text with the reason why this node cannot join a cluster of which ``other`` is a node; ""
        if it can.
        """
        named = f"node {other.node} of the cluster"
        if other.wire != self.wire:
            return (
                f"{named} speaks version {other.wire} of the nodes' protocol and this one version"
                f" {self.wire}; upgrade the older one"
            )
        if other.origin != self.origin:
            return f"{named} has another origin; give this cluster another cluster.name"
        if self.accepts and other.accepts and self.accepts[0] not in other.accepts:
            # With a seat of this node, the other nodes could not use the view.
            return (
                f"{named} does not accept the first secret of this one's cluster.secret; change the secret in"
                " the three rounds that docs/cluster.md describes"
            )
        theirs, own = (facts.config.partition(" ")[0] for facts in (other, self))
        if {theirs, own} == {"owned", "local"}:
            alone = "; so other proxies do not learn of this one's writes" if own == "local" else ""
            return f'{named} has cluster.pages = "{theirs}", this one "{own}"{alone}'
        if other.config != self.config:
            known = dict(other.settings)
            differ = [name for name, value in self.settings if known.get(name, value) != value]
            told = f": {', '.join(differ)}" if differ else ""
            return f"{named} has other settings in which nodes must agree{told}"
        return ""


_facts = msgspec.msgpack.Decoder(NodeFacts)


def seal_facts(facts: NodeFacts, seals: Seals) -> bytes:
    return seals.seal(_PURPOSE, msgspec.msgpack.encode(facts))


def unseal_facts(seat: Seat, seals: Seals) -> NodeFacts:
    """Return the facts in a seat. Raises ``PeerError`` if the node itself did not seal them."""
    try:
        facts = _facts.decode(seals.unseal(_PURPOSE, seat.facts, seat.node))
    except msgspec.DecodeError as error:
        raise PeerError(f"the facts of node {seat.node} cannot be read: {error}") from error
    if facts.node != seat.node:
        raise PeerError(f"node {seat.node} has the facts of node {facts.node}")
    return facts


class View:
    """One view. ``seats``: the seats of the nodes, by name, with sealed facts. ``facts``: the unsealed facts,
    by name.
    """

    def __init__(self, inc: str, record: ViewRecord, seals: Seals) -> None:
        """Check the facts of every seat. Raises ``PeerError`` if those of one node are forged: a view is used
        whole or not at all.
        """
        self.id = ViewId(inc, record.number)
        self.seats = {seat.node: seat for seat in record.seats}
        self.facts = {seat.node: unseal_facts(seat, seals) for seat in record.seats}
        self.owners = self._rendezvous(node for node, seat in self.seats.items() if not seat.away)
        """Computes owners, among the nodes that are not away. The owner serialises the writes of an
        object.
        """
        self.homes = self._rendezvous(self.seats)
        """Computes homes, among all nodes, also those that are away. The home caches an object."""

    def _rendezvous(self, nodes: Iterable[str]) -> Rendezvous:
        names = sorted(nodes)
        return Rendezvous(names, [self.facts[node].weight for node in names])

    def part_of(self, node: str) -> float | None:
        """Return the part of all objects that the node owns, from 0 to 1; None if the node is away, or not in
        the view.
        """
        weights = dict(zip(self.owners.nodes, self.owners.weights, strict=True))
        whole = sum(weights.values())
        if node not in self.seats or self.seats[node].away:
            return None
        return weights.get(node, 0.0) / whole if whole else 0.0

    def owner(self, object_hash: int) -> str | None:
        """Return the owner of an object; None if all nodes are away."""
        return self.owners.find(object_hash)

    def distrusts(self, before: "View") -> bool:
        """Return whether a node of this view asks all others to distrust what they cached, and did not ask so
        in ``before``.

        When a node's process has ended, the node's number is 0 again, or the node is no longer in the view.
        That is no request for distrust: all nodes have already obeyed the node's former number.
        """
        numbers = {node: facts.distrust for node, facts in before.facts.items()}
        return any(
            facts.distrust and facts.distrust != numbers.get(node, 0) for node, facts in self.facts.items()
        )

    def home(self, object_hash: int) -> str | None:
        """Return the node that caches the object. It is also the owner, unless it is away."""
        return self.homes.find(object_hash)
