"""The time limits of the protocol of leases and views, in seconds."""

from dataclasses import dataclass

from shadeproxy.core.deadline import LATE_WRITE_S

SLACK = 1.25
"""A node takes another node's lease to be over when it has seen no new beat of that node for this many lease
lengths. With this number, the rates of the two clocks may differ by 10 %.
"""
BEATS = 3
"""Number of beats that a node sends during one lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """``lease_s``: length of a lease. ``leave_after_s``: how long a node that is away keeps its share.
    ``failover_s``: how much longer a new incarnation of the log stays closed, so that the former server of
    the log has stopped by then. ``late_write_s``: how long a write may still be on its way to the origin
    after the node that sent it died.
    """

    lease_s: float = 3.0
    leave_after_s: float = 120.0
    failover_s: float = 0.0
    late_write_s: float = LATE_WRITE_S

    @property
    def beat_s(self) -> float:
        return self.lease_s / BEATS

    @property
    def surely_over_s(self) -> float:
        return self.lease_s * SLACK
