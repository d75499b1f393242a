"""Building what jobs announced, off the event loop: one build at a time for a job."""

import asyncio
from concurrent.futures import Executor

from shadeproxy.engine.knowledge.orders import Orders


class Settling:
    """Lets announced orders count. Event loop only."""

    def __init__(self, orders: Orders, pool: Executor) -> None:
        self._orders = orders
        self._pool = pool
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def settled(self, job: str) -> None:
        """Return once everything that ``job`` has announced until now counts."""
        task = self._tasks.get(job)
        if task is None or task.done():
            task = self._tasks[job] = asyncio.create_task(self._settle(job), name=f"order of {job}")
        # Another caller may wait for it too.
        await asyncio.shield(task)
        if self._tasks.get(job) is task:
            del self._tasks[job]

    async def _settle(self, job: str) -> None:
        loop = asyncio.get_running_loop()
        while (prepared := self._orders.begin(job)) is not None:
            try:
                built = await loop.run_in_executor(self._pool, prepared.build.run)
            except BaseException:
                self._orders.give_up(prepared)
                raise
            self._orders.finish(prepared, built)
