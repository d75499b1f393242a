"""The limit of address space (setrlimit(2), RLIMIT_AS; ``ulimit -v``).

The proxy maps the files of all tiers, those on disks too, so it needs far more address space than memory.
"""

import resource

from shadeproxy.core.errors import ConfigError
from shadeproxy.core.units import format_size

FIXED_BYTES = 512 * 1024**2
"""Least address space that a process takes besides its tiers: for code, stacks and the columns of the
index.
"""
NO_LIMIT = "remove the limit: ulimit -v unlimited; systemd: LimitAS=infinity"


def address_space_limit() -> int:
    """Return the limit in bytes; ``resource.RLIM_INFINITY`` if there is none."""
    return resource.getrlimit(resource.RLIMIT_AS)[0]


def no_memory() -> ConfigError:
    """Return the error to raise if the kernel gave the proxy no memory during its start."""
    limit_bytes = address_space_limit()
    if limit_bytes == resource.RLIM_INFINITY:
        return ConfigError(
            "memory: the kernel gave the proxy no more memory during its start",
            remedy="free memory, allow overcommit (vm.overcommit_memory), or lower the capacities",
        )
    return ConfigError(
        f"address space: ulimit -v allows {format_size(limit_bytes)}, which is too little", remedy=NO_LIMIT
    )
