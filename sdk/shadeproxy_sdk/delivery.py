"""Sends a job's orders, progress and scores to the proxy, and sends again those that did not arrive.

Law: only the background thread calls the methods of ``Delivery``. Its field ``orders`` may be used by any
thread. If the proxy has forgotten the job, all orders and scores are sent again.
"""

import logging
from dataclasses import dataclass
from typing import Any

from shadeproxy_sdk.agreement import RankAgreement
from shadeproxy_sdk.announcements import Announcements
from shadeproxy_sdk.fork_lock import ForkLock
from shadeproxy_sdk.progress import Progress, Step
from shadeproxy_sdk.registration import Registration, Sent
from shadeproxy_sdk.scoreboard import Scoreboard, pack_scores

_LOG = logging.getLogger("shadeproxy_sdk")
_SCORES_PER_POST = 131_072
_SCORES_TYPE = "application/vnd.shadeproxy.scores"
_ORDER_TYPE = "application/vnd.shadeproxy.ids"


@dataclass(frozen=True, slots=True)
class JobStats:
    """Counts since a job began.

    ``reported``: batches given to ``report``. ``dropped``: of these, batches that were lost because the queue
    was full. ``rejected``: batches that were invalid. ``not_finite``: samples whose loss was nan or inf, or
    of which no token counted. ``sent``: scores that the proxy accepted. ``unsent``: scores that still wait.
    ``announced``: ids in the orders that the proxy accepted. ``failures``: calls to the proxy that failed.
    """

    reported: int
    dropped: int
    rejected: int
    not_finite: int
    sent: int
    unsent: int
    announced: int
    failures: int


class Delivery:
    """Delivers the reports of ``rank``. ``board_lock`` guards ``board``, and is never held during a call to
    the proxy. ``ranks``: checks whether the orders of all ranks fit together.

    ``orders``: None once it is known that the proxy accepts no orders. ``announced``: number of ids in the
    orders that the proxy accepted. ``sent``: number of scores that it accepted.
    """

    def __init__(
        self,
        proxy: Registration,
        rank: int,
        board: Scoreboard,
        board_lock: ForkLock,
        progress: Progress,
        *,
        ranks: RankAgreement,
    ) -> None:
        self._proxy = proxy
        self._rank = rank
        self._board = board
        self._board_lock = board_lock
        self._progress = progress
        self.ranks = ranks
        self.orders: Announcements | None = Announcements()
        self.announced = self.sent = 0
        self._orders_entered = self._scores_entered = 0
        # False once the proxy has refused progress with measurements, as older proxies do.
        self._measures = True

    def send(self) -> bool:
        """Send all orders, progress and scores that wait. Return whether all of them arrived."""
        # Orders go first, because a position refers to an order.
        sent = self.send_orders() and self._send_progress() and self._send_scores()
        if sent:
            self.ranks.check()
        return sent

    def finish(self) -> bool:
        """Send progress and scores, withdraw the orders, and report that this rank has ended. Return whether
        all of it arrived.
        """
        said = self._send_progress() and self._send_scores() and self._withdraw_orders()
        return said and self._proxy.delete(f"/ranks/{self._rank}")

    def send_orders(self) -> bool:
        """Send the pieces of orders that the proxy lacks. Return whether the proxy now has all of them."""
        while (orders := self.orders) is not None:
            if self._orders_entered != self._proxy.entered:
                self._orders_entered = self._proxy.entered
                orders.again()
            piece = orders.due()
            if piece is None:
                break
            path = f"/epochs/{piece.epoch}/order?rank={self._rank}&offset={piece.offset}"
            sent = self._proxy.put(path, piece.ids.astype("<u4", copy=False).tobytes(), _ORDER_TYPE)
            if sent is Sent.LATER:
                return False
            if sent is Sent.ARRIVED:
                orders.arrived(piece)
                self.announced += piece.ids.size
            elif sent is Sent.REFUSED:
                orders.refused(piece)
            else:
                self.orders = None
                _LOG.warning(
                    "Job %s: this proxy takes no announced orders, so it cannot read ahead; training goes "
                    "on. Update the proxy",
                    self._proxy.name,
                )
        return True

    def _withdraw_orders(self) -> bool:
        """Withdraw this rank's orders. Otherwise the proxy would keep and fetch pages for them until the job
        expires.
        """
        orders = self.orders
        for epoch in orders.told() if orders is not None else ():
            if not self._proxy.delete(f"/epochs/{epoch}/order?rank={self._rank}"):
                return False
            if orders is not None:
                orders.withdrawn(epoch)
        return True

    def _send_scores(self) -> bool:
        while True:
            with self._board_lock:
                if self._scores_entered not in {0, self._proxy.entered}:
                    self._board.again()
                self._scores_entered = self._proxy.entered
                ids, scores = self._board.take(_SCORES_PER_POST)
            if not ids.size:
                return True
            sent = self._proxy.post("/scores", pack_scores(ids, scores), content_type=_SCORES_TYPE)
            if sent is Sent.LATER:
                with self._board_lock:
                    self._board.put_back(ids)
                return False
            self.sent += ids.size if sent is Sent.ARRIVED else 0

    def _send_progress(self) -> bool:
        steps = self._progress.take()
        for done, step in enumerate(steps):
            if self._post_progress(step) is Sent.LATER:
                self._progress.put_back(steps[done:])
                return False
        return True

    def _post_progress(self, step: Step) -> Sent:
        report: dict[str, Any] = {**step._asdict(), "rank": self._rank}
        measured = {"compute_s": report.pop("compute_s")}
        if self._progress.loader is not None:
            measured["loader"] = self._progress.loader
        if self._measures and (measured["compute_s"] or self._progress.loader is not None):
            sent = self._proxy.post("/progress", report | measured)
            if sent is not Sent.REFUSED:
                return sent
            self._measures = False
        return self._proxy.post("/progress", report)
