"""Applies the events of the cluster's log: turns each one into a change of this proxy's hints, by the same
calls as a control request.

Laws: an event that the hint registry refuses changes nothing. At this proxy, the order of a job has only the
ranks that read through this proxy. A rank that calls another proxy still counts here until ``_HERE_S`` after
its last call here. So a rank that calls several proxies counts at each of them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import structlog

from shadeproxy.cluster.contents import Contents
from shadeproxy.cluster.events import (
    DatasetEvent,
    Event,
    FrozenEvent,
    MergeEvent,
    OrderEvent,
    PlaceEvent,
    ScoresEvent,
    SignsEvent,
    column_change,
    scores_change,
    unpack_dataset,
)
from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import PeerError, RequestError
from shadeproxy.hints.changes import Announce, Change, EndRank, PutDataset, PutJob, WithdrawOrder
from shadeproxy.hints.jobs import Progress
from shadeproxy.hints.registry import HintRegistry

_log = structlog.get_logger(__name__)
_HERE_S = 60.0
Settle = Callable[[str], Awaitable[None]]
"""The type of a function that builds the order of the named job, and waits until the order is in use."""


@dataclass(frozen=True, slots=True)
class Signs:
    """Signs of life of jobs, sent by another proxy of the cluster."""

    event: SignsEvent


Applied = Change[Any] | Signs | PlaceEvent | MergeEvent


class Applier:
    """Applies the events of one cluster. ``on_place`` is called for each event that pins, unpins or purges a
    prefix, in the order of these events. It begins the pin, unpin or purge.
    """

    def __init__(
        self,
        hints: HintRegistry,
        contents: Contents,
        *,
        clock: Clock,
        pool: Executor,
        settle: Settle,
        on_place: Callable[[PlaceEvent], Awaitable[Any]],
    ) -> None:
        self._hints = hints
        self._contents = contents
        self._clock = clock
        self._pool = pool
        self._settle = settle
        self._on_place = on_place
        self._heard: dict[tuple[str, int], float] = {}
        self._seen: dict[str, float] = {}
        self._used: dict[str, float] = {}
        self._began_s = clock.now_s()
        self._tasks: set[asyncio.Task[None]] = set()

    async def decode(self, event: Event) -> Applied:
        """Decode an event, and fetch its content from the log. Return the change that the event makes.

        Raises ClusterUnavailable, PeerError, RequestError.
        """
        if isinstance(event, DatasetEvent):
            return await self._decode_dataset(event)
        if isinstance(event, OrderEvent | FrozenEvent):
            data = await self._contents.get(event.content)
            change: Change[Any] = await self._in_pool(column_change, event, data, self._hints)
            return change
        if isinstance(event, ScoresEvent):
            # Let other tasks run. Many long events may come at once, and decoding one never waits otherwise.
            await asyncio.sleep(0)
            return scores_change(event, self._hints)
        return Signs(event) if isinstance(event, SignsEvent) else event

    async def _decode_dataset(self, event: DatasetEvent) -> PutDataset:
        known = self._hints.datasets.get(event.name)
        if known is not None and known.digest == event.digest:
            return PutDataset(known)
        data = await self._contents.get(event.content)
        dataset = await self._in_pool(unpack_dataset, data, self._hints.page_size)
        if (dataset.name, dataset.digest) != (event.name, event.digest):
            raise PeerError(f"dataset {event.name!r} has another content than its event says")
        return PutDataset(dataset)

    def apply(self, change: Applied, *, here: bool) -> Any:
        """Apply a change, and return its result. ``here``: True if a call to this proxy made the change.
        Raises RequestError.
        """
        now_s = self._clock.now_s()
        if isinstance(change, PlaceEvent):
            return self._on_place(change)
        if isinstance(change, MergeEvent):
            return None  # ``SnapshotKeeper.follow`` begins the merge.
        if isinstance(change, Signs):
            self._apply_signs(change.event, now_s)
            return None
        change.check(self._hints)
        if isinstance(change, Announce):
            self.heard_rank(change.announcement.job, change.announcement.rank, here=here)
        result = change.apply(self._hints, now_s)
        self._note_applied(change, here=here)
        return result

    def _note_applied(self, change: Change[Any], *, here: bool) -> None:
        match change:
            case Announce(new):
                self.seen_now(new.job)
                if not here:
                    self.settle_soon(new.job)
            case WithdrawOrder() | EndRank() if not here:
                self.settle_soon(change.name)
            case PutDataset(dataset) if not here:
                self.used_now(dataset.name)
            case PutJob():
                self.seen_now(change.name)
                if change.begins is not None:
                    self.heard_rank(change.name, change.begins, here=here)

    def heard_rank(self, job: str, rank: int, *, here: bool) -> None:
        """Note that a rank of a job called a proxy: this proxy if ``here`` is True, else another one. If the
        set of ranks that read through this proxy has changed, begin to build the job's order again.
        """
        now_s = self._clock.monotonic_s()
        if here:
            self._note_heard((job, rank), now_s)
        elif now_s - self._heard.get((job, rank), -_HERE_S) < _HERE_S:
            return
        if self._hints.orders.move(job, rank, elsewhere=not here):
            self.settle_soon(job)

    def _note_heard(self, rank: tuple[str, int], now_s: float) -> None:
        self._heard.pop(rank, None)  # So the dict is ordered by time.
        self._heard[rank] = now_s
        while now_s - self._heard[oldest := next(iter(self._heard))] >= _HERE_S:
            del self._heard[oldest]

    def newly_alive(self) -> list[str]:
        """Return the jobs that gave a sign of life by a call to this proxy since ``newly_alive`` was last
        called.
        """
        found = [job.name for job in self._hints.jobs if job.seen_s > self._seen.get(job.name, 0.0)]
        self._seen = {job.name: job.seen_s for job in self._hints.jobs}
        return found

    def newly_used(self) -> list[str]:
        """Return the datasets that a call to this proxy has used since ``newly_used`` was last called."""
        used = {name: self._hints.uses.get(name) or 0.0 for name in self._hints.datasets}
        found = [name for name, used_s in used.items() if used_s > self._used.get(name, self._began_s)]
        self._used = used
        return found

    def settle_soon(self, job: str) -> None:
        """Build the order of a job in the background."""
        task = asyncio.create_task(self._settled(job), name=f"order of {job}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Cancel the building of orders in the background."""
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _settled(self, job: str) -> None:
        try:
            await self._settle(job)
        except Exception:  # noqa: BLE001 - logged; the order stays as it was
            _log.exception("an announced order was not built", job=job)

    def _apply_signs(self, event: SignsEvent, now_s: float) -> None:
        for job in event.alive:
            self._hints.jobs.touch(job, now_s)
            self.seen_now(job)
        for dataset in event.used:
            if dataset in self._hints.datasets:
                self._hints.uses.note(dataset, now_s)
                self.used_now(dataset)
        for job, rank, epoch, position in event.progress:
            try:
                self.heard_rank(job, rank, here=False)
                self._hints.report_progress(job, rank, Progress(epoch, position), now_s)
                self.seen_now(job)
            except RequestError:
                # The job is deleted, or not registered here yet. Continue with the progress of other jobs.
                continue

    def seen_now(self, job: str) -> None:
        """Do not report the latest sign of life of a job to the others, because they know it."""
        if job in self._hints.jobs:
            self._seen[job] = self._hints.jobs.get(job).seen_s

    def used_now(self, dataset: str) -> None:
        """Do not report the latest use of a dataset to the others, because they know it."""
        self._used[dataset] = self._hints.uses.get(dataset) or 0.0

    async def _in_pool(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)
