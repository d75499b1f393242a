"""A network on loopback whose links are relays. It needs no special rights."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from shadeproxy_bench.ports import free_port
from shadeproxy_bench.reliability.cluster.links import ANYBODY, Link
from shadeproxy_bench.reliability.cluster.network import (
    ENGINE,
    LOOPBACK,
    Cut,
    Pids,
    Site,
    Streams,
    connect_on_loopback,
)

RELAYS: Final = "relays"
_PORTS = 5


class _Links(NamedTuple):
    """The ports of a node, and its two links: from the node to the Redis server, and from the other nodes to
    the node.
    """

    s3_port: int
    control_port: int
    engine: Link
    peer: Link


class Relays:
    """Implements ``Network`` by relays. ``pids``: a function that returns the process ids of the nodes. By
    these ids a relay finds the node that opened a connection.
    """

    def __init__(self, names: Sequence[str], pids: Pids) -> None:
        self.engine_host = LOOPBACK
        self.engine_port = first = free_port(len(names) * _PORTS + 1)
        self._nodes: dict[str, _Links] = {}
        for place, name in enumerate(names):
            at = first + 1 + place * _PORTS
            links = _Links(at, at + 1, Link(first, at + 2), Link(at + 3, at + 4, pids))
            self._nodes[name] = links

    async def open(self) -> None:
        """Do nothing: the links to a process are opened when it starts."""

    def site(self, node: str) -> Site:
        links = self._nodes[node]
        return Site(
            links.s3_port,
            links.control_port,
            listen=f"{LOOPBACK}:{links.peer.target}",
            advertise=f"{LOOPBACK}:{links.peer.port}",
            engine=f"{LOOPBACK}:{links.engine.port}",
            origin_host=LOOPBACK,
        )

    def command(self, _place: str, command: Sequence[str]) -> list[str]:
        return list(command)

    async def up(self, place: str) -> None:
        for link in self._to(place):
            await link.open()

    def down(self, place: str) -> None:
        for link in self._to(place):
            link.shut()

    async def cut(self, one: str, other: str, how: Cut) -> None:
        for link, sender in self._between(one, other):
            link.cut(sender, how)

    async def heal(self, one: str, other: str) -> None:
        for link, sender in self._between(one, other):
            link.heal(sender)

    async def connect(self, port: int) -> Streams:
        return await connect_on_loopback(port)

    async def aclose(self) -> None:
        for links in self._nodes.values():
            await links.engine.aclose()
            await links.peer.aclose()

    def _to(self, place: str) -> list[Link]:
        if place == ENGINE:
            return [links.engine for links in self._nodes.values()]
        return [self._nodes[place].peer]

    def _between(self, one: str, other: str) -> list[tuple[Link, str]]:
        """Return the links between two places, each with the sender for which it must be cut."""
        if other == ENGINE:
            return [(self._nodes[one].engine, ANYBODY)]
        return [(self._nodes[one].peer, other), (self._nodes[other].peer, one)]
