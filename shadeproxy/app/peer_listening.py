"""``PeerListening``: the listener for the other proxies of a cluster, and the servers behind it."""

import socket
import ssl
from collections.abc import Callable
from typing import NamedTuple

from shadeproxy.api.s3.server import S3Server
from shadeproxy.app.channel import ClusterEnds
from shadeproxy.app.connection_limits import ConnectionLimit
from shadeproxy.cluster.relay_counts import RelayRow


class PeerListening(NamedTuple):
    """The listener for the other proxies of a cluster, on which workers accept too. ``node``: this proxy's
    name. ``secrets``: the values of cluster.secret. ``server``: accepts on this listener in the coordinator,
    with ``tls``. ``relay``: serves the requests that workers pass on. ``limit``: the limit of connections.
    ``on_relays``: gets the counts of the requests that workers send to other proxies.
    """

    node: str
    secrets: tuple[str, ...]
    listener: socket.socket
    server: S3Server
    tls: ssl.SSLContext | None
    relay: S3Server
    limit: ConnectionLimit
    on_relays: Callable[[list[RelayRow]], None]

    def ends(self, relay: str, row: int) -> ClusterEnds:
        """Return the part that the worker of ``row`` gets. ``relay``: the address of the server ``relay``."""
        at, limit = self.listener.fileno(), self.limit.of_worker(row)
        return ClusterEnds(self.node, at, relay, self.secrets, limit)
