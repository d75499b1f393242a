"""What the operating system lets a process have. Every process of the product asks for it at its start."""

import resource

_OTHERS = 64
"""Descriptors beside tiers, origin and clients: libraries, logs, state, the control listener."""
_OF_CLIENT = 2
"""A connection, and what sends files to it (api/s3/sender.py)."""


def raise_descriptor_limit() -> None:
    """Segments and connections are descriptors; the soft limit is often 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def client_connections(*, origin_connections: int, segments: int) -> int:
    """How many clients may connect so that the proxy's own descriptors are left: ``origin_connections`` of
    each of two pools, two for each of ``segments`` files. At least a quarter of the limit is the clients'.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return 1 << 20
    own = _OTHERS + 2 * origin_connections + 2 * segments
    return max(limit - own, limit // 4) // _OF_CLIENT
