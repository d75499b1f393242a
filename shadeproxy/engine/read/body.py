"""Reads the bytes of one span of an opened object, piece by piece."""

from typing import Protocol

from shadeproxy.core.deadline import Deadline
from shadeproxy.core.errors import BodyCutShort, OriginError, Overloaded, ShadeProxyError, TierError
from shadeproxy.core.ranges import pages_of, span_within
from shadeproxy.core.tracing import CLIENT, CONNECTION
from shadeproxy.core.types import ObjectMeta, Span
from shadeproxy.engine.read.flight import DetachedBuffers, Flight
from shadeproxy.engine.storage.disk_page import DiskPage, PageBody, StoredPart


class PagedReading(Protocol):
    """The part of a reading (reading.py) from which ``Body`` gets the pages of its span."""

    deadline: Deadline | None
    detached: DetachedBuffers
    joined: dict[int, Flight]

    @property
    def meta(self) -> ObjectMeta: ...

    def deadline_of(self, number: int) -> Deadline | None:
        """Return the deadline for the first byte of a page from the origin."""
        ...

    def count(self, meta: ObjectMeta, span: Span) -> None:
        """Count the demand read of ``span``, once."""
        ...

    async def page(self, number: int, stop: int) -> PageBody | Flight:
        """Return a page of the answer: its bytes if it is resident, otherwise the flight that fetches it."""
        ...

    async def late_page(self, number: int, error: ShadeProxyError) -> PageBody | None:
        """Return the bytes of a page from its tier, after its flight failed with ``error``. Such a page came
        by a flight only because its tier was slow. None: no tier has the page.
        """
        ...

    def done(self, number: int, *, served: bool = False) -> None:
        """Leave the flight of a page. ``served``: all wanted bytes of the page were taken."""
        ...


class Body:
    """Yields the pieces of one span. Implements ``Taker`` of taker.py. This is a class and not an async
    generator, because the event loop keeps track of each async generator, which costs time.
    """

    def __init__(self, reading: PagedReading, span: Span, page_size: int) -> None:
        self._reading = reading
        self._span = span
        self._page_size = page_size
        self._numbers = pages_of(span, page_size)
        self._number = self._numbers.start
        self._page: PageBody | Flight | None = None  # The current page; None before it is opened.
        self._position = self._stop = 0  # The wanted bytes of the current page that are still to come.
        self._started = False
        self._begun = False  # True if a piece of the current page has come.
        self._passed: int | None = None  # The page whose last piece the caller passes on.
        self._given_bytes = 0
        self._is_out = False  # True while the caller passes a piece on.
        self._connection, self.client = CONNECTION.get(), CLIENT.get()  # A weak reference.

    def __aiter__(self) -> "Body":
        return self

    async def __anext__(self) -> memoryview:
        if not self._started:
            self._started = True
            self._reading.count(self._reading.meta, self._span)
            if self._connection is not None:
                self._reading.detached.bodies.add(self)
        self._is_out = False
        self._leave_passed()
        if self._number >= self._numbers.stop:
            raise StopAsyncIteration
        piece: memoryview | None = None
        try:
            while piece is None:
                if self._page is None:
                    self._page = await self._open_page()
                piece = await self._next_piece(self._page)
        except BaseException:
            await self.aclose()
            raise
        if not piece:
            await self.aclose()
            raise BodyCutShort(f"a page of {self._reading.meta.etag} ended before the bytes that are wanted")
        self._begun = self._is_out = True
        self._position += len(piece)
        self._given_bytes += len(piece)
        if self._position == self._stop:
            page, self._page = self._page, None
            if isinstance(page, Flight):
                # Leave the flight later: while the caller passes this piece on, a connection keeps the memory
                # of the whole page.
                page.served, self._passed = True, self._number
            else:
                self._reading.done(self._number, served=True)
            self._number += 1
        return piece

    def _leave_passed(self) -> None:
        if self._passed is not None:
            passed, self._passed = self._passed, None
            self._reading.done(passed, served=True)

    @property
    def held_bytes(self) -> int:
        """Bytes of the ledger that the client keeps; 0 while this body waits for the origin."""
        return sum(flight.budget_bytes for flight in self._reading.joined.values()) if self._is_out else 0

    @property
    def bytes_taken(self) -> int:
        """Number of bytes that the client has taken; see ``Taker``."""
        connection = None if self._connection is None else self._connection()
        return self._given_bytes - (0 if connection is None else connection.unsent_bytes)

    def cut(self) -> None:
        """Reset the client's connection, which ends the task that reads; see ``Taker.cut``."""
        connection = None if self._connection is None else self._connection()
        if connection is not None:
            connection.cut()

    async def _next_piece(self, page: PageBody | Flight) -> memoryview | None:
        """Return the next bytes of ``page``, the current page. Return None if ``_page`` has changed."""
        if isinstance(page, memoryview):
            return page[self._position : self._stop]
        # The deadline concerns the first piece of a page. After that, a flight must keep a minimum rate.
        deadline = None if self._begun else self._reading.deadline_of(self._number)
        try:
            piece = await page.piece(self._position, self._stop, deadline)
        except (OriginError, Overloaded) as error:
            if (late := await self._late_page(page, error)) is None:
                raise
            self._page = late
            return None
        except TierError:
            self._page = None  # The bytes have left the page cache, so open the page again.
            return None
        if isinstance(page, DiskPage | StoredPart) or not self._reading.detached.many:
            return piece
        return memoryview(bytes(piece))

    async def _late_page(
        self, page: Flight | DiskPage | StoredPart, error: ShadeProxyError
    ) -> PageBody | None:
        # If bytes of a doubtful flight were passed on, they may be wrong. No other copy of the page can
        # repair that, so the answer must end with an error.
        if page.doubtful and self._begun:
            return None
        return await self._reading.late_page(self._number, error)

    async def aclose(self) -> None:
        """Leave the flight that was being read; idempotent."""
        self._leave_passed()
        if self._page is not None:
            self._page = None
            self._reading.done(self._number)
        self._number = self._numbers.stop

    async def _open_page(self) -> PageBody | Flight:
        """Open the page whose bytes are wanted next. If some of them have come, only the rest is wanted."""
        number, span = self._number, self._span
        if self._begun and self._reading.deadline is not None:
            # The answer has begun. The first byte of each further page has as much time as the first byte of
            # the answer had.
            self._reading.deadline = self._reading.deadline.renewed()
        self._begun = False
        if self._position == self._stop:
            self._position, self._stop = span_within(span, number, self._page_size, self._reading.meta.size)
        try:
            return await self._reading.page(number, self._numbers.stop)
        except BaseException:
            self._reading.done(number)
            raise
