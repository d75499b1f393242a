"""Requests that a worker forwards to the origin: the coordinator's half of the work.

Laws: as for its own writes (writes.py), the coordinator drops the objects of a write before the worker sends
the write to the origin, and again before the client sees success. The coordinator gives out the slots of all
processes. If a worker ends, the outcome of its writes is unknown.
"""

import asyncio
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Protocol

from shadeproxy.core.errors import NotOwnerNow, ShadeProxyError
from shadeproxy.core.tracing import CLIENT, note_slot
from shadeproxy.core.types import JobContext, ObjectRef
from shadeproxy.engine.ownership import Here
from shadeproxy.engine.read.fill_messages import Outbox
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
    FromCoordinator,
    Refused,
    RequestEnd,
    from_worker,
)
from shadeproxy.engine.read.origin_keys import KeySender
from shadeproxy.origin.limit import Slots


class BeginsWrites(Protocol):
    """The part of the engine that a worker's write needs."""

    def writing(self, refs: Iterable[ObjectRef]) -> AbstractAsyncContextManager[Here]:
        """Wrap a write, see ``ReadPath.writing``."""
        ...


class ForwardCounting(Protocol):
    """Counts forwarded requests, as ``CountedOrigin`` of counted.py does."""

    def note(self, kind: str, size_bytes: int, started_s: float, failure: BaseException | None) -> None:
        """Count a request that has ended."""
        ...

    def note_throttled(self) -> None:
        """Count an answer of the origin that asks for fewer requests."""
        ...


class RequestCounting(Protocol):
    """Counts the requests of clients."""

    def count_forwarded(
        self, operation: str, bucket: str, status: int, bytes_sent: int, job: JobContext | None
    ) -> None:
        """Count a request that has ended."""
        ...


class WorkerForwards:
    """Answers the messages of one worker about requests that it forwards. ``slots``: the origin slots for
    forwarded requests.
    """

    def __init__(
        self,
        engine: BeginsWrites,
        outbox: Outbox,
        keys: KeySender,
        *,
        slots: Slots,
        counts: ForwardCounting,
        requests: RequestCounting,
    ) -> None:
        self._engine = engine
        self._outbox = outbox
        self._keys = keys
        self._slots = slots
        self._counts = counts
        self._requests = requests
        self._held: dict[int, str] = {}  # By ident: the client to which a slot is charged.
        self._waiting: dict[int, asyncio.Task[None]] = {}  # Tasks that wait for a slot or for credentials.
        self._writes: dict[int, _Write] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._held) + len(self._waiting) + len(self._writes)

    def hear(self, frame: bytes) -> None:
        """Process the messages in a frame of the worker."""
        for message in from_worker(frame):
            match message:
                case AskSlot():
                    self._take(message)
                case EndSlot():
                    self._give(message.ident)
                case BeginWrite():
                    self._begin(message)
                case EndWrite():
                    if (ending := self._writes.get(message.ident)) is not None:
                        ending.end(is_known=message.is_known)
                case ForwardEnd():
                    self._note(message)
                case ForwardThrottled():
                    self._counts.note_throttled()
                case RequestEnd():
                    self._requests.count_forwarded(
                        message.operation, message.bucket, message.status, message.bytes_sent, message.job
                    )

    def close(self) -> None:
        """Take back all slots of the worker and end its writes, because the worker is gone. Idempotent."""
        self._closed = True
        for ident in [*self._held, *self._waiting]:
            self._give(ident)
        for write in list(self._writes.values()):
            write.end(is_known=False)

    # ------------------------------------------------------------------ slots

    def _take(self, message: AskSlot) -> None:
        whose = CLIENT.set(message.client)
        try:
            slot = self._slots.take_now() if self._keys.send_now() else None
            if slot is not None:
                self._allow(message.ident, slot)
            else:
                waiting = asyncio.create_task(self._wait(message.ident), name="slot of a worker")
                self._waiting[message.ident] = waiting
        finally:
            CLIENT.reset(whose)

    async def _wait(self, ident: int) -> None:
        try:
            await self._acquire(ident)
        except ShadeProxyError as error:
            self._say(Refused(ident, Failure.of(error)))
        finally:
            self._waiting.pop(ident, None)

    async def _acquire(self, ident: int) -> None:
        """Wait for a slot and for the origin's credentials, then let the worker send the request. Raises
        ShadeProxyError.
        """
        slot = await note_slot(self._slots.take())
        try:
            await self._keys.send()
        except BaseException:
            self._slots.give(slot)
            raise
        self._allow(ident, slot)

    def _allow(self, ident: int, slot: str) -> None:
        self._held[ident] = slot
        self._say(Allowed(ident))

    def _give(self, ident: int) -> None:
        if (slot := self._held.pop(ident, None)) is not None:
            self._slots.give(slot)
        elif (task := self._waiting.pop(ident, None)) is not None:
            task.cancel()

    # ------------------------------------------------------------------ writes

    def _begin(self, message: BeginWrite) -> None:
        write = self._writes[message.ident] = _Write()
        whose = CLIENT.set(message.client)
        write.task = asyncio.create_task(self._write(message, write), name="write of a worker")
        CLIENT.reset(whose)
        write.task.add_done_callback(partial(self._over, message.ident))

    async def _write(self, message: BeginWrite, write: "_Write") -> None:
        try:
            async with self._engine.writing([ObjectRef(*ref) for ref in message.refs]) as here:
                _require_here(here)
                await self._acquire(message.ident)
                await write.ended
        except Exception as error:
            self._say(Refused(message.ident, Failure.of(error)))
            if not isinstance(error, ShadeProxyError):
                raise

    def _over(self, ident: int, _task: asyncio.Task[None]) -> None:
        del self._writes[ident]
        self._say(Ended(ident))

    # ------------------------------------------------------------------ messages

    def _say(self, message: FromCoordinator) -> None:
        if not self._closed:
            self._outbox.send(message)

    def _note(self, message: ForwardEnd) -> None:
        failure: BaseException | None = None
        if message.given_up:
            failure = asyncio.CancelledError()
        elif message.failure is not None:
            failure = message.failure.unpack()
        self._counts.note("forward", message.size_bytes, message.started_s, failure)


def _require_here(here: Here) -> None:
    """Raise NotOwnerNow if another proxy must execute a part of a write, because a worker cannot send that
    part to the other proxy.
    """
    if here is not None:
        raise NotOwnerNow("a worker cannot ask the proxy that writes the object; retry")


class _Write:
    """One write of a worker. ``ended``: a future that is done when the worker has reported the end of the
    write.
    """

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None]

    def end(self, *, is_known: bool) -> None:
        """End the write. ``is_known``: False if its outcome is not known. Then the write is cancelled, so
        that the cache treats it as one that may still run at the origin.
        """
        if not is_known:
            self.task.cancel()
        elif not self.ended.done():
            self.ended.set_result(None)
