"""The target of the fuzz: real listeners on loopback, each with an engine of its own over an origin in
memory.

There are four listeners. The first answers hits by the fast lane, the second answers every request by a
task, and the third refuses anonymous clients. The fourth has the third as its origin, over HTTP: so
forwarded requests pass through a real S3 client, and the third listener verifies them again. If the request
cache is compiled, its compiled form answers remembered hits, except at the second and the fourth listener.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shadeproxy.api.s3 import Authenticator, ClientKey, FastLane, Right, S3Handler, S3Server
from shadeproxy.api.s3.request_cache import RequestCache
from shadeproxy.core.clock import SystemClock
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.types import SHARED, Source
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.rules import Rules
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.origin.base import Origin
from shadeproxy.origin.credentials import StaticCredentials
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy.origin.s3 import S3Origin
from shadeproxy.policy.registry import get_policy
from shadeproxy.telemetry.stats import Stats
from shadeproxy.tiers.store import SegmentStore
from shadeproxy_bench.reliability.fuzz.signing import GOOD, LIMITED, NOW_S, TOKEN

PAGE_BYTES = 16_384
RAM_BYTES = 1 << 22
CLIENTS = (
    ClientKey(GOOD.access_key, GOOD.secret_key),
    ClientKey(LIMITED.access_key, LIMITED.secret_key, rights=(Right(prefix="b", write=False),)),
    ClientKey(TOKEN.access_key, TOKEN.secret_key, session_token=TOKEN.session_token),
)


class FixedClock(SystemClock):
    """A clock whose wall time stands still. A seed therefore always makes the same signatures."""

    def now_s(self) -> float:
        return NOW_S


class WatchedLane(FastLane):
    """A fast lane that counts the requests that it answers from the request cache. ``known``: the number of
    these requests.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._answered = 0

        class Watched(RequestCache):
            __slots__ = ()

            def answer(memory, raw: Any, out: Any) -> bool:  # noqa: N805 (``self`` is the lane)
                done = super().answer(raw, out)
                self._answered += done
                return done

        self._memory.__class__ = Watched

    @property
    def known(self) -> int:
        return self._answered + (0 if self.hits is None else self.hits.answered)


class TaskLane(FastLane):
    """A lane that answers no request, so that a task answers every request."""

    def answer(self, raw: Any, out: Any) -> None:  # noqa: ARG002 - the signature of the base class
        return None


class Complaints(logging.Handler):
    """A log handler that keeps error records, and all records with a traceback."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[tuple[str, tuple[str, ...]]] = []
        self.playing: set[str] = set()
        """The cases that run now. One of them is the cause of a complaint."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            self.say(self.format(record))

    def say(self, text: str) -> None:
        """Keep a complaint, with the cases that run now, one of which is its cause."""
        self.found.append((text, tuple(sorted(self.playing))))

    def debug(self, event: str, **fields: object) -> None:
        """Ignore the line that the S3 handler logs for each request."""

    def warning(self, event: str, **fields: object) -> None:
        """Ignore the S3 handler's warnings, because they are about clients and the origin."""

    def exception(self, event: str, **fields: object) -> None:
        """Keep the S3 handler's report of an unforeseen exception."""
        logging.getLogger("shadeproxy.s3").error("%s %s", event, fields, exc_info=True)  # noqa: LOG014 - called from a handler

    def of_the_loop(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        logging.getLogger("asyncio").error("%s", context["message"], exc_info=error)


class Observer:
    """Counts the operations that the listeners report."""

    def __init__(self) -> None:
        self.operations: Counter[str] = Counter()

    def on_request(self, *, operation: str, **_: object) -> None:
        self.operations[operation] += 1

    def on_job(self, job: object) -> None:
        """Ignore the job that a read belongs to."""


class _NoWeights:
    def weights_of(
        self,
        object_hashes: NDArray[np.uint64],
        numbers: NDArray[np.uint32],  # noqa: ARG002 - the signature of the protocol
    ) -> NDArray[np.float64]:
        return np.full(len(object_hashes), np.nan)


@dataclass
class Listener:
    """One listener with its proxy. ``anonymous``: True if it accepts unsigned requests."""

    name: str
    port: int
    origin: Any
    engine: Engine
    anonymous: bool


@dataclass
class Target:
    """The listeners that the fuzz sends requests to, the errors that they log, and the operations that they
    report.
    """

    listeners: list[Listener] = field(default_factory=list)
    complaints: Complaints = field(default_factory=Complaints)
    observer: Observer = field(default_factory=Observer)
    lanes: list[WatchedLane] = field(default_factory=list)


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Target]:
    """Run the listeners. At the end of the block, close everything, and add a complaint for any work that is
    left.
    """
    target = Target()
    loop = asyncio.get_running_loop()
    logging.getLogger().addHandler(target.complaints)
    loop.set_exception_handler(target.complaints.of_the_loop)
    async with AsyncExitStack() as stack:
        stack.callback(loop.set_exception_handler, None)
        stack.callback(logging.getLogger().removeHandler, target.complaints)
        clock = FixedClock()

        async def listen(
            name: str, origin: Origin, lane: type[FastLane], *, anonymous: bool, compiled: bool = False
        ) -> Listener:
            made = await _listen(
                stack,
                target,
                directory / name,
                origin=origin,
                lane=lane,
                anonymous=anonymous,
                compiled=compiled,
                clock=clock,
            )
            target.listeners.append(made)
            return made

        await listen("fast", MemoryOrigin(clock=clock), WatchedLane, anonymous=True, compiled=True)
        await listen("task", MemoryOrigin(clock=clock), TaskLane, anonymous=True)
        strict = await listen(
            "strict", MemoryOrigin(clock=clock), WatchedLane, anonymous=False, compiled=True
        )
        before = S3Origin(
            f"http://127.0.0.1:{strict.port}",
            credentials={SHARED: StaticCredentials(GOOD)},
            addressing="path",
            trailing_checksums="always",
            clock=clock,
        )
        stack.push_async_callback(before.aclose)
        await listen("chained", before, WatchedLane, anonymous=True)
        yield target


