"""Loads the compiled fast lane (_request_cache.pyx), if it is installed and was compiled from these
sources.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from shadeproxy.api.s3.auth.sigv4 import check_time
from shadeproxy.api.s3.exchange import Outcome
from shadeproxy.api.s3.request_cache import RequestCache
from shadeproxy.api.s3.sender import LEAST_BYTES, Sender
from shadeproxy.api.s3.signed import Templates
from shadeproxy.core.clock import Clock, LeasedClock
from shadeproxy.core.compiled import is_made_of
from shadeproxy.core.memo import Memo
from shadeproxy.core.tracing import NUMBERS
from shadeproxy.core.types import Source, Span
from shadeproxy.engine.base import PageHandle, ReadsNow, SendfileSlice
from shadeproxy.engine.read.access_log import AccessLog
from shadeproxy.engine.read.hits import Hits
from shadeproxy.engine.read.worker_access_log import WorkerAccessLog
from shadeproxy.engine.storage.hot_pages import COPY_BYTES
from shadeproxy.engine.worker_reads import WorkerReads
from shadeproxy.telemetry.requests import REQUEST_BOUNDS_S

try:
    from shadeproxy.api.s3._request_cache import (
        SOURCE,
        SOURCES,
        CompiledHits,
        CompiledWorkerHits,
        data_received,
        learn_slots,
        worker_data_received,
    )
except ImportError:  # There was no compiler when the package was installed.
    COMPILED = False
else:
    # The compiled module reads attributes of objects by position. If it was compiled from other sources, it
    # would read wrong attributes.
    COMPILED = is_made_of(SOURCE, SOURCES, __file__)
    if COMPILED:
        for _owner in (Sender, PageHandle, RequestCache, Memo, Templates, AccessLog):
            learn_slots(_owner)

Protocol = TypeVar("Protocol", bound=asyncio.Protocol)
WorkerConnection = TypeVar("WorkerConnection", bound=asyncio.Protocol)


def compiled_hits(
    memory: RequestCache,
    engine: ReadsNow,
    own: Hits,
    *,
    otherwise: Callable[[bytes, Sender], Outcome],
    clock: Clock,
) -> "CompiledHits | None":
    """Return the compiled request cache of the process that has the engine, or None if nothing is compiled.
    ``own``: finds the pages of ``engine``. ``otherwise``: called when ``memory`` has no answer. ``clock``:
    the clock of ``memory``.
    """
    if not COMPILED:
        return None
    lease = wall_s = None
    if isinstance(clock, LeasedClock) and clock.lease is not None:
        lease, wall_s = clock.lease, clock.wall_s
    return CompiledHits(
        memory,
        own.access_log,
        own.handles,
        otherwise=otherwise,
        page_bytes=own.page_size,
        lease=lease,
        wall_s=wall_s,
        **_options(engine),
    )


def compiled_worker_hits(memory: RequestCache, shared: WorkerReads) -> "CompiledWorkerHits | None":
    """Return the compiled request cache of a worker, or None if nothing is compiled."""
    if not COMPILED:
        return None
    learn_slots(WorkerAccessLog, "AccessLog")
    return CompiledWorkerHits(
        memory,
        shared.access_log,
        shared.handles,
        lease=shared.lease,
        longest=shared.longest,
        otherwise=None,
        page_bytes=shared.page_size,
        **_options(shared),
    )


def _options(engine: ReadsNow) -> dict[str, Any]:
    return {
        "find_handle": engine.find_handle,
        "take": engine.take,
        "take_slices": engine.take_slices,
        "numbers": NUMBERS,
        "check_time": check_time,
        "new_slice": SendfileSlice,
        "new_span": Span,
        "copy_bytes": COPY_BYTES,
        "sendfile_bytes": LEAST_BYTES,
        "ram": Source.RAM,
        "bounds_s": REQUEST_BOUNDS_S,
    }


def compiled_worker_protocol(
    base: type[WorkerConnection], hits: "CompiledWorkerHits"
) -> type[WorkerConnection]:
    """Return a subclass of ``base``, a worker's class of connections. As in ``compiled_protocol``, received
    bytes go to ``hits`` first.
    """
    return type("CompiledWorkerProtocol", (base,), {"data_received": worker_data_received, "hits": hits})


def compiled_protocol(base: type[Protocol], hits: "CompiledHits") -> type[Protocol]:
    """Return a subclass of ``base``, the protocol of a connection. It gives received bytes to ``hits`` first,
    without running Python code. If ``hits`` has no answer, ``base`` gets the bytes.
    """
    learn_slots(base)
    return type("CompiledProtocol", (base,), {"__slots__": (), "data_received": data_received, "hits": hits})
