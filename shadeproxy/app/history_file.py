"""The file of read histories in the state directory. The proxy reads it at a start. It writes the file every
minute or less often, and at a stop.

Laws: a start never fails because of this file. If the file cannot be used, it is renamed and one line is
logged, and the proxy learns from the beginning. The file is read and written in threads. If the process is
killed, the reads since the last write are lost. Writes take at most a megabyte a second on average.
"""

import asyncio
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

import structlog

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import StateError
from shadeproxy.engine.placement.durable_histories import Encode, export, restore
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.state.checked_file import CheckedFileWriter, read_checked

_log = structlog.get_logger(__name__)
NAME = "histories.bin"
DAMAGED = f"{NAME}.damaged-1"
EVERY_S = 60.0
_MOST_BYTES_PER_S = 1e6


class HistoryFile:
    """Keeps the histories of ``cache`` in ``directory``. ``pool``: the one thread that also makes the
    learner's tables.
    """

    def __init__(
        self, cache: PageCache, directory: Path, *, page_size: int, pool: Executor, clock: Clock
    ) -> None:
        self._cache = cache
        self._path = directory / NAME
        self._page_size = page_size
        self._pool = pool
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._saved_tick = 0.0
        self._failing = False

    def restore(self) -> None:
        """Read the file into the histories of a cache that has no pages yet. Blocks."""
        placement = self._cache.placement
        try:
            blocks = read_checked(self._path)
            tick, left_out = restore(blocks, placement.histories, self._cache.groups, self._page_size)
        except StateError as error:
            _log.warning(
                "read histories left out, learning starts over", error=str(error), kept=self._move_aside()
            )
            return
        placement.tick = self._saved_tick = tick
        if left_out:
            _log.warning("some read histories left out", what=left_out)

    def start(self) -> None:
        self._task = asyncio.create_task(self._work(), name="histories")

    async def stop(self) -> None:
        """Write the file a last time."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.save()

    async def save(self) -> int:
        """Write the file, if anything was read since it was last written. Return the number of bytes written.

        A failure is logged, but of several in a row only the first.
        """
        written = 0
        try:
            written = await self._save()
        except StateError as error:
            if not self._failing:
                _log.warning("read histories are not saved, will try again", error=str(error))
            self._failing = True
        else:
            self._failing = False
        return written

    async def _save(self) -> int:
        tick, cache = self._cache.tick(), self._cache
        if tick == self._saved_tick:
            return 0
        in_thread = partial(asyncio.get_running_loop().run_in_executor, self._pool)
        blocks = export(cache.placement.histories, cache.groups.names, tick, self._page_size)
        file = await in_thread(CheckedFileWriter, self._path)
        try:
            for encode in blocks:
                await in_thread(_write, file, encode)
            await in_thread(file.commit)
        finally:
            await in_thread(file.close)
        self._saved_tick = tick
        return file.size_bytes

    async def _work(self) -> None:
        written = 0
        while True:
            await self._clock.sleep(max(EVERY_S, written / _MOST_BYTES_PER_S))
            written = await self.save()

    def _move_aside(self) -> str:
        """Rename the unusable file; return its new name, or "" if it could not be renamed."""
        try:
            return str(self._path.replace(self._path.with_name(DAMAGED)))
        except OSError:
            return ""


def _write(file: CheckedFileWriter, encode: Encode) -> None:
    file.add(encode())
