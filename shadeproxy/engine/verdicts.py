"""Per-client verdicts of the origin: a hit is authorised like a miss.

Only needed when clients have origin credentials of their own: whoever reads a cached object must have
been let through by the origin, with its own credentials, at most ``ttl_s`` ago. Writes drop verdicts.
"""

from collections import OrderedDict

from shadeproxy.core.types import ObjectRef, Upstream


class Verdicts:
    """Bounded memory of "the origin let ``upstream`` read ``ref``"."""

    def __init__(self, ttl_s: float, capacity: int = 262_144) -> None:
        self._ttl_s = ttl_s
        self._capacity = capacity
        self._until: OrderedDict[tuple[ObjectRef, Upstream], float] = OrderedDict()

    def allow(self, upstream: Upstream, ref: ObjectRef, now_s: float) -> None:
        self._until[ref, upstream] = now_s + self._ttl_s
        self._until.move_to_end((ref, upstream))
        if len(self._until) > self._capacity:
            self._until.popitem(last=False)

    def allowed(self, upstream: Upstream, ref: ObjectRef, now_s: float) -> bool:
        return self._until.get((ref, upstream), 0.0) > now_s

    def forget(self, bucket: str, key: str | None = None) -> None:
        """Drop verdicts on one object, or on a whole bucket."""
        stale = [entry for entry in self._until if entry[0].bucket == bucket and key in (None, entry[0].key)]
        for entry in stale:
            del self._until[entry]
