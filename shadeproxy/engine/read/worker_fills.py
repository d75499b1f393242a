"""Pages that a worker fetches: the coordinator's half of the work.

Laws: the coordinator decides whether a read may begin, what is requested, and whether the page is stored. It
uses the same flights, versions, slots and cache as for its own reads. The worker moves the bytes. To a
flight, a worker is one more ``CallbackOrigin``, whose bytes come in fill memory. If a worker ends, is stuck
or fails, the flight treats this like an origin that broke off, and the other readers of the page go on
without the worker. A worker may also fetch a page for prefetch; then only the coordinator waits for the page.
"""

import asyncio
import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from shadeproxy.core.clock import Clock
from shadeproxy.core.deadline import DEADLINE, Deadline, ReadBounds
from shadeproxy.core.delegated_body import BodyPlace, BodyWriter, WrittenBody
from shadeproxy.core.identity import object_hash
from shadeproxy.core.ranges import RangeSpec
from shadeproxy.core.tracing import CLIENT, READER
from shadeproxy.core.types import OWN, SHARED, Intent, JobContext, ObjectMeta, ObjectRef
from shadeproxy.engine.base import UNKNOWN, NothingKnown, ReadRequest
from shadeproxy.engine.read.access_log import FetchedRead
from shadeproxy.engine.read.fill_memory import FillMemory
from shadeproxy.engine.read.fill_messages import (
    BeginFill,
    BodyWritten,
    FillHead,
    OrderFill,
    Outbox,
    RefuseFill,
    WriteBody,
    from_worker,
)
from shadeproxy.engine.read.flight import Flight
from shadeproxy.engine.read.needed import stop_asked
from shadeproxy.engine.read.origin_keys import KeySender
from shadeproxy.engine.read.plain_read import PlainRead
from shadeproxy.engine.read.plain_reads import PlainReads
from shadeproxy.engine.read.reading import EngineReading
from shadeproxy.engine.read.worker_read import WorkerRead
from shadeproxy.origin.base import CallbackOrigin, Sink, Wanted
from shadeproxy.origin.callback_reads import CountsReads, TakesSlots
from shadeproxy.origin.credentials import CredentialProvider

LEAST_DELEGATED_BYTES = 64 * 1024
"""The coordinator itself copies bodies that are shorter than this. The two messages by which a worker would
write such a body cost more (ADR 34).
"""


class BeginsWorkerReads(Protocol):
    """The part of the engine that is called when workers fetch pages."""

    plain_reads: PlainReads

    def cacheable(self, ref: ObjectRef) -> bool:
        """Return whether the object may be cached, see ``ReadsNow.cacheable``."""
        ...

    def find_now(self, request: ReadRequest) -> ObjectMeta | NothingKnown | None:
        """Return what is known of the object, see ``ReadsNow.find_now``."""
        ...

    def begin(
        self, request: ReadRequest, found: ObjectMeta | NothingKnown, reads: CallbackOrigin | None = None
    ) -> tuple[EngineReading, Flight] | None:
        """Begin a read, as ``BeginsReads.begin`` in lane_read.py does. ``reads``: if given, these reads by
        callbacks fetch the page; then the result is also None if the page is already on its way.
        """
        ...

    def leave(self, reading: EngineReading, *, served: bool = False) -> None:
        """Release a reading, see ``BeginsReads.leave`` in lane_read.py."""
        ...


