"""Watches whether the disk of a tier hangs. Such a disk reports no error, so nothing else would show it.

Law: a disk is said to hang only while an operation on it has taken longer than HANGS_S. The watch itself
touches no disk, so it never hangs with one.
"""

from collections.abc import Sequence

import structlog

from shadeproxy.core.clock import Clock
from shadeproxy.engine.storage.medium import HANGS_S, Medium

_log = structlog.get_logger(__name__)
_LOOK_S = 1.0


async def watch_disks(media: Sequence[Medium], clock: Clock) -> None:
    """Until cancelled: log when the disk of a tier hangs, and when it answers again."""
    hanging_since_s: dict[str, float] = {}
    while True:
        for medium in media:
            name, busy_s, now_s = medium.tier.name, medium.busy_s(), clock.monotonic_s()
            if busy_s < HANGS_S:
                if (since_s := hanging_since_s.pop(name, None)) is not None:
                    _log.info("disk answers again", tier=name, after_s=round(now_s - since_s, 1))
            elif name not in hanging_since_s:
                hanging_since_s[name] = now_s - busy_s
                hint = "the origin answers reads that need it; see the kernel's log"
                _log.warning("disk hangs", tier=name, for_s=round(busy_s, 1), hint=hint)
        await clock.sleep(_LOOK_S)
