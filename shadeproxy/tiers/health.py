"""Lets a tier react to failures of its medium: the tier shrinks when the medium is full, and takes no more
pages when the medium is broken.

Only the store's thread calls ``is_due``. The other methods run on I/O threads and set single attributes,
which the store's thread only reads.
"""

import errno
import logging
import os
from collections.abc import Callable
from math import inf
from time import monotonic

_logger = logging.getLogger(__name__)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# Errors of the process, not of the medium (too many open files, no memory). They end when clients leave.
_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_FINAL = frozenset({errno.EROFS, errno.ENODEV, errno.ENXIO})
_MOST_FAILURES = 8
# Each time that the medium reports that it is full, the tier shrinks by its capacity divided by this number.
_STEP_SHARE = 64
_MEASURE_EVERY_BYTES = 16 * 1024 * 1024
# A medium may refuse writes although it shows free space: a quota of the user does not show there. If it
# refuses again, the tier keeps to the guessed ceiling for this time, which doubles with each further refusal.
_FIRST_GUESS_S, _LONGEST_GUESS_S = 15.0, 900.0
_ONE_REFUSAL_S = 0.5  # Refusals within this time count as one: the writes were under way together.


class Health:
    """Failures of the medium, and the bytes that it leaves to the tier.

    ``ceiling_bytes``: bytes that the tier may hold so that ``min_free_bytes`` stay free, as last measured or,
    after a write to a full medium, guessed. ``measured``: whether the ceiling was measured and not guessed.
    ``disabled_reason``: why the tier takes no more pages, or None.
    """

    def __init__(
        self,
        name: str,
        capacity_bytes: int,
        *,
        min_free_bytes: int,
        now_s: Callable[[], float] = monotonic,
    ) -> None:
        self.failures = 0
        self.disabled_reason: str | None = None
        self.ceiling_bytes = capacity_bytes
        self.measured = False
        self._name = name
        self._step_bytes = capacity_bytes // _STEP_SHARE
        self._min_free_bytes = min_free_bytes
        self.in_a_row = 0
        """Number of failures since the last success."""

        self._unmeasured_bytes = 0
        self._now_s = now_s
        self._guessed_bytes = -self._step_bytes - 1  # The last guessed ceiling; negative before the first.
        self._guess_s, self._guessed_until_s, self._refused_s = 0.0, 0.0, -inf
        self._measure_every_bytes = min(_MEASURE_EVERY_BYTES, capacity_bytes)

    def note_success(self) -> None:
        """Note a successful write: the count of consecutive failures begins at 0 again."""
        self.in_a_row = 0

    def note_failure(self, error: OSError, *, used_bytes: int) -> None:
        """Count a failed call. ``used_bytes``: bytes that the tier holds."""
        self.failures += 1
        if error.errno in _FULL:
            self._guess(max(0, used_bytes - self._step_bytes))
            return
        if error.errno in _PASSING:
            return
        self.in_a_row += 1
        if self.disabled_reason is None and (error.errno in _FINAL or self.in_a_row >= _MOST_FAILURES):
            self.disabled_reason = f"tier {self._name} takes no more pages: {error.strerror}"
            _logger.error("%s", self.disabled_reason)

    def _guess(self, ceiling_bytes: int) -> None:
        """Set the ceiling below the used bytes, so that the next reservation must first free some bytes."""
        now_s = self._now_s()
        if now_s - self._refused_s >= _ONE_REFUSAL_S:
            # If the tier has grown since the last guess, that guess was too low.
            again = ceiling_bytes <= self._guessed_bytes + self._step_bytes
            again &= now_s - self._refused_s < 2 * _LONGEST_GUESS_S
            longer_s = min(max(2 * self._guess_s, _FIRST_GUESS_S), _LONGEST_GUESS_S)
            self._guess_s = longer_s if again else 0.0
            self._guessed_until_s = now_s + self._guess_s
        self._refused_s, self._guessed_bytes = now_s, ceiling_bytes
        self.measured, self.ceiling_bytes = False, ceiling_bytes

    def is_due(self, record_bytes: int) -> bool:
        """Count ``record_bytes``, which are about to be written. Return whether to call ``measure`` now."""
        self._unmeasured_bytes += record_bytes
        if self._unmeasured_bytes < self._measure_every_bytes:
            return False
        self._unmeasured_bytes = 0
        return True

    def measure(self, descriptor: int, held_bytes: int) -> None:
        """Measure the free space of the medium and set the ceiling from it; if that fails, the ceiling stays.
        ``held_bytes``: bytes that the tier holds. A guessed ceiling stays for some time, unless the free
        space explains why the medium was full.

        A failure here does not count as a failure of the medium: it harms no page, and repeats with time.
        """
        try:
            status = os.fstatvfs(descriptor)
        except OSError:
            self.measured = False
            return
        free_bytes = status.f_bavail * status.f_frsize
        if free_bytes <= self._min_free_bytes + self._step_bytes:
            self._guessed_until_s = 0.0
        if self._now_s() >= self._guessed_until_s:
            self.ceiling_bytes = max(0, held_bytes + free_bytes - self._min_free_bytes)
            self.measured = True
