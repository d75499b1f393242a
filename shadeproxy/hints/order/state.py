"""State of a job's order, as the proxy shows it to people and keeps it over a restart."""

from typing import NamedTuple

from shadeproxy.hints.order.liveness import Silence
from shadeproxy.hints.order.sequence import position_of
from shadeproxy.hints.order.tracker import OrderTracker


class OrderState(NamedTuple):
    """The state of a job's order, for display. ``epochs``: number of announced ids for each epoch that is not
    over. ``position``: approximate position of every rank in ``epoch``. ``lapsed``: True if the order is not
    used, because the job is silent, expired or has ended. The counts of samples and reads, and the rate, are
    of this proxy's share alone.
    """

    epochs: dict[int, int]
    epoch: int | None
    position: int | None
    left: int
    believed: bool
    rate_per_s: float
    found: int
    surprises: int
    missed: int
    silence: Silence
    lapsed: bool


def state_of(tracker: OrderTracker, now_s: float) -> OrderState:
    """Return the state of an order at the time ``now_s``."""
    sequence, accuracy = tracker.sequence, tracker.accuracy
    at = sequence.epoch_at(tracker.cursor) if len(sequence.ids) else None
    coming = (epoch for epoch in sequence.epochs if epoch.stop > tracker.floor)
    return OrderState(
        epochs={epoch.number: sum(epoch.lengths) for epoch in coming},
        epoch=None if at is None else at.number,
        position=None if at is None else position_of(at, tracker.cursor),
        left=tracker.left,
        believed=accuracy.believed,
        rate_per_s=tracker.pace.rate_per_s,
        found=accuracy.found,
        surprises=accuracy.surprises,
        missed=accuracy.missed,
        silence=tracker.liveness.silence(now_s),
        lapsed=tracker.has_lapsed(now_s),
    )
