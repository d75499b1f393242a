"""Durable control state: what is known of datasets, jobs and scores, written behind, read at start."""

import asyncio
from concurrent.futures import Executor

import structlog

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import StateError
from shadeproxy.engine.knowledge.knowledge import KINDS, Knowledge
from shadeproxy.state.store import StateStore

_log = structlog.get_logger(__name__)
_EVERY_S = 1.0


class Persistence:
    """Collects what changed and hands it to the state store about once a second."""

    def __init__(self, state: StateStore, pool: Executor, clock: Clock) -> None:
        self._state = state
        self._pool = pool
        self._clock = clock
        self._dirty: set[tuple[str, str]] = set()
        self._task: asyncio.Task[None] | None = None

    def note(self, kind: str, name: str) -> None:
        """(kind, name) changed or went away."""
        self._dirty.add((kind, name))

    def restore(self, knowledge: Knowledge) -> None:
        """Take back what was stored (blocking). What cannot be read is logged and left out."""
        for kind in KINDS:
            for name, blob in self._state.load_all(kind).items():
                try:
                    knowledge.restore(kind, name, blob, self._clock.now_s())
                except StateError as error:
                    _log.warning("stored state left out", kind=kind, name=name, error=str(error))

    def start(self, knowledge: Knowledge) -> None:
        self._state.start()
        self._task = asyncio.create_task(self._work(knowledge), name="persistence")

    async def stop(self, knowledge: Knowledge) -> None:
        """Everything noted is durable, or the log says what is not."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._collect(knowledge)
        try:
            await self._state.stop()
        except StateError as error:
            _log.error("control state could not be written", error=str(error))

    async def _work(self, knowledge: Knowledge) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            knowledge.expire(self._clock.now_s())
            await self._collect(knowledge)

    async def _collect(self, knowledge: Knowledge) -> None:
        dirty, self._dirty = self._dirty, set()
        loop = asyncio.get_running_loop()
        for kind, name in sorted(dirty):
            if kind == "datasets":  # millions of keys to pack
                blob = await loop.run_in_executor(self._pool, knowledge.export, kind, name)
            else:
                blob = knowledge.export(kind, name)
            if blob is None:
                self._state.delete(kind, name)
            else:
                self._state.put(kind, name, blob)
