"""Pages that the proxies of a cluster share (cluster.pages = "owned"): opens the parts by which each object has
one owner: the port of the engine, the way to the other proxies, and the listener for them.
"""

from collections.abc import Callable

import numpy as np

from shadeproxy.cluster.membership import Keep
from shadeproxy.cluster.ownership import GuardedClock, OwnedObjects
from shadeproxy.config import Settings
from shadeproxy.core.clock import Clock
from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.rules import Freshness, Rules
from shadeproxy.hints.registry import HintRegistry


class OwnedPages:
    """The parts of the proxy ``node``. ``objects``: the objects that it owns. ``clock``: the clock by which page
    handles are judged. ``address``: of the listener for other proxies, "" until it is open.
    """

    def __init__(
        self, settings: Settings, node: str, rules: Rules, hints: HintRegistry, clock: Clock
    ) -> None:
        self.objects = OwnedObjects(by_rule=answers_by_rule(settings, rules, hints))
        self.clock = GuardedClock(clock, self.objects)
        self.address = ""
        self._forget: list[Callable[[], None]] = []

    def distrust(self, keep: Keep | None) -> None:
        """Check cached pages once before they answer: those of objects that ``keep`` does not return."""

    def void(self) -> None:
        """Drop what answers without a look at the lease."""

    def retain_peers(self) -> None:
        """Close connections to proxies that have left."""

    def gauges(self, leased: bool) -> dict[str, float]:
        """Return the gauges beside those of every cluster."""
        return {
            "leased": float(leased),
            "lapses": float(self.objects.lapses),
            "distrusted": float(self.objects.distrusted),
        }


def answers_by_rule(settings: Settings, rules: Rules, hints: HintRegistry) -> Callable[[ObjectRef], bool]:
    """Return the function that tells which objects are answered by their rule while the log is silent."""
    cut_off = settings.cluster.cut_off
    if cut_off != "datasets":
        return lambda _ref: cut_off == "rule"
    return lambda ref: rules.of(ref).freshness is Freshness.IMMUTABLE or _is_in_use(hints, ref)


def _is_in_use(hints: HintRegistry, ref: ObjectRef) -> bool:
    """Return whether a data set of a job in use holds the object."""
    hashes = np.array([object_hash(ref)], np.uint64)
    names = {job.dataset for job in hints.jobs.by_name.values() if job.in_use and job.dataset is not None}
    return any(hints.datasets[name].groups.find(hashes)[0] >= 0 for name in names)
