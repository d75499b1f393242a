"""What a process may have, and how often it looks for waste: set at the start of every process."""

import gc
import resource
import time
from collections.abc import Mapping

_OTHERS = 64
"""Descriptors beside tiers, origin and clients: libraries, logs, state, the control listener."""
_ORIGIN_POOLS = 4
"""Of pages, of heads and listings, of reads that are forwarded, and of changes."""
_OF_CLIENT = 2
"""A connection, and what sends files to it (api/s3/sender.py)."""

_OLDEST = 2
_EVERYTHING_S = 3600.0


def raise_descriptor_limit() -> None:
    """Segments and connections are descriptors; the soft limit is often 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def collect_less() -> None:
    """Look for cycles among what is new only, and hold the loop for a few milliseconds each time.

    Nothing that a read leaves waits for the collector (tests/app/test_collector.py). What outlived a full
    collection, metadata of objects above all, is left out of the next ones: walking 65,000 known objects held
    the loop for 150 ms. Once in ``_EVERYTHING_S`` everything is looked at.
    """
    gc.collect()
    gc.freeze()
    gc.callbacks.append(_FreezeSurvivors())
    gc.set_threshold(2_000, 10, 0)


class _FreezeSurvivors:
    """Called by the collector before and after it looks."""

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


def client_connections(*, origin_connections: int, segments: int) -> int:
    """How many clients may connect so that the proxy's own descriptors are left: ``origin_connections`` of
    each pool to the origin, two for each of ``segments`` files. The clients have a quarter of it at least.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return 1 << 20
    own = _OTHERS + _ORIGIN_POOLS * origin_connections + 2 * segments
    return max(limit - own, limit // 4) // _OF_CLIENT
