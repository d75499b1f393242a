"""The position at which a job stops reading each epoch, although its orders go on: a loop with a step limit.

Law: an order is cut only after the job left the rest of an epoch unread, and restored in full when the job
reads beyond the cut. Positions are those of ranks, which train in lock step.
"""

from shadeproxy.hints.order.sequence import Epoch, OrderIds, Parts, position_of

_LEAST_READ = 64
_MARGIN_SHARE = 8
_LEAST_MARGIN = 64


class Tail:
    """The tail of one job's epochs. ``stops_at``: the position to which it read the last epoch; None: it
    seems to read all.
    """

    def __init__(self) -> None:
        self.stops_at: int | None = None

    def left(self, epoch: Epoch, place: int) -> None:
        """Note that the job has left ``epoch`` at ``place`` for a later one."""
        position = position_of(epoch, place)
        if position >= _LEAST_READ:
            self.stops_at = position

    def read_to(self, epoch: Epoch, place: int) -> None:
        """Note that the job is at ``place`` of ``epoch``; drop the cut when that is beyond it."""
        if (
            self.stops_at is not None
            and position_of(epoch, place) > self.stops_at + _margin(self.stops_at) // 2
        ):
            self.stops_at = None


def cut(parts: Parts, stops_at: int | None) -> dict[int, dict[int, OrderIds]]:
    """Return the expected part of announced epochs: each rank's ids up to a little beyond ``stops_at``."""
    end = None if stops_at is None else stops_at + _margin(stops_at)
    return {epoch: {rank: ids[:end] for rank, ids in ranks.items()} for epoch, ranks in parts.items()}


def _margin(position: int) -> int:
    return max(position // _MARGIN_SHARE, _LEAST_MARGIN)
