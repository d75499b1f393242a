"""The worker's half of forwarding requests to the origin: it sends them. The coordinator's half, which grants
slots and drops written objects from the cache, is engine/read/worker_forwards.py.

Laws: bodies go straight between client and origin, not through the coordinator. The worker asks the
coordinator for each slot, and before and after each write. If the coordinator refuses, the client gets the
error. The worker reports requests that have ended, and the coordinator counts them.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Unpack

import msgspec

from shadeproxy.api.s3.exchange import EndedRequest, RequestObserver
from shadeproxy.api.s3.worker_misses import SentKeys
from shadeproxy.core.clock import Clock
from shadeproxy.core.deadline import ReadBounds
from shadeproxy.core.errors import OriginError, Overloaded
from shadeproxy.core.tracing import CLIENT
from shadeproxy.core.types import ObjectRef, Source
from shadeproxy.engine.ownership import Here
from shadeproxy.engine.read.fill_messages import OriginKeys, Outbox
from shadeproxy.engine.read.forward_messages import (
    Allowed,
    AskSlot,
    BeginWrite,
    Ended,
    EndSlot,
    EndWrite,
    Failure,
    ForwardEnd,
    ForwardThrottled,
    Refused,
    RequestEnd,
    from_coordinator,
)
from shadeproxy.origin.base import ForwardRequest, ForwardResponse, Origin
from shadeproxy.origin.counted import CountedOrigin
from shadeproxy.telemetry.stats import Stats

# Most bytes of object names in questions to the coordinator. This is a quarter of the bytes that a channel
# keeps for a process that reads too slowly.
_MOST_NAMED_BYTES = 1024 * 1024

_IDENT: ContextVar[int | None] = ContextVar("ident", default=None)
"""The number of the slot that the coordinator has granted together with this task's write. None: there is no
such slot, or it is in use.
"""


class AskedCoordinator:
    """Asks the coordinator questions, and waits for the answers. ``keys``: gets the credentials that the
    coordinator sends.
    """

    def __init__(self, outbox: Outbox, keys: SentKeys) -> None:
        self.outbox = outbox
        self._keys = keys
        self._idents = itertools.count(1)
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._named_bytes = 0

    @contextmanager
    def naming(self, size_bytes: int) -> Iterator[None]:
        """Count ``size_bytes`` of object names as under way, from a question until its answer. Raises
        Overloaded if too many bytes are under way already. Without this limit, a slow coordinator could leave
        so many bytes unread that this worker would have to end, with all its clients' connections.
        """
        if self._named_bytes and self._named_bytes + size_bytes > _MOST_NAMED_BYTES:
            raise Overloaded("too many writes wait for the process that decides")
        self._named_bytes += size_bytes
        try:
            yield
        finally:
            self._named_bytes -= size_bytes

    def next_ident(self) -> int:
        return next(self._idents)

    async def answer(self, ident: int, message: msgspec.Struct) -> None:
        """Send ``message``, and wait for the answer with the number ``ident``. Raises the error in this
        answer.
        """
        answer = self._answers[ident] = asyncio.get_running_loop().create_future()
        try:
            self.outbox.send(message)
            await answer
        finally:
            del self._answers[ident]

    def hear(self, frame: bytes) -> None:
        """Act on the messages in a frame from the coordinator."""
        for message in from_coordinator(frame):
            if isinstance(message, OriginKeys):
                self._keys.adopt(message)
                continue
            answer = self._answers.get(message.ident)
            if answer is None or answer.done():
                continue
            match message:
                case Allowed() | Ended():
                    answer.set_result(None)
                case Refused():
                    answer.set_exception(message.failure.unpack())


class CoordinatorSlots:
    """The slots of forwarded requests, which the coordinator counts. Implements ``ForwardSlots`` of
    limit.py.
    """

    def __init__(self, coordinator: AskedCoordinator) -> None:
        self.taken = 0
        self._coordinator = coordinator

    async def take(self) -> str:
        """Acquire a slot from the coordinator, or use the one that was granted with the write. Return a name
        to give the slot back by. Raises Overloaded.
        """
        ident = _IDENT.get()
        if ident is None:
            ident = self._coordinator.next_ident()
            try:
                await self._coordinator.answer(ident, AskSlot(ident, CLIENT.get()))
            except asyncio.CancelledError:
                self._coordinator.outbox.send(EndSlot(ident))
                raise
        _IDENT.set(None)
        self.taken += 1
        return str(ident)

    def give(self, slot: str) -> None:
        """Return the slot that ``take`` has acquired to the coordinator."""
        self.taken -= 1
        self._coordinator.outbox.send(EndSlot(int(slot)))


class ReportedOrigin(CountedOrigin):
    """Reports to the coordinator how forwarded requests ended. The coordinator counts them."""

    def __init__(self, inner: Origin, outbox: Outbox, *, clock: Clock, bounds: ReadBounds) -> None:
        super().__init__(inner, stats=Stats(), clock=clock, bounds=bounds)
        self._outbox = outbox

    def note(self, kind: str, size_bytes: int, started_s: float, failure: BaseException | None) -> None:
        assert kind == "forward", "a worker sends no other request over this origin"
        known = Failure.of(failure) if isinstance(failure, OriginError) else None
        given_up = failure is not None and known is None
        self._outbox.send(ForwardEnd(size_bytes, started_s, known, given_up))

    def note_throttled(self) -> None:
        self._outbox.send(ForwardThrottled())


class ReportedRequests:
    """Reports each ended request to ``log``, which is this process's own. Reports those with a job, and every
    GetObject, also to the coordinator, which counts them.
    """

    def __init__(self, log: RequestObserver, outbox: Outbox) -> None:
        self._log = log
        self._outbox = outbox

    def on_request(self, **request: Unpack[EndedRequest]) -> None:
        """Report a request that has ended."""
        self._log.on_request(**request)
        assert request["source"] is Source.BYPASS, "a worker forwards past the cache"
        operation, job = request["operation"], request["job"]
        if job is not None or operation == "GetObject":
            self._outbox.send(
                RequestEnd(operation, request["bucket"], request["status"], request["bytes_sent"], job)
            )


class WorkerPath:
    """Implements ``ForwardPath`` of forward.py over an origin of this process."""

    def __init__(self, coordinator: AskedCoordinator, origin: ReportedOrigin) -> None:
        self._coordinator = coordinator
        self._origin = origin

    def forward(self, request: ForwardRequest) -> AbstractAsyncContextManager[ForwardResponse]:
        """Send ``request`` to the origin, and return its answer; see ``ReadPath.forward``."""
        return self._origin.forward(request)

    @asynccontextmanager
    async def writing(self, refs: Iterable[ObjectRef]) -> AsyncIterator[Here]:
        """Announce a write of ``refs`` to the coordinator, and wait until it is allowed. After the block,
        report its end. See ``ReadPath.writing``.
        """
        coordinator = self._coordinator
        ident = coordinator.next_ident()
        named = tuple((ref.bucket, ref.key, ref.namespace) for ref in refs)
        size_bytes = sum(len(name.encode()) for ref in named for name in ref)
        try:
            with coordinator.naming(size_bytes):
                await coordinator.answer(ident, BeginWrite(ident, CLIENT.get(), named))
        except asyncio.CancelledError:
            coordinator.outbox.send(EndWrite(ident, is_known=False))
            coordinator.outbox.send(EndSlot(ident))
            raise
        _IDENT.set(ident)
        try:
            yield None
        except asyncio.CancelledError:
            coordinator.outbox.send(EndWrite(ident, is_known=False))
            raise
        except BaseException as error:
            await self._end(ident, is_known=not isinstance(error, OriginError))
            raise
        else:
            await self._end(ident, is_known=True)
        finally:
            if _IDENT.get() == ident:  # The write was allowed but no request was forwarded. Return the slot.
                coordinator.outbox.send(EndSlot(ident))

    async def _end(self, ident: int, *, is_known: bool) -> None:
        """End a write, and wait until no read can find the bytes that the write has replaced."""
        await self._coordinator.answer(ident, EndWrite(ident, is_known=is_known))
