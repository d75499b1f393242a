"""Opens, for each worker, the coordinator's ends of the memory and the channel by which the worker fetches
pages.
"""

import socket
from collections.abc import Callable
from typing import NamedTuple

import structlog

from shadeproxy.app.channel import Channel, FillEnds, open_ends
from shadeproxy.app.origins import Providers, read_bounds
from shadeproxy.config import Settings
from shadeproxy.core.clock import Clock
from shadeproxy.core.types import SHARED, JobContext
from shadeproxy.core.units import format_size
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.read.fill_memory import FillMemory
from shadeproxy.engine.read.fill_messages import Outbox
from shadeproxy.engine.read.worker_fills import PrefetchWorkers, WorkerFills
from shadeproxy.origin.callback_reads import CallbackReads

_log = structlog.get_logger(__name__)
_LEDGER_PAGES = 2
_LEAST_PAGES = 2
_SHARE = 2  # Fill memory takes one part in this many of ``cache.inflight``.


def fill_memory_bytes(settings: Settings) -> int:
    """Return the bytes of fill memory of each worker; 0 if workers fetch no pages.

    All workers together get at most half of ``cache.inflight``, from which their fill memory is taken. With
    less than two pages a worker gets none: while the client of one page is slow, the worker could fetch no
    other page.
    """
    workers = settings.s3.processes - 1
    if workers < 1 or settings.origin.kind != "s3" or settings.origin.delay or settings.origin.bandwidth:
        return 0
    page_size = settings.cache.page_size
    each = (settings.cache.inflight - _LEDGER_PAGES * page_size) // _SHARE // workers
    return each // page_size * page_size if each >= _LEAST_PAGES * page_size else 0


def why_no_fills(settings: Settings) -> str:
    """Return why workers fetch no pages although they could, and how to change that; else ""."""
    processes = settings.s3.processes
    if processes == 1 or settings.origin.kind != "s3" or fill_memory_bytes(settings):
        return ""
    if settings.origin.delay or settings.origin.bandwidth:
        return ""
    pages = _LEAST_PAGES * _SHARE * (processes - 1) + _LEDGER_PAGES
    least = format_size(pages * settings.cache.page_size)
    return (
        f"{processes - 1} workers fetch no pages: set cache.inflight to {least} or more, or fewer s3.workers"
    )


class OpenFills(NamedTuple):
    """The coordinator's part in the fills of one worker. ``theirs``: the worker's end of the channel; close
    it once the worker has it.
    """

    fills: WorkerFills
    memory: FillMemory
    channel: Channel
    theirs: socket.socket
    ends: FillEnds
    prefetch: PrefetchWorkers

    def serve(self) -> None:
        """Let the worker, which now serves, also fetch pages for prefetch."""
        self.prefetch.add(self.fills)

    def close(self) -> None:
        """Take back the pages that this worker was fetching, because it has ended; other processes fetch
        them.
        """
        self.prefetch.remove(self.fills)
        self.channel.close()
        self.fills.close()
        self.fills.ended()
        self.memory.close()


class FillsOpener:
    """Opens memory and channel for each worker that starts."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        reads: CallbackReads,
        providers: Providers,
        clock: Clock,
        *,
        on_job: Callable[[JobContext], None],
        prefetch: PrefetchWorkers,
    ) -> None:
        """Make the opener. ``reads``: the coordinator's reads by callbacks, whose slots and statistics the
        workers share.

        ``on_job``: called for each read of a job. ``prefetch``: gets the workers that serve, for prefetching.
        """
        self._prefetch = prefetch
        self._settings = settings
        self._engine = engine
        self._reads = reads
        self._providers = providers
        self._clock = clock
        self._on_job = on_job
        if why := why_no_fills(settings):
            _log.warning("memory is too small for workers", hint=why)

    async def open(self, kill: Callable[[], None]) -> OpenFills | None:
        """Open memory and channel for a worker. Return None if workers fetch nothing. ``kill``: ends the
        worker if it takes no messages.
        """
        size_bytes = fill_memory_bytes(self._settings)
        if not size_bytes:
            return None
        memory = FillMemory.create(size_bytes)

        def serve(say: Callable[[bytes], bool]) -> WorkerFills:
            return WorkerFills(
                self._engine,
                memory,
                Outbox(say, kill),
                slots=self._reads.limited,
                counts=self._reads.counted,
                provider=lambda: self._providers.get(SHARED),
                clock=self._clock,
                bounds=read_bounds(self._settings),
                on_job=self._on_job,
                # Prefetches may use half of the worker's memory. The other half is for its clients, and for
                # bodies that are being written to a tier.
                most_orders=size_bytes // self._settings.cache.page_size // 2,
            )

        try:
            fills, channel, theirs = await open_ends(serve)
        except OSError:
            memory.close()
            raise
        ends = FillEnds(theirs.fileno(), memory.descriptor, self._reads.gets.instance)
        return OpenFills(fills, memory, channel, theirs, ends, self._prefetch)
