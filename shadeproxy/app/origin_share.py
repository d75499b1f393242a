"""Sets this proxy's share of the limits of ``[origin]``, which apply to all proxies of a cluster together.

Laws: a proxy that owns a part of the objects also gets that part of the connections and of the bandwidth,
because it has that part of the misses. The part of a proxy that shares no pages is 1. A proxy that owns no
objects keeps one connection and a hundredth of the bandwidth: it still forwards parts of uploads and
listings, and reads objects whose owner does not answer.
"""

import structlog

from shadeproxy.config.sections import OriginSection
from shadeproxy.origin.limit import LimitedOrigin
from shadeproxy.origin.throttled import ThrottledOrigin

_log = structlog.get_logger(__name__)
_LEAST = 0.01
_LEAST_CONNECTIONS = 1


class OriginShare:
    """The share of one proxy in the origin's limits. ``throttled``: None if no bandwidth is set."""

    def __init__(
        self, section: OriginSection, limited: LimitedOrigin, throttled: ThrottledOrigin | None
    ) -> None:
        self._section = section
        self._limited = limited
        self._throttled = throttled
        self._part = 1.0

    @property
    def connections(self) -> int:
        """The most reads of the origin that may be open at once; also the most forwarded requests."""
        return max(int(self._section.max_connections * self._part), _LEAST_CONNECTIONS)

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth that this proxy may use; 0 if none is set."""
        return self._section.bandwidth * max(self._part, _LEAST)

    def take_part(self, part: float) -> None:
        """Use ``part`` of the limits, from 0 to 1, from now on."""
        if part == self._part:
            return
        self._part = part
        self._limited.resize(self.connections)
        limits: dict[str, object] = {"connections": self.connections}
        if self._throttled is not None:
            self._throttled.bytes_per_s = self.bytes_per_s
            limits["bytes_per_s"] = round(self.bytes_per_s)
        _log.info("this proxy's share of the limits of the origin", share=f"{part:.1%}", **limits)
