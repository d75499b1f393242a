"""The limit of descriptors and the schedule of the garbage collector, set at the start of every process."""

import gc
import resource
import time
from collections.abc import Mapping
from typing import NamedTuple

_OTHERS = 64
"""Descriptors for everything except tiers, the origin and clients: libraries, logs, the state, the control
listener.
"""
_ORIGIN_POOLS = 4
"""Connection pools to the origin: one for pages, one for heads and listings, one for forwarded reads, one for
changes.
"""
_OF_CLIENT = 2
"""Descriptors for each client: its connection, and one for sendfile (api/s3/sender.py)."""
_OF_WORKER_CLIENT = 3
"""Descriptors for each client of a worker: as above, and one for the connection by which its requests are
relayed.
"""

_OLDEST = 2
_EVERYTHING_S = 3600.0


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors, often 1,024, to the hard limit. Each segment and connection needs
    one.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def collect_less() -> None:
    """Make the garbage collector look at new objects only, which takes a few milliseconds at a time.

    The memory of a read is freed without the collector (tests/app/test_collector.py). The objects that
    survive a full collection are mostly metadata of cached objects. The next collections leave them out,
    because looking at the metadata of 65,000 objects held up the event loop for 150 ms. Every
    ``_EVERYTHING_S`` seconds the collector looks at all objects.
    """
    gc.collect()
    gc.freeze()
    gc.callbacks.append(_FreezeSurvivors())
    gc.set_threshold(2_000, 10, 0)


class _FreezeSurvivors:
    """A callback of the collector, called before and after each collection. After a full one, it freezes the
    objects that survived, so that the next collections leave them out.
    """

    def __init__(self) -> None:
        self._everything_s = time.monotonic() + _EVERYTHING_S

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if info["generation"] < _OLDEST:
            return
        if phase == "stop":
            gc.freeze()
        elif time.monotonic() > self._everything_s:
            self._everything_s = time.monotonic() + _EVERYTHING_S
            gc.unfreeze()


def own_descriptors(*, origin_connections: int, segments: int) -> int:
    """Return the number of descriptors that the proxy needs beside those of clients: ``origin_connections``
    for each pool of connections to the origin, and two for each of ``segments`` files.
    """
    return _OTHERS + _ORIGIN_POOLS * origin_connections + 2 * segments


def client_descriptors(limit: int, own: int) -> int:
    """Return how many of ``limit`` descriptors clients may take: those that ``own`` leaves, at least a
    quarter.
    """
    return max(limit - own, limit // 4)


class ClientConnections(NamedTuple):
    """Numbers of clients that may be connected: to all processes together, and to one worker."""

    of_all: int
    of_worker: int

    def split(self, parts: int) -> tuple["ClientConnections", "ClientConnections"]:
        """Return these numbers without one of ``parts`` equal parts, and that part."""
        part = ClientConnections(self.of_all // parts, self.of_worker // parts)
        return ClientConnections(self.of_all - part.of_all, self.of_worker - part.of_worker), part


def client_connections(*, origin_connections: int, segments: int) -> ClientConnections:
    """Return how many clients may be connected while each process has its own descriptors."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return ClientConnections(1 << 20, 1 << 20)
    own = own_descriptors(origin_connections=origin_connections, segments=segments)
    descriptors = client_descriptors(limit, own)
    return ClientConnections(descriptors // _OF_CLIENT, descriptors // _OF_WORKER_CLIENT)
