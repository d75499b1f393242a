"""``LimitedOrigin``: limits how many bodies and forwarded requests are open at once.

DEMAND goes before everything else. PREFETCH gets a slot only while enough slots are free, and never waits, so
that no reader waits behind it. Forwarded requests, and reads at their client's pace (AT_CLIENTS_PACE), stay
open as long as their client likes. So one client can never take all slots for these. A fill takes no longer
than the origin needs, so one client may have all slots of fills. Reads at their client's pace hold a slot of
fills too, and leave one in eight to others. Heads and listings are short, and not limited.

``Slots`` keeps the number of slots taken, and a queue of waiting futures (core/fair_queue.py). ``give``
passes a slot straight to the next waiter, so that a newer request cannot take it first. A waiter that is
cancelled, or waited too long, leaves the queue. If it was granted a slot in the same turn of the event loop,
it passes the slot on.

While jobs share the link (``SharedSlots``), reads wait for the turn of their flow instead (link.py). A
PREFETCH then waits too, in the flow of its job, and still leaves slots free.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import Protocol, Unpack

from shadeproxy.core.errors import Overloaded
from shadeproxy.core.fair_queue import FairQueue, granted
from shadeproxy.core.tracing import CLIENT, note_slot
from shadeproxy.core.types import Intent, ObjectRef
from shadeproxy.origin.base import (
    ForwardRequest,
    ForwardResponse,
    HandedOver,
    OpenOptions,
    Origin,
    OriginRead,
    PassOn,
)
from shadeproxy.origin.link import ChargedBody, LinkQueue, LinkSlot
from shadeproxy.origin.wrapping import WrappedOrigin

_Queue = FairQueue[tuple[str, asyncio.Future[None]]]
_SPARED = 8  # One slot in this many is never used for prefetching, nor for reads at their client's pace.
_PREFETCHES = "\0prefetches"
"""The client to which prefetches are charged while jobs share the link. No other client has this name."""


def prefetch_slots(max_open: int) -> int:
    """Return how many of ``max_open`` slots PREFETCH may use; reads at their client's pace have as many."""
    return max_open - max_open // _SPARED


