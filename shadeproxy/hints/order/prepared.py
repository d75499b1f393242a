"""``Prepared``: an order that must be built, for a caller that builds it off the event loop."""

from typing import NamedTuple

from shadeproxy.hints.jobs import Job
from shadeproxy.hints.order.build import Build
from shadeproxy.hints.order.tracker import OrderTracker


class Prepared(NamedTuple):
    """An order that must be built: run ``build.run`` in any thread, and pass its result to
    ``Orders.finish``.
    """

    job: Job
    tracker: OrderTracker | None
    build: Build

    def give_up(self) -> None:
        """Keep the present order, because the new order could not be built."""
        if self.tracker is not None:
            self.tracker.give_up()
