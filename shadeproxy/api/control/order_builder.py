"""Builds announced orders on threads of the pool, one build at a time for each job."""

import asyncio
from concurrent.futures import Executor

import structlog

from shadeproxy.core.errors import ShuttingDown
from shadeproxy.hints.order.orders import Orders

_log = structlog.get_logger(__name__)


class OrderBuilder:
    """Builds the announced orders of one hint registry. Event loop only."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._seeking: set[asyncio.Task[None]] = set()

    async def settled(self, orders: Orders, job: str) -> None:
        """Build the order of ``job``, and wait until everything that the job has announced so far
        is in use.
        """
        task = self._tasks.get(job)
        if task is None or task.done():
            task = self._tasks[job] = asyncio.create_task(self._settle(orders, job), name=f"order of {job}")
        # The shield keeps the task running if this caller is cancelled, because other callers may wait for
        # it.
        await asyncio.shield(task)
        if self._tasks.get(job) is task:
            del self._tasks[job]

    def seek(self, orders: Orders, job: str) -> None:
        """Begin a task that builds the order of ``job`` again. The hint registry calls this as its
        ``on_lost``, when the job reads at another position of its order, or when the share of objects that
        this node owns has changed.
        """
        task = asyncio.create_task(self._sought(orders, job), name=f"search for {job}")
        self._seeking.add(task)
        task.add_done_callback(self._seeking.discard)

    def restore(self, orders: Orders) -> None:
        """Begin a task that builds the orders of an earlier process, one job after the other. Millions of
        announced ids take seconds, for which a start does not wait.
        """
        task = asyncio.create_task(self._restored(orders), name="restored orders")
        self._seeking.add(task)
        task.add_done_callback(self._seeking.discard)

    async def _restored(self, orders: Orders) -> None:
        for job in orders.announced.jobs():
            try:
                await self.settled(orders, job)
            except ShuttingDown:
                return  # The next start builds the orders.
            except Exception as error:  # noqa: BLE001 - logged; the other jobs keep their orders
                orders.announced.drop(job)
                _log.error("stored orders left out", job=job, error=repr(error))

    async def _sought(self, orders: Orders, job: str) -> None:
        try:
            await self.settled(orders, job)
        except Exception:  # noqa: BLE001 - logged; the old order stays in use
            _log.exception("an order was not built again", job=job)

    async def _settle(self, orders: Orders, job: str) -> None:
        loop = asyncio.get_running_loop()
        while (prepared := orders.begin(job)) is not None:
            try:
                built = await loop.run_in_executor(self._pool, prepared.build.run)
            except BaseException:
                prepared.give_up()
                raise
            orders.finish(prepared, built)
