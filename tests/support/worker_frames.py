"""Counts the Python calls of the coordinator for a miss of a worker's client, as frame_counts.py does for the
requests of one proxy.

The tests send the messages of four workers. Each frame has eight messages. All pages are small, so a worker
reports each by one message.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shadeproxy.app.opening import PartOpener
from shadeproxy.app.origins import read_bounds
from shadeproxy.app.proxy import Proxy
from shadeproxy.core.types import SHARED
from shadeproxy.engine.read.fill_memory import FillMemory
from shadeproxy.engine.read.fill_messages import (
    AllowFills,
    BeginFill,
    ClientLeft,
    FillComplete,
    FillHead,
    Outbox,
    from_coordinator,
)
from shadeproxy.engine.read.worker_fills import WorkerFills
from tests.support.frame_counts import (
    MISSES,
    ROUNDS,
    Count,
    Inline,
    Origin,
    StillClock,
    StillLoop,
    count_calls,
    settings,
)

WORKERS = 4
_EACH = MISSES // WORKERS
_BODY_BYTES = 4096
_MEMORY_BYTES = 1 << 20
_WARM_UP = 2
_HEADERS = (
    ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"),
    ("Content-Type", "application/octet-stream"),
)


class Worker:
    """A worker whose messages the tests send."""

    def __init__(self, engine: Any, reads: Any, proxy_settings: Any) -> None:
        provider = reads.gets._provider_of(SHARED)
        self.memory = FillMemory.create(_MEMORY_BYTES)
        self.fills = WorkerFills(
            engine,
            self.memory,
            Outbox(self._take, lambda: None),
            slots=reads.limited,
            counts=reads.counted,
            provider=lambda: provider,
            clock=StillClock(),
            bounds=read_bounds(proxy_settings),
            on_job=lambda _job: None,
        )
        self.allowed: list[int] = []

    def _take(self, frame: bytes) -> bool:
        for message in from_coordinator(frame):
            if isinstance(message, AllowFills):
                self.allowed += message.idents
        return True

    def begun(self, idents: range) -> bytes:
        """Return a frame that asks for new objects."""
        return msgspec.msgpack.encode([BeginFill(ident, "b", f"{ident:06}", "10.0.0.1") for ident in idents])

    def filled(self, idents: range) -> bytes:
        """Return a frame that reports all bytes of these objects, and that their clients have left."""
        messages = []
        for place, ident in enumerate(idents):
            head = FillHead(
                ident, place * _BODY_BYTES, _BODY_BYTES, f'"{ident}"', _BODY_BYTES, _HEADERS, doubtful=False
            )
            head.filled = _BODY_BYTES
            head.complete = FillComplete(ident, ClientLeft(ident, 0, _BODY_BYTES, served=True))
            messages.append(head)
        return msgspec.msgpack.encode(messages)

    def close(self) -> None:
        self.fills.close()
        self.fills.ended()
        self.memory.close()


async def _counts(directory: Path, parts: dict[str, Any]) -> list[Count]:
    asyncio.get_running_loop().set_default_executor(Inline())
    origin = await asyncio.get_running_loop().create_server(Origin, "127.0.0.1", 0)
    own = settings(directory, origin.sockets[0].getsockname()[1], {"origin.max_connections": "64"})
    proxy = Proxy(own, clock=StillClock())
    await proxy.start()
    workers = [Worker(parts["engine"], parts["reads"], own) for _ in range(WORKERS)]
    counts = []
    try:
        for number in range(_WARM_UP + ROUNDS):
            # Each worker counts its own reads, and each read is of an object that no other read has.
            idents = [
                range(first := (number * WORKERS + place) * _EACH + 1, first + _EACH)
                for place in range(WORKERS)
            ]
            both: list[list[Callable[[], None]]] = [[], []]
            for worker, some in zip(workers, idents, strict=True):
                worker.allowed.clear()
                for turn, frame in zip(both, (worker.begun(some), worker.filled(some)), strict=True):
                    turn.append(lambda fills=worker.fills, frame=frame: fills.hear(frame))
            counts.append(await count_calls(both, MISSES))
            assert [worker.allowed for worker in workers] == [list(some) for some in idents]
            assert all(not len(worker.fills) for worker in workers)
        # Otherwise the coordinator would have done less than its part of a miss.
        assert parts["engine"].plain_reads._cache.residents.members[0].count == len(counts) * MISSES
    finally:
        for worker in workers:
            worker.close()
        await proxy.stop()
        origin.close()
    return counts[_WARM_UP:]


def count_coordinator(directory: Path) -> list[Count]:
    """Count the coordinator's part of 32 misses, ``ROUNDS`` times. Their pages are stored."""
    parts: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=StillLoop) as runner:
        build, open_engine = PartOpener.origin, PartOpener.engine

        async def origin(self: PartOpener, *args: Any, **kwargs: Any) -> Any:
            found = await build(self, *args, **kwargs)
            parts["reads"] = found[1]
            return found

        async def engine(self: PartOpener, *args: Any, **kwargs: Any) -> Any:
            parts["engine"] = await open_engine(self, *args, **kwargs)
            return parts["engine"]

        patch.setattr(PartOpener, "origin", origin)
        patch.setattr(PartOpener, "engine", engine)
        for name in ("ORIGIN_KEY", "ORIGIN_SECRET"):
            patch.setenv(name, "k")
        return runner.run(_counts(directory, parts))
