"""The limit of descriptors and the schedule of the garbage collector, set at the start of every process."""

import gc
import resource
import time
from collections.abc import Mapping

_OTHERS = 64
"""Descriptors for everything except tiers, origin and clients: libraries, logs, state, the control
listener.
"""
_ORIGIN_POOLS = 4
"""Connection pools: one for pages, one for heads and listings, one for forwarded reads, one for changes."""
_OF_CLIENT = 2
"""Descriptors for each client: its connection, and a second descriptor for sendfile (api/s3/sender.py)."""

_OLDEST = 2
_EVERYTHING_S = 3600.0


def raise_descriptor_limit() -> None:
    """Raise the soft limit, often 1,024, to the hard limit, because each segment and connection needs a
    descriptor.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def collect_less() -> None:
    """Make the garbage collector look at new objects only, a few milliseconds at a time.

    No memory of a read waits for the collector (tests/app/test_collector.py). Survivors of a full collection,
    mostly metadata of objects, are left out of the next collections: walking 65,000 known objects held the
    loop for 150 ms. Every ``_EVERYTHING_S`` seconds all objects are examined.
    """
    gc.collect()
    gc.freeze()
    gc.callbacks.append(_FreezeSurvivors())
    gc.set_threshold(2_000, 10, 0)


class _FreezeSurvivors:
    """A callback of the collector, called before and after each collection. It freezes the objects that
    survived a full one.
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
    """Return the descriptors of the proxy beside those of clients: ``origin_connections`` for each pool to
    the origin and two for each of ``segments`` files.
    """
    return _OTHERS + _ORIGIN_POOLS * origin_connections + 2 * segments


def client_descriptors(limit: int, own: int) -> int:
    """Return the part of ``limit`` descriptors that clients may take: at least a quarter."""
    return max(limit - own, limit // 4)


def client_connections(*, origin_connections: int, segments: int) -> int:
    """Return how many clients may connect beside the proxy's own descriptors."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return 1 << 20
    own = own_descriptors(origin_connections=origin_connections, segments=segments)
    return client_descriptors(limit, own) // _OF_CLIENT
