"""Score columns as they were when an epoch was first drawn: every rank draws its order from the same one.

Law: of a job the columns of its two latest epochs are kept, and never change.
"""

from collections.abc import Callable

from shadeproxy.engine.knowledge.scoreboard import Scores

_EPOCHS_KEPT = 2


class FrozenScores:
    """Columns by job and epoch."""

    def __init__(self) -> None:
        self._columns: dict[str, dict[int, Scores]] = {}

    def column(self, job: str, epoch: int, current: Callable[[], Scores]) -> Scores:
        """What the first who asked for that epoch got; he gets what ``current`` answers."""
        columns = self._columns.setdefault(job, {})
        found = columns.get(epoch)
        if found is None:
            found = columns[epoch] = current()
            for old in sorted(columns)[:-_EPOCHS_KEPT]:
                del columns[old]
        return found

    def forget(self, job: str) -> None:
        """The job is gone."""
        self._columns.pop(job, None)