class Slots:
    """A limit of ``count`` slots. ``kept``: with 4, for example, one client can have at most three slots in
    four; with 0, one client can have all slots.

    A wait longer than ``max_wait_s`` raises Overloaded, which clients get as 503 SlowDown. ``what`` names the
    slots in the text of this error. Single event loop; not thread-safe.
    """

    def __init__(self, count: int, *, max_wait_s: float, what: str, kept: int = 0) -> None:
        self.count = count
        self.prefetched = self._most = 0
        """``prefetched``: PREFETCH gets no slot while this many slots or more are taken. ``_most``: the most
        slots that one client can have.
        """
        self.taken = 0
        self._max_wait_s = max_wait_s
        self._what = what
        self._kept = kept
        self._held: dict[str, int] = {}
        self._queue: _Queue = FairQueue()
        self.resize(count)

    def resize(self, count: int) -> None:
        """Change the number of slots. If it becomes lower than the number taken, no slot is taken away."""
        self.count, self.prefetched = count, prefetch_slots(count)
        self._most = max(1, count - count // self._kept if self._kept else count)
        while self.taken < self.count and self._pass_on():
            pass

    @property
    def waiting(self) -> int:
        """Number of requests that now wait for a slot."""
        return self._queue.count

    async def take(self) -> str:
        """Acquire a slot, when it is this client's turn. Return the client to which it is charged. Raises
        Overloaded.
        """
        client = CLIENT.get()
        if self.taken < self.count and self._may(client):
            self._count(client)
            return client
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (client, future)
        self._queue.add(client, entry)
        give, withdraw = partial(self.give, client), partial(self._queue.remove, client, entry)
        if not await granted(future, self._max_wait_s, give=give, withdraw=withdraw):
            raise self._refused()
        return client

    def take_now(self, intent: Intent = Intent.DEMAND) -> str | None:
        """Acquire a slot without waiting, and return the client to which it is charged; None if no slot may
        be taken. PREFETCH leaves some slots free.
        """
        # These lines repeat ``_may`` and ``_count``, because each miss comes here, and calls would cost more.
        client, held = CLIENT.get(), self._held
        most = self.prefetched if intent is Intent.PREFETCH else self.count
        if self.taken >= most or held.get(client, 0) >= self._most:
            return None
        self.taken += 1
        held[client] = held.get(client, 0) + 1
        return client

    def give(self, *clients: str) -> None:
        """Release one slot of each client in ``clients``, and pass it to the next waiter."""
        for client in clients:
            self.taken -= 1
            held = self._held.pop(client) - 1
            if held:
                self._held[client] = held
            if self._queue.count and self.taken < self.count:
                self._pass_on()

    def _pass_on(self) -> bool:
        """Give a free slot to the next waiter that may have it. Return True if there was such a waiter."""
        entry = self._queue.take(self._may)
        if entry is None:
            return False
        next_client, future = entry
        self._count(next_client)
        future.set_result(None)
        return True

    def _may(self, client: str) -> bool:
        return self._held.get(client, 0) < self._most

    def _count(self, client: str) -> None:
        self.taken += 1
        self._held[client] = self._held.get(client, 0) + 1

    def _refused(self) -> Overloaded:
        return Overloaded(
            f"all {self.count} {self._what} were taken for {self._max_wait_s:g} s, or all that one client"
            " may have; retry later, or raise origin.max_connections"
        )


class SharedSlots(Slots):
    """Slots for reads. Where jobs share the link, a reader waits for a free slot and for its job's turn on
    the link.
    """

    def __init__(self, count: int, *, max_wait_s: float, what: str) -> None:
        self.link: LinkQueue | None = None
        super().__init__(count, max_wait_s=max_wait_s, what=what)

    def resize(self, count: int) -> None:
        """See ``Slots.resize``."""
        super().resize(count)
        if self.link is not None:
            self.let_through()

    async def take_shared(self, link: LinkQueue, intent: Intent) -> str:
        """Acquire a slot, when it is the turn of the read's flow. Raises Overloaded."""
        slot = self.take_shared_now(intent)
        if slot is not None:
            return slot
        future = asyncio.get_running_loop().create_future()
        queued = link.wait(_client(intent), future, is_prefetch=intent is Intent.PREFETCH)
        self.let_through()  # Only prefetches may wait before it, for which too few slots are free.

        def give() -> None:
            self.give_shared(future.result())

        if not await granted(future, self._max_wait_s, give=give, withdraw=partial(link.withdraw, *queued)):
            raise self._refused()
        passed: str = future.result()
        return passed

    def take_shared_now(self, intent: Intent = Intent.DEMAND) -> str | None:
        """Acquire a slot without waiting, as ``take_now``, but only if it is the turn of the read's flow."""
        client = _client(intent)
        if self.link is None or self.taken >= self.count or not self._may(client):
            return None
        slot = self.link.pass_now(client, before_prefetches=self.taken >= self.prefetched)
        if slot is not None:
            self._count(client)
        return slot

    def give_shared(self, *clients: str) -> None:
        """Release slots, as ``give``, and let further reads through, flow by flow."""
        assert self.link is not None, "shared before"
        for client in clients:
            self.link.end(client)
        self.give(*clients)
        self.let_through()

    def let_through(self) -> None:
        """Let further reads through, flow by flow, as far as slots and link have room."""
        assert self.link is not None, "shared before"
        while self.taken < self.count and (passed := self.link.next(self._may)) is not None:
            future, slot = passed
            self._count(str(slot))
            future.set_result(slot)

    def _may(self, client: str) -> bool:
        return super()._may(client) and (client != _PREFETCHES or self.taken < self.prefetched)


def _client(intent: Intent) -> str:
    return _PREFETCHES if intent is Intent.PREFETCH else CLIENT.get()


AT_CLIENTS_PACE: ContextVar[bool] = ContextVar("at_clients_pace", default=False)
"""True if a body is read only as fast as its client takes it. Such a read may stay open for long."""


class ForwardSlots(Protocol):
    """Limits the forwarded requests that are open at once. Each of them holds one slot."""

    taken: int

    async def take(self) -> str:
        """Acquire a slot, when it is this client's turn. Return the name by which ``give`` releases the slot.
        Raises Overloaded.
        """
        ...

    def give(self, slot: str, /) -> None:
        """Release the slot that ``take`` has returned."""
        ...


# For forwarded requests and reads at the client's pace: one client can have at most three slots in four.
_KEPT = 4


class LimitedOrigin(WrappedOrigin):
    """Limits the open bodies of ``inner`` to ``max_open``. Single event loop; not thread-safe.

    A wait for a slot longer than ``max_wait_s`` raises Overloaded. ``forwards``: the slots for forwarded
    requests, if another process counts them; None: this object has ``max_open`` of them.
    """

    def __init__(
        self,
        inner: Origin,
        *,
        max_open: int,
        max_wait_s: float = 10.0,
        forwards: ForwardSlots | None = None,
    ) -> None:
        super().__init__(inner)
        self._reads = SharedSlots(max_open, max_wait_s=max_wait_s, what="reads of the origin")
        self.take_now, self.give = self._reads.take_now, self._reads.give
        """Take and give read slots; see ``Slots``. When jobs begin to share the link, ``share`` replaces
        these methods by those of ``SharedSlots``.
        """
        paced = prefetch_slots(max_open)
        self.paced = Slots(paced, max_wait_s=max_wait_s, what="reads past the cache", kept=_KEPT)
        self.forwards: ForwardSlots = forwards or Slots(
            max_open, max_wait_s=max_wait_s, what="uploads and other forwarded requests", kept=_KEPT
        )

    def resize(self, max_open: int) -> None:
        """Change the limit. If it becomes lower than the number of open bodies and requests, they all stay
        open.
        """
        self._reads.resize(max_open)
        self.paced.resize(prefetch_slots(max_open))
        if isinstance(self.forwards, Slots):
            self.forwards.resize(max_open)

    @property
    def prefetched(self) -> int:
        """PREFETCH gets no slot while this many bodies or more are open."""
        return self._reads.prefetched

    @property
    def open_now(self) -> int:
        """Number of bodies that are open now."""
        return self._reads.taken

    @property
    def forwarded_now(self) -> int:
        """Number of forwarded requests under way."""
        return self.forwards.taken

    @property
    def waiting(self) -> int:
        """Number of reads that now wait for a slot."""
        link = self._reads.link
        return self._reads.waiting + self.paced.waiting + (0 if link is None else link.waiting)

    @property
    def is_shared(self) -> bool:
        """True if jobs share the link, so that reads wait here for the turn of their job."""
        return self._reads.link is not None and self._reads.link.is_used

    def may_wait(self, job: str) -> bool:
        """Return True if one more prefetch for ``job`` may wait for the link."""
        return self._reads.link is None or self._reads.link.may_wait(job)

    def share(self, link: LinkQueue, weights: Mapping[str, float] | None) -> None:
        """Share the link by the weights of jobs; None: share it no longer. Call it again if the weights
        change.

        Each call must pass the same ``link``.
        """
        reads = self._reads
        reads.link = link
        link.stop() if weights is None else link.share(weights)
        self.take_now = reads.take_now if weights is None else reads.take_shared_now
        # Slots that were taken while the link was shared may be given back later.
        self.give = reads.give_shared
        reads.let_through()

    def open(self, ref: ObjectRef, **options: Unpack[OpenOptions]) -> AbstractAsyncContextManager[OriginRead]:
        read = _LimitedRead(self, self._inner.open(ref, **options), options)
        return self._paced_read(read) if AT_CLIENTS_PACE.get() else read

    def forward(self, request: ForwardRequest) -> AbstractAsyncContextManager[ForwardResponse]:
        return self._limited_forward(request)

    def take(self, intent: Intent) -> Awaitable[str]:
        """Acquire a read slot, and return the client to which it is charged. Raises Overloaded; for PREFETCH
        at once if no slot is to spare.
        """
        link = self._reads.link
        if link is not None and link.is_used:
            return self._reads.take_shared(link, intent)
        if intent is Intent.PREFETCH and self._reads.taken >= self._reads.prefetched:
            raise Overloaded("no read of the origin is to spare for prefetching")
        return self._reads.take()

    @asynccontextmanager
    async def _paced_read(self, limited: "_LimitedRead") -> AsyncIterator[OriginRead]:
        client = await self.paced.take()
        try:
            async with limited as read:
                yield read
        finally:
            self.paced.give(client)

    @asynccontextmanager
    async def _limited_forward(self, request: ForwardRequest) -> AsyncIterator[ForwardResponse]:
        slot = await note_slot(self.forwards.take())
        try:
            async with self._inner.forward(request) as answer:
                yield answer
        finally:
            self.forwards.give(slot)


class _LimitedRead:
    """A read that holds a slot as long as it is open."""

    def __init__(
        self, limited: LimitedOrigin, inner: AbstractAsyncContextManager[OriginRead], options: OpenOptions
    ) -> None:
        self._limited = limited
        self._inner = inner
        self._intent = options.get("intent", Intent.DEMAND)
        self._handed = options.get("handed") or HandedOver(started_s=0.0)
        self._client = ""
        self._paced: str | None = None

    async def __aenter__(self) -> OriginRead:
        slot = self._handed.take_slot()
        self._client = await self._limited.take(self._intent) if slot is None else slot
        try:
            read = await self._inner.__aenter__()
        except BaseException:
            self._handed.end(self._client, self._limited.give)
            raise
        if isinstance(self._client, LinkSlot):
            self._client.charge(read.span.length, passes=read.pass_on is not None)
            ChargedBody(self._client, read)
        if read.pass_on is not None:
            read.pass_on = PassOn(self._admit)
        return read

    def _admit(self) -> bool:
        """Charge this read also as a read past the cache; see ``PassOn.admit``."""
        self._paced = self._limited.paced.take_now()
        return self._paced is not None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return await self._inner.__aexit__(kind, error, trace)
        finally:
            self._handed.end(self._client, self._limited.give)
            if self._paced is not None:
                self._limited.paced.give(self._paced)
