"""Durable control state: datasets, jobs, scores and orders. It is written in the background and read at a
start.

Laws: a noted change stays noted until the state store has it, even if its export fails or is cancelled. An
item that fails holds up neither other items nor its own later changes.
"""

import asyncio
from concurrent.futures import Executor

import structlog

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import StateError
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.hints.stored import KINDS
from shadeproxy.state.store import StateStore

_log = structlog.get_logger(__name__)
_EVERY_S = 1.0

Item = tuple[str, str]
"""Kind and name of a stored item."""


class Persistence:
    """Collects changes and hands them to the state store about once a second."""

    def __init__(self, state: StateStore, pool: Executor, clock: Clock) -> None:
        self._state = state
        self._pool = pool
        self._clock = clock
        # For each changed item, an object that is new at each change. By it an export sees whether its blob
        # is still the newest.
        self._dirty: dict[Item, object] = {}
        self._failing: set[Item] = set()
        self._task: asyncio.Task[None] | None = None

    def note(self, kind: str, name: str) -> None:
        """Note that the item (kind, name) changed or was removed."""
        self._dirty[kind, name] = object()

    def restore(self, hints: HintRegistry) -> None:
        """Restore the stored items into ``hints``. Items that cannot be read are logged and left out. The
        restored orders are still to be built. Blocks.
        """
        for kind in KINDS:
            for name, blob in self._state.load_all(kind).items():
                try:
                    hints.restore(kind, name, blob, self._clock.now_s())
                except StateError as error:
                    _log.warning("stored state left out", kind=kind, name=name, error=str(error))
                except Exception as error:  # noqa: BLE001 - logged; the start must not fail because of one item
                    _log.error("stored state left out", kind=kind, name=name, error=repr(error))

    def start(self, hints: HintRegistry) -> None:
        self._state.start()
        self._task = asyncio.create_task(self._work(hints), name="persistence")

    async def flush(self, hints: HintRegistry) -> None:
        """Make every noted change durable. Log the changes that cannot be stored."""
        await self._collect(hints)
        try:
            await self._state.flush()
        except StateError as error:
            _log.error("control state could not be written", error=str(error))

    async def stop(self, hints: HintRegistry) -> None:
        """Stop collecting changes, and flush."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.flush(hints)
        for kind, name in sorted(self._dirty):
            _log.error("control state is not saved", kind=kind, name=name)
        try:
            await self._state.stop()
        except StateError as error:
            _log.error("control state could not be written", error=str(error))

    async def _work(self, hints: HintRegistry) -> None:
        while True:
            await self._clock.sleep(_EVERY_S)
            try:
                hints.expire(self._clock.now_s())
            except Exception:  # noqa: BLE001 - logged; the task must outlive a bug elsewhere
                _log.exception("silent jobs were not expired")
            await self._collect(hints)

    async def _collect(self, hints: HintRegistry) -> None:
        for item, noted in sorted(self._dirty.items(), key=lambda entry: entry[0]):
            try:
                blob = await self._export(hints, *item)
                if self._dirty.get(item) is noted:
                    self._hand_over(item, blob)
                # Otherwise the item changed during the export, or another task stored it: then this blob is
                # out of date.
            except Exception:  # noqa: BLE001 - logged; one bad item must not keep back the others
                # The item is tried again in every round. Log the failure once, not in each of them.
                if item not in self._failing:
                    _log.exception("control state is not saved, will try again", kind=item[0], name=item[1])
                self._failing.add(item)
            else:
                self._failing.discard(item)

    async def _export(self, hints: HintRegistry, kind: str, name: str) -> bytes | None:
        if kind not in {"datasets", "orders"}:
            return hints.export(kind, name)
        # Export in a thread: packing millions of keys or ids takes long.
        return await asyncio.get_running_loop().run_in_executor(self._pool, hints.export, kind, name)

    def _hand_over(self, item: Item, blob: bytes | None) -> None:
        if blob is None:
            self._state.delete(*item)
        else:
            self._state.put(*item, blob)
        del self._dirty[item]
