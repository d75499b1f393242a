"""Counts the failures of tiers, and logs them.

Law: each failure is counted. A medium that fails may fail for each page, so of the failures of one tier in
one kind of work only one is logged in ``_EVERY_S``. Its line says how many were not logged before it.
"""

from collections.abc import Callable
from time import monotonic

import structlog

from shadeproxy.core.errors import TierError
from shadeproxy.telemetry.stats import Stats
from shadeproxy.tiers.tier import Tier

_log = structlog.get_logger(__name__)
_EVERY_S = 10.0


class TierFailures:
    """Failures of all tiers."""

    def __init__(self, stats: Stats, *, now_s: Callable[[], float] = monotonic) -> None:
        self._stats = stats
        self._now_s = now_s
        self._logged_s: dict[tuple[str, str], float] = {}
        self._unlogged: dict[tuple[str, str], int] = {}

    def note(self, tier: Tier, kind: str, error: TierError) -> None:
        """Count a tier's failure in work of this kind, and log it. If the tier takes no more pages, do not
        log it: the tier has logged that itself.
        """
        self._stats.record_tier_error(tier.name, kind)
        if tier.disabled_reason is not None:
            return
        key, now_s = (tier.name, kind), self._now_s()
        if now_s - self._logged_s.get(key, now_s - _EVERY_S) < _EVERY_S:
            self._unlogged[key] = self._unlogged.get(key, 0) + 1
            return
        self._logged_s[key] = now_s
        more = {"not_logged": unlogged} if (unlogged := self._unlogged.pop(key, 0)) else {}
        _log.warning("tier failed", tier=tier.name, doing=kind, error=str(error), **more)
