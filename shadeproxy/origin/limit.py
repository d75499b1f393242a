"""``LimitedOrigin``: limits on the bodies and forwarded requests that are open at once.

DEMAND goes before everything else. PREFETCH only gets a slot while enough are free, and never waits, so no
reader waits behind it. Forwarded requests, and reads at their client's pace (AT_CLIENTS_PACE), last as long
as the client likes: one client never has all of their slots. Fills last no longer than the origin takes, and
a single client may have all of those. Heads and listings are short and are not counted.
"""

from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Unpack

from shadeproxy.core.errors import Overloaded
from shadeproxy.core.types import Intent, ObjectRef
from shadeproxy.origin.base import (
    ForwardRequest,
    ForwardResponse,
    OpenOptions,
    Origin,
    OriginRead,
    PassOn,
)
from shadeproxy.origin.slots import Slots
from shadeproxy.origin.wrapping import WrappedOrigin

AT_CLIENTS_PACE: ContextVar[bool] = ContextVar("at_clients_pace", default=False)
"""True if the body goes to a client as it comes, and so stays open as long as that client likes."""

_SPARED = 8  # one slot in this many is never used for prefetching
_KEPT = 4  # one slot in this many is kept from any one client that forwards, or sets the pace


def prefetch_slots(max_open: int) -> int:
    """Return how many of ``max_open`` slots PREFETCH may use."""
    return max_open - max_open // _SPARED


class LimitedOrigin(WrappedOrigin):
    """``inner`` with at most ``max_open`` open bodies. Single event loop; not thread-safe.

    A wait for a slot longer than ``max_wait_s`` raises Overloaded (slots.py).
    """

    def __init__(self, inner: Origin, *, max_open: int, max_wait_s: float = 10.0) -> None:
        super().__init__(inner)
        self._max_open = max_open
        self._reads = Slots(max_open, max_wait_s=max_wait_s, what="reads of the origin")
        most = max_open - max_open // _KEPT
        self.paced = Slots(max_open, max_wait_s=max_wait_s, what="reads past the cache", most_of_client=most)
        self._forwards = Slots(
            max_open,
            max_wait_s=max_wait_s,
            what="uploads and other forwarded requests",
            most_of_client=most,
        )

    @property
    def open_now(self) -> int:
        """Number of bodies open now."""
        return self._reads.taken

    @property
    def forwarded_now(self) -> int:
        """Number of forwarded requests under way."""
        return self._forwards.taken

    @property
    def prefetch_slots(self) -> int:
        """Number of open bodies from which on PREFETCH gets no slot."""
        return prefetch_slots(self._max_open)

    @property
    def waiting(self) -> int:
        """Number of reads that wait for a slot now."""
        return self._reads.waiting + self.paced.waiting

    def open(self, ref: ObjectRef, **options: Unpack[OpenOptions]) -> AbstractAsyncContextManager[OriginRead]:
        read = _LimitedRead(self, ref, options)
        return self._paced_read(read) if AT_CLIENTS_PACE.get() else read

    def forward(self, request: ForwardRequest) -> AbstractAsyncContextManager[ForwardResponse]:
        return self._limited_forward(request)

    def take(self, intent: Intent) -> Awaitable[str]:
        """Acquire a read slot; return the client it counts for. Raises Overloaded; for PREFETCH at once."""
        if intent is Intent.PREFETCH and self._reads.taken >= self.prefetch_slots:
            raise Overloaded("no read of the origin is to spare for prefetching")
        return self._reads.take(urgent=intent is Intent.DEMAND)

    def take_now(self, intent: Intent) -> str | None:
        """Acquire a slot as ``take`` does; None where that would have to wait, or refuses."""
        if intent is Intent.PREFETCH and self._reads.taken >= self.prefetch_slots:
            return None
        return self._reads.take_now()

    def open_inner(self, ref: ObjectRef, options: OpenOptions) -> AbstractAsyncContextManager[OriginRead]:
        """Open a read of ``inner``, whatever the limit."""
        return self._inner.open(ref, **options)

    def give(self, client: str) -> None:
        """Release the slot of a read of ``client``."""
        self._reads.give(client)

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
        client = await self._forwards.take()
        try:
            async with self._inner.forward(request) as answer:
                yield answer
        finally:
            self._forwards.give(client)


class _LimitedRead:
    """A read that holds a slot while it is open."""

    def __init__(self, limited: LimitedOrigin, ref: ObjectRef, options: OpenOptions) -> None:
        self._limited = limited
        self._inner = limited.open_inner(ref, options)
        self._intent = options.get("intent", Intent.DEMAND)
        self._handed = options.get("handed")
        self._client = ""
        self._paced: str | None = None

    async def __aenter__(self) -> OriginRead:
        slot = None if self._handed is None else self._handed.take_slot()
        self._client = await self._limited.take(self._intent) if slot is None else slot
        try:
            read = await self._inner.__aenter__()
        except BaseException:
            self._limited.give(self._client)
            raise
        if read.pass_on is not None:
            read.pass_on = PassOn(self._admit)
        return read

    def _admit(self) -> bool:
        """Charge this read as one past the cache, too; see ``PassOn.admit``."""
        self._paced = self._limited.paced.take_now()
        return self._paced is not None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return await self._inner.__aexit__(kind, error, trace)
        finally:
            self._limited.give(self._client)
            if self._paced is not None:
                self._limited.paced.give(self._paced)
