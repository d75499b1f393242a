"""Limits the fetches for announced orders while other clients wait for the origin.

A job's fetches may fill the origin's link many times over, and then every read of a client that misses waits
behind them. Laws: a read that misses is another client's, unless it belongs to a job whose announced order is
being prefetched. While other clients miss, and for two seconds after, no more bytes are fetched at a time
than fill the link. At all other times there is no limit, and the link is not measured (docs/adr/0082).
"""

import math
from collections import deque
from collections.abc import Callable, Collection

from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import JobContext, ObjectRef
from shadeproxy.origin.link_depth import LinkDepth
from shadeproxy.prefetch.limits import Limits

_FEW_FETCHES = 2  # Always allowed, however full the origin's link is.
_HELD_S = 2.0  # Clients that read more rarely are not protected.
_MOST_MISSES = 256  # If there are more between two looks, the last ones count.


class BesideOthers:
    """Decides whether one more page may be fetched for an announced order. ``now_s``: returns a monotonic
    time.
    """

    def __init__(self, now_s: Callable[[], float], limits: Limits) -> None:
        self._now_s = now_s
        self._limits = limits
        self._link = LinkDepth(now_s, few_reads=_FEW_FETCHES)
        self._begun = self._flying = self._flying_bytes = 0
        # By miss: its time, how many fetches were begun before, and the reader.
        self._missed: deque[tuple[float, int, JobContext | ObjectRef]] = deque(maxlen=_MOST_MISSES)
        self._begun_before = 0  # Fetches that were begun before the last miss of another client.
        self._is_held = False
        self._held_until_s = -math.inf

    def note_miss(self, reader: JobContext | ObjectRef) -> None:
        """Note a read that misses: its job, or its object if it names no job."""
        self._missed.append((self._now_s(), self._begun, reader))

    def look(self, announcing: Collection[str]) -> None:
        """Decide from the misses since the last look whether to limit fetches. ``announcing``: the jobs whose
        announced orders are prefetched.
        """
        now_s = self._now_s()
        for missed_s, begun in self._of_others(announcing):
            self._begun_before, self._held_until_s = begun, missed_s + _HELD_S
        if self._begun - self._flying < self._begun_before:
            # The client may still wait behind these fetches, and asks for its next object only after that.
            self._held_until_s = now_s + _HELD_S
        was_held, self._is_held = self._is_held, now_s < self._held_until_s and not self._limits.is_shared()
        if self._is_held and not was_held:
            self._link.resume(self._flying)

    def has_room(self) -> bool:
        """Return whether one more fetch may begin."""
        return not self._is_held or self._link.has_room(self._flying, self._flying_bytes)

    def begin(self, size_bytes: int) -> None:
        """Note the begin of a fetch."""
        self._note(0)
        self._begun += 1
        self._flying += 1
        self._flying_bytes += size_bytes

    def end(self, size_bytes: int, *, has_come: bool) -> None:
        """Note the end of a fetch. ``has_come``: False if it failed or was given up."""
        self._note(size_bytes if has_come else 0)
        self._flying -= 1
        self._flying_bytes -= size_bytes

    def _note(self, came_bytes: int) -> None:
        if self._is_held:
            self._link.note(self._flying, self._flying_bytes, came_bytes)

    def _of_others(self, announcing: Collection[str]) -> list[tuple[float, int]]:
        """Return the time of each miss of another client, and how many fetches were begun before."""
        missed = list(self._missed)
        self._missed.clear()
        unnamed = [object_hash(reader) for *_, reader in missed if isinstance(reader, ObjectRef)]
        named = iter(self._limits.jobs_of(unnamed) if unnamed else ())
        jobs = [reader.job if isinstance(reader, JobContext) else next(named) for *_, reader in missed]
        return [
            (at_s, begun) for (at_s, begun, _), job in zip(missed, jobs, strict=True) if job not in announcing
        ]
