"""The interface of a run's network: the addresses of the run's processes, and the cuts between them.

A place is where a process runs. It has the name of the node that runs there, or the name ``ENGINE`` if the
Redis server runs there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

ENGINE: Final = "engine"
LOOPBACK: Final = "127.0.0.1"
LIMIT_BYTES: Final = 1 << 20
"""The longest line or head of an answer that a connection reads, in bytes."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[int], Awaitable[Streams]]


class Cut(StrEnum):
    """The ways in which two places are cut from each other."""

    SILENT = "nothing arrives"
    REQUESTS = "requests do not arrive"
    ANSWERS = "answers do not arrive"
    REFUSED = "connections are refused"


class Site(NamedTuple):
    """The addresses of a node, as "host:port" or as ports of its own loopback. ``listen``: its listener for
    other nodes. ``advertise``: where other nodes find this listener. ``engine``, ``origin_host``: where the
    node finds the Redis server and the origin.
    """

    s3_port: int
    control_port: int
    listen: str
    advertise: str
    engine: str
    origin_host: str


class Network(Protocol):
    """The network of a run. ``engine_host``, ``engine_port``: the address on which the Redis server
    listens.
    """

    engine_host: str
    engine_port: int

    async def open(self) -> None:
        """Make the network. Raises ShadeProxyError."""

    def site(self, node: str) -> Site: ...

    def command(self, place: str, command: Sequence[str]) -> list[str]:
        """Return a command that runs ``command`` at ``place``."""

    async def up(self, place: str) -> None:
        """Accept connections to ``place`` from now on: the process there runs now, or soon."""

    def down(self, place: str) -> None:
        """Refuse connections to ``place``, because the process there has ended."""

    async def cut(self, one: str, other: str, how: Cut) -> None:
        """Cut two places from each other, in the way ``how``. If requests go in one direction only, ``one``
        sends them.
        """

    async def heal(self, one: str, other: str) -> None:
        """Undo all cuts between two places."""

    async def connect(self, port: int) -> Streams:
        """Connect to ``port`` on the loopback of the place where a process listens at this port. Raises
        OSError.
        """

    async def aclose(self) -> None:
        """Remove the network. All processes must have ended."""


Pids = Callable[[], Mapping[str, int]]
"""A function that returns the process ids of the nodes that were started, by name."""
MakeNetwork = Callable[[Sequence[str], Pids], Network]
"""A function that makes a network for nodes of the given names."""


async def connect_on_loopback(port: int) -> Streams:
    return await asyncio.open_connection(LOOPBACK, port, limit=LIMIT_BYTES)
