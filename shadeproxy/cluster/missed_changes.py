"""The changes that a joining proxy missed, and its own changes that still wait to be sent.

Laws: no snapshot contains purges, and none says what was deleted or unpinned. So the proxy first makes the
purges, unpins and deletions that it missed while it was stopped. And the snapshot may be older than the last
calls to this proxy, whose changes still wait to be sent. So the proxy makes these again afterwards.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from shadeproxy.cluster.applier import Applier
from shadeproxy.cluster.backlog import Backlog
from shadeproxy.cluster.events import Envelope, Event, PlaceEvent, scores_change
from shadeproxy.cluster.log import STREAM, ClusterLog, order_of_position
from shadeproxy.cluster.log import Event as Entry
from shadeproxy.core.errors import PeerError, RequestError
from shadeproxy.hints.changes import DeleteDataset, DeleteJob, EndRank, WithdrawOrder
from shadeproxy.hints.registry import HintRegistry


async def make_missed(
    log: ClusterLog,
    applier: Applier,
    load: Callable[[Entry], tuple[Envelope, Event] | None],
    *,
    reached: str,
    end: str,
) -> str:
    """Make the purges, unpins and deletions after ``reached``, the position at which this proxy was stopped,
    up to ``end``. ``load`` decodes an event. Return the position that is reached then. Raises
    ClusterUnavailable.
    """
    while reached and order_of_position(reached) < order_of_position(end):
        entries = await log.read({STREAM: reached}, 0.0)
        for entry in entries:
            if order_of_position(entry.position) > order_of_position(end):
                return reached
            reached = entry.position
            if (loaded := load(entry)) is not None:
                _make_missed(applier, loaded[1])
        if not entries:
            break
    return reached


def _make_missed(applier: Applier, event: Event) -> None:
    match event:
        case PlaceEvent(verb="purge" | "unpin"):
            applier.apply(event, here=False)
        case DeleteJob() | DeleteDataset() | EndRank() | WithdrawOrder():
            with suppress(RequestError):  # This proxy may not have the hint.
                applier.apply(event, here=False)


async def make_again(backlog: Backlog, applier: Applier, hints: HintRegistry) -> None:
    """Make the changes again that wait to be sent, except purges."""
    for change in backlog.changes():
        with suppress(RequestError, PeerError):  # It is refused again when its event comes back.
            applier.apply(change, here=True)
    scores = backlog.take_scores()
    for event in scores:
        await asyncio.sleep(0)  # To apply many scores at once would hold up the event loop.
        with suppress(RequestError, PeerError):
            applier.apply(scores_change(event, hints), here=True)
    backlog.put_back(scores)
