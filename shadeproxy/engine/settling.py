"""Orders that were announced, withdrawn or found elsewhere are built here, off the event loop.

Laws: one build at a time for a job; whoever announces does not wait for it, and until it is done the order
before counts; small ones are built at once, because a hop to the pool costs more.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from shadeproxy.engine.knowledge.book import Built
from shadeproxy.engine.knowledge.orders import Orders, Prepared

_log = structlog.get_logger(__name__)
_AT_ONCE = 32_768  # ids and samples: less than 3 ms

RunBuild = Callable[[Callable[[], Built]], Awaitable[Built]]


class Settling:
    """Settles ``orders`` as they change. ``run``: on a pool."""

    def __init__(self, orders: Orders, run: RunBuild) -> None:
        self._orders = orders
        self._run = run
        self._tasks: dict[str, asyncio.Task[None]] = {}
        orders.on_unsettled = self._begin

    async def settled(self) -> None:
        """Return once everything that was announced so far counts."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    def _begin(self, job: str) -> None:
        if job in self._tasks:
            return  # it looks again when it is done
        prepared = self._orders.begin(job)
        if prepared is None:
            return
        if prepared.build.size <= _AT_ONCE:
            self._orders.finish(prepared, prepared.build.run())
            return
        task = asyncio.create_task(self._work(job, prepared), name="order")
        self._tasks[job] = task
        task.add_done_callback(lambda _task: self._tasks.pop(job, None))

    async def _work(self, job: str, prepared: Prepared | None) -> None:
        while prepared is not None:
            try:
                built = await self._run(prepared.build.run)
            except Exception:  # noqa: BLE001 - logged; the order before goes on counting
                _log.exception("an announced order could not be taken", job=job)
                self._orders.give_up(prepared)
            else:
                self._orders.finish(prepared, built)
            prepared = self._orders.begin(job)
