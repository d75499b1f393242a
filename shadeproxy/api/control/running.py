"""Long operations: work that continues after the call that began it.

Laws: the number of running operations is limited, and so is that of ended ones that are remembered. If work
fails, its operation gets an error text; there is never an unhandled exception. After ``aclose`` no task is
left, and none begins.
"""

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import Literal, Protocol

import structlog

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import Conflict, ShadeProxyError, ShuttingDown, UnknownName
from shadeproxy.core.work_progress import WorkProgress

_log = structlog.get_logger("shadeproxy.control")

MOST_RUNNING = {"warm": 4, "purge": 4096}
"""Most operations of each kind of work. The limit of purges is high, because after a refused purge the proxy
would serve pages that are out of date. During recovery many purges may wait for the end of recovery, one for
each object that has changed.
"""
_PURGED_S = 10.0
"""Seconds for which a stop waits for purges. If a purge is cancelled after that, its pages are still cached
after the next start.
"""
MOST_ENDED = 64
_MOST_NAMED = 4
KEPT_S = 3600.0

State = Literal["running", "done", "failed", "cancelled"]


class Work(Protocol):
    """Work that continues after its call. ``uri``: the prefix whose objects it works on. ``run`` may be
    cancelled at any time. If its work is already done then, it returns as usual.
    """

    kind: str
    uri: str
    dry_run: bool
    progress: WorkProgress

    async def run(self) -> None: ...


@dataclass(slots=True, eq=False)
class LongOperation:
    """A long operation. ``error``: why it failed, or "". ``ended_s``: monotonic time of its end."""

    id: str
    work: Work
    state: State = "running"
    error: str = ""
    ended_s: float = 0.0
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def first_error(self) -> str:
        """The error of the operation, or that of the first object that failed; "" if nothing failed."""
        return self.error or self.work.progress.error


class Operations:
    """The long operations (warm, purge) of one control listener: all that run, and the latest of those that
    have ended. Event loop only.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, LongOperation] = {}  # Operations by id, the oldest one first.
        self._closing = False

    def start(self, work: Work) -> LongOperation:
        """Begin ``work``. Raises Conflict if too many operations of its kind run, ShuttingDown after
        ``aclose``.
        """
        if self._closing:
            raise ShuttingDown("the proxy is shutting down; ask again after its restart")
        alike = [one for one in self._known.values() if one.work.kind == work.kind]
        running = [one for one in alike if one.state == "running"]
        if len(running) >= MOST_RUNNING[work.kind]:
            names = ", ".join(f"{one.id} ({one.work.kind} {one.work.uri})" for one in running[:_MOST_NAMED])
            raise Conflict(
                f"{len(running)} operations are running, which is as many as may at a time: {names}",
                hint="wait for one to end, or end it with DELETE /v1/operations/{id}",
            )
        self._forget_old()
        operation = LongOperation(secrets.token_hex(8), work)
        self._known[operation.id] = operation
        operation.task = asyncio.create_task(work.run(), name=f"{work.kind} {work.uri}")
        operation.task.add_done_callback(lambda task: self._ended(operation, task))
        return operation

    async def is_over_within(self, operation: LongOperation, limit_s: float) -> bool:
        """Wait at most ``limit_s`` for the end of an operation. If it has ended by itself, forget it and
        return True: the answer to its call then says everything. Raises its error if it failed.
        """
        assert operation.task is not None
        timer = asyncio.create_task(self._clock.sleep(limit_s), name="wait for an operation")
        try:
            await asyncio.wait([operation.task, timer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
        if operation.task.done():
            self._ended(operation, operation.task)
        if operation.state not in {"done", "failed"}:
            return False
        self._known.pop(operation.id, None)
        operation.task.result()
        return True

    def find(self, operation_id: str) -> LongOperation:
        """Return the operation with this id. Raises UnknownName."""
        self._forget_old()
        operation = self._known.get(operation_id)
        if operation is None:
            raise UnknownName(
                f"no operation has the id {operation_id[:80]!r}",
                hint="GET /v1/operations lists them; one that ended is forgotten after an hour,"
                " all of them at a restart",
            )
        return operation

    def all(self) -> list[LongOperation]:
        """Return all operations that are remembered, the oldest one first."""
        self._forget_old()
        return list(self._known.values())

    async def cancel(self, operation_id: str) -> LongOperation:
        """Cancel an operation, and wait for its end. If it has ended already, it stays as it is. Raises
        UnknownName.
        """
        operation = self.find(operation_id)
        await self._stop([operation])
        return operation

    async def aclose(self) -> None:
        """Refuse new operations, wait a little for running purges, and cancel all others."""
        self._closing = True
        await self._stop([one for one in self._known.values() if one.work.kind != "purge"])
        purges = [one.task for one in self._known.values() if one.task is not None and one.state == "running"]
        if purges:
            await asyncio.wait(purges, timeout=_PURGED_S)
        await self._stop(list(self._known.values()))

    async def _stop(self, operations: list[LongOperation]) -> None:
        tasks = [one.task for one in operations if one.task is not None and one.state == "running"]
        for task in tasks:
            # A second cancellation could interrupt a step that must not be left half done.
            if not task.cancelling():
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # The done callbacks of the tasks may not have run yet, but callers need the final state now.
        for operation in operations:
            if operation.task is not None:
                self._ended(operation, operation.task)

    def _ended(self, operation: LongOperation, task: asyncio.Task[None]) -> None:
        if operation.state != "running":
            return
        operation.ended_s = self._clock.monotonic_s()
        error = None if task.cancelled() else task.exception()
        if task.cancelled():
            operation.state = "cancelled"
        elif error is None:
            operation.state = "done"
        else:
            operation.state = "failed"
            operation.error = (
                str(error) if isinstance(error, ShadeProxyError) else "the proxy failed; see its log"
            )
            if not isinstance(error, ShadeProxyError):
                _log.error("operation failed", kind=operation.work.kind, exc_info=error)
        why = {"error": operation.first_error} if operation.first_error else {}
        _log.info("operation ended", id=operation.id, kind=operation.work.kind, uri=operation.work.uri,
                  state=operation.state, **why)  # fmt: skip

    def _forget_old(self) -> None:
        now_s = self._clock.monotonic_s()
        ended = [one for one in self._known.values() if one.state != "running"]
        for number, one in enumerate(ended):
            if len(ended) - number > MOST_ENDED or now_s - one.ended_s > KEPT_S:
                del self._known[one.id]
