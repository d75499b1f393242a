"""The processor cores that this process may use, by its affinity and by the CPU limits of its control groups.

Source: sched_setaffinity(2); "cpu.max" in the kernel's cgroup-v2 documentation, sched-bwc.txt for version 1.
"""

import os
from contextlib import suppress
from pathlib import Path

from shadeproxy.core.control_groups import Group, control_groups


def available_cores(proc: Path = Path("/proc")) -> int:
    """Return the number of whole cores that this process may use, at least 1. A limit that cannot be read is
    ignored.
    """
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        for group in control_groups("cpu", proc):
            with suppress(OSError, ValueError):
                cores = min(cores, _limit(group))
    return max(cores, 1)


def _limit(group: Group) -> int:
    """Return how many whole cores a group may use at the same time. Raises ValueError if the group has no
    limit.
    """
    if group.version == 2:
        quota, period = (group.directory / "cpu.max").read_text().split()
    else:
        quota, period = ((group.directory / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    # The quota of a group without a limit is "max" in version 2, for which int() raises ValueError, and -1 in
    # version 1.
    if (quota_us := int(quota)) <= 0:
        raise ValueError("no limit")
    return quota_us // int(period)
