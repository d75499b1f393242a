"""The times of the protocol of leases and views, in seconds."""

from dataclasses import dataclass

SLACK = 1.25
"""Number of leases for which other nodes wait before they take a lease for over. With this number, clocks may
differ in rate by 10 %.
"""
BEATS = 3
"""Beats that are sent during one lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """``lease_s``: length of a lease. ``leave_after_s``: how long a node that is away keeps its share.
    ``failover_s``: how much longer a new incarnation of the log stays closed, so that an old server has
    stopped. ``late_write_s``: how long a write may take to reach the origin after its writer's death.
    """

    lease_s: float = 3.0
    leave_after_s: float = 120.0
    failover_s: float = 0.0
    late_write_s: float = 60.0

    @property
    def beat_s(self) -> float:
        return self.lease_s / BEATS

    @property
    def surely_over_s(self) -> float:
        return self.lease_s * SLACK