class WorkerFills:
    """The pages that one worker fetches. ``provider``: returns the provider of the credentials for requests
    to the origin.

    ``on_job``: called for each read of a job. ``most_orders``: how many prefetches may wait for the worker's
    memory at a time. This class implements ``CallbackOrigin``, for prefetches by the worker.
    """

    def __init__(
        self,
        engine: BeginsWorkerReads,
        memory: FillMemory,
        outbox: Outbox,
        *,
        slots: TakesSlots,
        counts: CountsReads,
        provider: Callable[[], CredentialProvider | None],
        clock: Clock,
        bounds: ReadBounds,
        on_job: Callable[[JobContext], None],
        most_orders: int = 0,
    ) -> None:
        self.lends_memory = True
        """True, because the bytes come in fill memory; see ``CallbackOrigin.lends_memory``."""
        self.orders: set[int] = set()
        """Numbers of the prefetches for which the worker has not taken memory yet."""
        self.engine = engine
        self.plain = engine.plain_reads
        """The part of the engine that plain reads use."""
        self.filled: list[tuple[int, float]] = []
        self.fetched: list[FetchedRead] = []
        self._is_counting = False
        self.memory = memory
        self.outbox = outbox
        self.slots = slots
        self.counts = counts
        self._keys = KeySender(provider, outbox)
        self._clock = clock
        self._bounds = bounds
        self._on_job = on_job
        self._most_orders = most_orders
        self._order_idents = itertools.count(-1, -1)
        self._reads: dict[int, WorkerRead | PlainRead] = {}
        self._bodies: dict[int, DelegatedBody] = {}  # Bodies that the worker writes, by start in memory.
        self._closed = False
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    def __len__(self) -> int:
        return len(self._reads)

    @property
    def takes_orders(self) -> bool:
        """True if the worker may get one more prefetch now."""
        return len(self.orders) < self._most_orders and not self._closed

    def start(self, wanted: Wanted, intent: Intent, sink: Sink) -> WorkerRead | None:
        """Let the worker fetch a page that none of its clients asked for. Return None if this cannot begin
        now.
        """
        assert wanted.upstream == SHARED, "a worker has no other credentials"
        if not self._keys.send_now():
            return None
        slot = self.slots.take_now(intent)
        if slot is None:
            return None
        read = WorkerRead(self, ident := next(self._order_idents))
        read.slot = slot
        span = None if wanted.span is None else (wanted.span.start, wanted.span.stop)
        try:
            self.outbox.send(OrderFill(ident, wanted.ref.bucket, wanted.ref.key, span, wanted.if_match))
        except UnicodeEncodeError:
            read.give_slot()
            return None
        self._reads[ident] = read
        self.orders.add(ident)
        return read.start(wanted, intent, sink)

    def hear(self, frame: bytes) -> None:
        """Process the messages in a frame of the worker."""
        try:
            for message in from_worker(frame):
                if isinstance(message, BeginFill):
                    self._begin(message)
                elif isinstance(message, BodyWritten):
                    self._bodies.pop(message.start).end(message)
                elif (read := self._reads.get(message.ident)) is not None:
                    read.hear(message)
                elif isinstance(message, FillHead):
                    self.outbox.free(message.start)
        finally:
            if (self.filled or self.fetched) and not self._is_counting:
                self._is_counting = True
                self._loop.call_soon(self._count_plain)

    def close(self) -> None:
        """Give up all reads of the worker, because it has ended or is about to. The readers of its pages in
        other processes go on without the worker. Idempotent.
        """
        self._closed = True
        for read in list(self._reads.values()):
            read.lose()

    def ended(self) -> None:
        """Release the places of bodies that the worker should have written but has not. Call this when its
        process has ended.
        """
        bodies, self._bodies = self._bodies, {}
        for body in bodies.values():
            body.end(None)

    def writer_of(self, start: int, length: int) -> BodyWriter | None:
        """Return a writer that lets the worker write a body from its fill memory. Return None if a copy by
        this process costs less.
        """
        return DelegatedBody(self, start, length) if length >= LEAST_DELEGATED_BYTES else None

    def delegate(self, body: "DelegatedBody", place: BodyPlace) -> bool:
        """Let the worker write ``body``. Return False if the worker is gone."""
        if self._closed:
            return False
        self._bodies[body.start] = body
        self.outbox.send_with_next(WriteBody(body.start, body.size_bytes, *place))
        return True

    def free(self, start: int) -> None:
        """Tell the worker that the coordinator no longer uses an extent. Any thread may call this, because
        the last view of the extent may end in any thread.
        """
        if self._closed:
            return
        if threading.get_ident() == self._thread:
            self.outbox.free(start)
        else:
            with suppress(RuntimeError):  # The loop is closed, and the worker has ended.
                self._loop.call_soon_threadsafe(self.free, start)

    def forget(self, ident: int) -> None:
        """Forget the read with the number ``ident``, which is over."""
        self._reads.pop(ident, None)
        self.orders.discard(ident)

    def replace(self, ident: int, read: WorkerRead) -> None:
        """Let ``read`` get the messages about ``ident``, see ``SharedPlainReads.replace``."""
        self._reads[ident] = read

    def _count_plain(self) -> None:
        """Count the plain reads that ended in this turn of the loop."""
        self._is_counting = False
        if self.filled:
            filled, self.filled = self.filled, []
            self.counts.note_whole(filled)
        if self.fetched:
            fetched, self.fetched = self.fetched, []
            self.plain.count(fetched)

    def _begin(self, message: BeginFill) -> None:
        whose = CLIENT.set(message.client)
        ref = ObjectRef(message.bucket, message.key, OWN)
        reader = READER.set(message.job or ref)
        slot = None
        try:
            allowed = False
            if not self._closed and self._keys.send_now() and self.engine.cacheable(ref):
                slot = self.slots.take_now(Intent.DEMAND)
                allowed = slot is not None and self._start(message, ref, slot)
        except Exception:  # noqa: BLE001 - nothing was sent: the relayed request meets the error again
            allowed = False
        finally:
            CLIENT.reset(whose)
            READER.reset(reader)
        if allowed:
            if message.job is not None:
                self._on_job(message.job)
            return
        # Give up a read that has begun. The worker will not fetch its page, so no reader may wait for it.
        if (begun := self._reads.get(message.ident)) is not None:
            begun.lose()  # The read also releases its slot.
        elif slot is not None:
            self.slots.give(slot)
        self.outbox.send(RefuseFill(message.ident))

    def _start(self, message: BeginFill, ref: ObjectRef, slot: str) -> bool:
        """Begin a read that holds ``slot``. Return False if the worker must relay the request."""
        ident, deadline = message.ident, Deadline(self._clock, self._bounds)
        if not message.ranged:
            hashed = object_hash(ref)
            if self.plain.long_groups and self.plain.is_probably_long(ref, hashed):
                # The coordinator reads all pages from one answer (ADR 83). The worker would give its answer
                # up as soon as it sees the size.
                return False
            plain = PlainRead(self, ident, slot, deadline)
            if plain.begin(ref, hashed, message.job):
                self._reads[ident] = plain
                self.outbox.allow(ident)
                return True
        wanted = RangeSpec(message.first, message.last) if message.ranged else None
        request = ReadRequest(ref, wanted, job=message.job)
        bounded = DEADLINE.set(deadline)
        read = WorkerRead(self, ident)
        read.slot = slot
        try:
            found = self.engine.find_now(request)
            if found is UNKNOWN and stop_asked(request, self.plain.page_size) is not None:
                found = None  # The coordinator reads several pages from one answer here too.
            begun = None if found is None else self.engine.begin(request, found, read)
        finally:
            DEADLINE.reset(bounded)
        if begun is None:
            return False
        self._reads[ident] = read
        read.allow(*begun)
        return True


