"""The fields of jobs and of shared columns that each read touches. They are compiled (_job_state.pyx), if the
compiled module exists and matches its sources.

Laws: the classes that inherit from ``ActivityState``, ``TrackerState``, ``UsesState`` and ``ReaderState`` do
the work in Python. Where ``COMPILED`` is True, the compiled methods of these four do most of it, with the
same results.
Objects test ``COMPILED`` once, when they are made. Tests compare both forms.
"""

from typing import TYPE_CHECKING, Any, Final

from shadeproxy.core.compiled import is_made_of

try:
    from shadeproxy.hints import _job_state
    from shadeproxy.hints._job_state import (
        SOURCE,
        SOURCES,
        HintColumns,
        by_reader,
        learn_constants,
        note_all,
    )
except ImportError:  # No compiler was present at installation.
    COMPILED = False
else:
    COMPILED = is_made_of(SOURCE, SOURCES, __file__)

__all__ = [
    "COMPILED", "DUE", "EXPLAINED", "ActivityState", "HintColumns", "ReaderState", "TrackerState",
    "UsesState", "by_reader", "note_all",
]  # fmt: skip

EXPLAINED: Final = 1
"""A bit of the result of ``ReaderState.note``: an order or scores explain the reads."""
DUE: Final = 2
"""A bit of the result of ``ReaderState.note``: settling may be due, and shared columns were not told."""

NEVER = (1 << 31) - 1
"""The place of an id that is not announced."""

USES = 8
"""Number of next uses that shared columns keep for a page, each by another job."""
NEXT = 1.0  # Ticks until the read of a page that should have been read by now.
LEAST_WEIGHT = 1e-9

# How often the cursor of an order moves; see tracker.py.
SETTLED_TOGETHER = 64
SETTLED_MANY = 32  # A call with this many reads moves the cursor at its end.
SETTLED_SHARE = 4  # The cursor moves after 1 / n of ``_near_now`` reads: they are still near it then.
SETTLED_AFTER_S = 0.5

# The averages of ``JobActivity``; see activity.py.
TOGETHER = 8  # Reads of a job that are taken into its averages together.
# The longest usual pause is this many mean gaps and as many ticks. A longer one counts as this long in the
# mean, and the job counts as silent.
CLIPPED = 16.0
PACE_READS = 256.0
TRUST_READS = 128.0
SCORE_READS = 512.0
# Below this mean weight of drawn samples, scores are so alike that any reads would seem to follow them.
LEAST_EXPECTED = 1.01
MOST_DRAWN = 4.0  # Most weight of one sample, in multiples of ``expected``: one sample proves little.
TRUSTED_ORDER = 0.25
TRUSTED_SCORES = 0.5

if COMPILED:
    COMPILED = learn_constants(
        NEVER,
        USES,
        LEAST_WEIGHT,
        NEXT,
        (SETTLED_TOGETHER, SETTLED_MANY, SETTLED_SHARE, SETTLED_AFTER_S),
        (TRUSTED_ORDER, TRUSTED_SCORES),
        (TOGETHER, CLIPPED, PACE_READS, TRUST_READS, SCORE_READS, LEAST_EXPECTED, MOST_DRAWN),
    )


if TYPE_CHECKING or not COMPILED:

    class ActivityState:
        """The fields of ``JobActivity``."""

        __slots__ = (
            "_averaged", "_by_chance", "_drawn", "_found", "_gap", "_last", "_measured", "_order", "_ordered",
            "_scores", "_scores_of", "_waiting", "_was_pause", "raised", "reads",
        )  # fmt: skip

        def scale_at(
            self, coming: int, weight: float, tick: float, least_trust: float
        ) -> tuple[float, float, float, float, float, float]:
            """Only compiled code has this."""
            raise NotImplementedError

        def weigh(self) -> None:
            """Only compiled code has this."""
            raise NotImplementedError

    class TrackerState:
        """The fields of ``OrderTracker`` that each read touches."""

        __slots__ = (
            "_chance", "_epoch_now", "_log", "_near_now", "_read", "_surprises", "cursor", "left", "origin",
            "pace",
        )  # fmt: skip

        def bind(self, next_at: Any, last_read: Any, links: Any, done: Any) -> None:
            """Do nothing: only compiled code needs the columns here."""

        def pass_over(self, ids: Any, start: int, stop: int) -> int:
            """Only compiled code has this."""
            raise NotImplementedError

    class UsesState:
        """The fields of ``SharedColumns`` that each read touches."""

        __slots__ = ("__dict__", "_short", "numbers")

        def bind(self, users: Any, places: Any, known: Any, is_short: Any) -> None:
            """Do nothing: only compiled code needs the columns here."""

        def distances(self, *_of: Any) -> Any:
            """Only compiled code has this."""
            raise NotImplementedError

    class ReaderState:
        """The fields of ``JobReader``."""

        __slots__ = ("_activity", "job", "scores", "tracker", "whole")

        def prepare(self) -> None:
            """Do nothing: only compiled code must be prepared."""

        def note(self, *_of: Any) -> int:
            """Return -1, because only compiled code notes reads here."""
            return -1

else:
    ActivityState = _job_state.ActivityState
    TrackerState = _job_state.TrackerState
    UsesState = _job_state.UsesState
    ReaderState = _job_state.ReaderState
