"""The limits of the client connections of all processes. Each process counts its own connections, in memory
that all of them share.

Laws: all processes together have no more connections than a proxy of one process. So the coordinator always
has a descriptor for each connection that a worker relays. A worker also keeps to its own limit of
descriptors.
"""

import mmap
import os
from typing import NamedTuple

from shadeproxy.api.s3.connection_limit import ROW_BYTES, ConnectionLimiter, rows_of
from shadeproxy.app.limits import ClientConnections
from shadeproxy.core.clock import Clock
from shadeproxy.telemetry.requests import RequestCounts
from shadeproxy.telemetry.stats import Stats


class LimitEnds(NamedTuple):
    """The part of a limit that a worker gets. ``descriptor``: the shared counts, of which the worker changes
    ``row``. ``most``: how many connections all processes may have together. ``own_most``: how many the worker
    may have.
    """

    descriptor: int
    row: int
    most: int
    own_most: int


class ConnectionLimit:
    """A limit of connections in the coordinator. ``processes``: how many processes share it. ``counts``:
    counts the refusals that the coordinator sends.
    """

    def __init__(
        self, most: ClientConnections, processes: int, *, clock: Clock, counts: RequestCounts | None = None
    ) -> None:
        self.descriptor = -1
        """Descriptor of the shared counts; -1 if there is only one process."""
        memory: bytearray | mmap.mmap = bytearray(ROW_BYTES)
        if processes > 1:
            self.descriptor = os.memfd_create("shadeproxy-connections", os.MFD_CLOEXEC)
            os.ftruncate(self.descriptor, ROW_BYTES * processes)
            memory = mmap.mmap(self.descriptor, ROW_BYTES * processes)
        self._most = most
        self._rows = rows_of(memory)
        self.limiter = ConnectionLimiter(most.of_all, clock=clock, counts=counts, rows=self._rows)
        """The limiter of this process."""

    def of_worker(self, row: int) -> LimitEnds:
        """Return the part of the worker that counts in ``row``, from 1 on."""
        return LimitEnds(self.descriptor, row, *self._most)

    def ended(self, row: int) -> None:
        """Note that the worker of ``row`` has ended, with all its connections."""
        self._rows[2 * row] = 0

    def close(self) -> None:
        """Close the descriptor of the shared counts. This process keeps the counts."""
        if self.descriptor != -1:
            os.close(self.descriptor)
            self.descriptor = -1

    def show(self, stats: Stats) -> None:
        """Show the counts of all processes in the statistics."""
        limiter, most = self.limiter, self._most.of_all
        stats.watch("connections", lambda: float(limiter.inside))
        stats.watch("connections_left", lambda: float(most - limiter.inside))
        stats.watch("connections_refused", lambda: float(limiter.refused), grows=True)


def worker_limiter(
    ends: LimitEnds, *, clock: Clock, counts: RequestCounts | None = None
) -> ConnectionLimiter:
    """Return the limiter of a worker. ``counts``: counts the refusals that it sends."""
    memory = mmap.mmap(ends.descriptor, os.fstat(ends.descriptor).st_size)
    return ConnectionLimiter(
        ends.most, clock=clock, counts=counts, rows=rows_of(memory), row=ends.row, own_most=ends.own_most
    )