async def _listen(
    stack: AsyncExitStack,
    target: Target,
    directory: Path,
    *,
    origin: Origin,
    lane: type[FastLane],
    anonymous: bool,
    compiled: bool,
    clock: FixedClock,
) -> Listener:
    stats, ledger = Stats(), Ledger(1 << 26)
    tier = SegmentStore("ram", directory, RAM_BYTES, segment_bytes=RAM_BYTES)
    cache = PageCache(
        [Medium(tier, Source.RAM)],
        policy=get_policy("default"),
        weights=_NoWeights(),
        stats=stats,
        ledger=ledger,
        rng=np.random.default_rng(7),
    )
    await asyncio.to_thread(cache.recover)
    stack.push_async_callback(asyncio.to_thread, cache.close)
    engine = Engine(
        origin, cache, rules=Rules(()), ledger=ledger, stats=stats, clock=clock, page_size=PAGE_BYTES
    )
    stack.callback(_judge, directory.name, engine, target)
    stack.push_async_callback(engine.aclose)
    handler = S3Handler(
        engine,
        Authenticator(CLIENTS, anonymous=anonymous, clock=clock),
        clock=clock,
        observer=target.observer,
        log=target.complaints,
        base_domains=("s3.fuzz.example",),
        # With so small a budget, most uploads with a trailing checksum are streamed.
        trailed_budget_bytes=10_000,
    )
    stack.callback(_judge_handler, directory.name, handler, target)
    own = engine.hits if compiled else None
    fast = lane(engine, handler, clock=clock, jobs=target.observer, own=own)
    if isinstance(fast, WatchedLane):
        target.lanes.append(fast)
    server = S3Server(handler, fast)
    stack.push_async_callback(server.shutdown, 1.0)
    _, port = await server.listen("127.0.0.1", 0)
    return Listener(directory.name, port, origin, engine, anonymous)


def _judge(name: str, engine: Engine, target: Target) -> None:
    """Add a complaint if the engine, which is closed, still has something under way."""
    try:
        engine.assert_quiescent()
    except AssertionError as error:
        target.complaints.say(f"{name} is not quiescent: {error}")


def _judge_handler(name: str, handler: S3Handler, target: Target) -> None:
    if handler.held_bytes:
        target.complaints.say(f"{name} holds {handler.held_bytes} bytes of uploads")


def open_descriptors() -> Counter[str]:
    """Count the open descriptors of this process, by kind or path."""
    targets: Counter[str] = Counter()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            targets[str(entry.readlink()).partition(":[")[0]] += 1
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    return targets