class DelegatedBody:
    """A body at ``start`` of a worker's fill memory. Implements ``BodyWriter``."""

    __slots__ = ("_fills", "_written", "size_bytes", "start")

    def __init__(self, fills: WorkerFills, start: int, size_bytes: int) -> None:
        self.start = start
        self.size_bytes = size_bytes
        self._fills = fills
        self._written: Callable[[WrittenBody | None], None] | None = None

    def write_body(self, place: BodyPlace, written: Callable[[WrittenBody | None], None]) -> bool:
        """Let the worker write the body, see ``BodyWriter.write_body``. The caller holds a view of the body
        until ``written`` is called.
        """
        if not self._fills.delegate(self, place):
            return False
        self._written = written
        return True

    def end(self, message: BodyWritten | None) -> None:
        """Pass the worker's answer to the write that waits for it. ``message``: None if the worker has ended
        without an answer.
        """
        hashed = None if message is None else message.hashed
        # Drop the callback, because it refers to this object and to the body. Otherwise their memory would
        # wait for the garbage collector.
        written, self._written = self._written, None
        assert written is not None, "it is written once"
        written(None if hashed is None else WrittenBody(self.size_bytes, hashed))


class PrefetchWorkers:
    """The workers that may fetch pages for the prefetcher."""

    def __init__(self) -> None:
        self._workers: list[WorkerFills] = []

    def add(self, worker: WorkerFills) -> None:
        """Add a worker that is ready to fetch."""
        self._workers.append(worker)

    def remove(self, worker: WorkerFills) -> None:
        """Remove a worker, if it was added."""
        with suppress(ValueError):
            self._workers.remove(worker)

    def pick(self) -> CallbackOrigin | None:
        """Return the worker with the fewest prefetches that wait for memory; None if no worker may get one
        more.
        """
        free = [worker for worker in self._workers if worker.takes_orders]
        return min(free, key=lambda worker: len(worker.orders), default=None)
