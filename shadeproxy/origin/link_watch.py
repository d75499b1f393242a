"""Ends connections that the network carries no longer, although neither a FIN nor a reset said so.

Laws: a server that works for long, or takes no bytes for a while, must keep its connection. The kernel of
such a server still acknowledges. So while no bytes wait to be sent, TCP keepalive asks the server's kernel.
While bytes wait, the proxy's kernel sends them again, or asks whether the receive window has opened.
``LinkWatch`` looks for how long these bytes and questions were not acknowledged. TCP_USER_TIMEOUT is not
used, because it would also end a connection whose server keeps its window closed.
"""

import asyncio
import socket
import struct
from collections.abc import Collection
from typing import Protocol

from shadeproxy.core.sockets import reset_on_close

_ASK_EVERY_S = 1
_LOOKS = 4
_INFO_BYTES = 104
# ``tcpi_state``, ``tcpi_probes``, ``tcpi_unacked``, ``tcpi_last_ack_recv`` (milliseconds) of <linux/tcp.h>.
_INFO = struct.Struct("@B2xB20xI28xI")
_ESTABLISHED = 1
_UNANSWERED = 2
"""Number of unanswered questions about a closed window that show a dead link. The answer to a single one may
still be on its way.
"""


class Linked(Protocol):
    """A connection that can be watched."""

    @property
    def link(self) -> socket.socket | None:
        """The socket; None if there is none any more."""
        ...

    def time_out(self) -> None:
        """End the connection now."""
        ...


class LinkWatch:
    """Ends those of ``connections`` on which the other machine has acknowledged nothing for ``dead_link_s``.
    ``connections``: those that are open now.
    """

    def __init__(self, dead_link_s: float, connections: Collection[Linked]) -> None:
        self._dead_link_s = dead_link_s
        self._connections = connections
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Watch as long as there are connections. Call it when there is a new one."""
        if self._timer is None:
            seconds = self._dead_link_s / _LOOKS
            self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def close(self) -> None:
        """Stop watching all connections; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        for connection in list(self._connections):
            if (link := connection.link) is not None and _waits_for_s(link) >= self._dead_link_s:
                # Drop bytes that were not acknowledged. Otherwise the kernel would send them again: a write
                # that was given up could reach its server much later, after a newer write.
                reset_on_close(link)
                connection.time_out()
        if self._connections:
            self.watch()


def ask_when_idle(connection: socket.socket, dead_link_s: float) -> None:
    """Let the kernel end a connection on which no bytes are under way, if the other machine acknowledges
    nothing for ``dead_link_s``.
    """
    first_s = max(1, int(dead_link_s / 2))
    asked = max(1, int((dead_link_s - first_s) / _ASK_EVERY_S))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, first_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _ASK_EVERY_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, asked)


def _waits_for_s(connection: socket.socket) -> float:
    """Return for how long the other machine has not acknowledged bytes or questions; 0.0 if there are none,
    or the connection is still being opened, for which there is another time limit.
    """
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    state, probes, unacked, last_ack_ms = _INFO.unpack_from(told)
    is_waiting = state == _ESTABLISHED and (unacked or probes >= _UNANSWERED)
    return last_ack_ms / 1000 if is_waiting else 0.0
