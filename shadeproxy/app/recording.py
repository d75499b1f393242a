"""``[telemetry] trace``: writes the demand reads of a running proxy to a file for ``shadeproxy simulate``."""

import asyncio
from pathlib import Path

import structlog

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import ConfigError
from shadeproxy.telemetry.recording import Recording, write

_log = structlog.get_logger(__name__)
MOST_READS = 10_000_000
_EVERY_S = 60.0
_GROWTH = 1.25  # Packing takes longer as the recording grows, so write less and less often.


class Recorder:
    """Records demand reads, and writes them to ``path`` from time to time and at the end. A write that fails
    is only logged.
    """

    def __init__(self, path: Path, clock: Clock, *, most_reads: int = MOST_READS) -> None:
        """Prepare a recording. Raises ConfigError if the directory does not exist. Blocks."""
        if not path.parent.is_dir():
            raise ConfigError(
                f"telemetry.trace: there is no directory {path.parent}; make it, or name another"
            )
        self.reads = Recording(most_reads)
        self._path = path
        self._clock = clock
        self._written = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._work(), name="recording")

    async def stop(self) -> None:
        """Stop, and write the reads that are not in the file yet."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._write()

    async def _work(self) -> None:
        while True:
            await self._clock.sleep(_EVERY_S)
            if len(self.reads) >= self._written * _GROWTH or self.reads.full:
                await self._write()
            if self.reads.full:
                _log.warning("the recording is full", reads=len(self.reads), path=str(self._path))
                return

    async def _write(self) -> None:
        count = len(self.reads)
        if count == self._written:
            return
        try:
            await asyncio.to_thread(write, self.reads.snapshot(), self._path)
        except OSError as error:
            _log.warning("the recording could not be written", path=str(self._path), error=str(error))
        else:
            self._written = count
