"""What a process may have, and how often it looks for waste: set at the start of every process."""

import gc
import resource

_OTHERS = 64
"""Descriptors beside tiers, origin and clients: libraries, logs, state, the control listener."""
_OF_CLIENT = 2
"""A connection, and what sends files to it (api/s3/sender.py)."""


def raise_descriptor_limit() -> None:
    """Segments and connections are descriptors; the soft limit is often 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def collect_less() -> None:
    """Leave out of every collection what the start made, and look for cycles a tenth as often.

    Nothing that a read leaves waits for the collector (tests/app/test_collector.py), and walking 80,000
    objects of modules held the loop for 60 ms: a sixth of the CPU of a miss, and no byte for it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(7_000, 10, 10)


def client_connections(*, origin_connections: int, segments: int) -> int:
    """How many clients may connect so that the proxy's own descriptors are left: ``origin_connections`` of
    each of two pools, two for each of ``segments`` files. At least a quarter of the limit is the clients'.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return 1 << 20
    own = _OTHERS + 2 * origin_connections + 2 * segments
    return max(limit - own, limit // 4) // _OF_CLIENT
