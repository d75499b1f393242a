"""One answer of the origin that fills the flights of several pages, one after the other.

The first page of an unknown object is requested without a range (``FlightFiller.wanted``), so the answer goes
on if the object has more pages. The first page of a read of several pages is requested together with those
after it (``PageFiller.answer_stop``). If the flights of these pages take their bytes from the same answer,
the pages come as soon as without the proxy, no byte of the answer is thrown away, and the connection can be
used again (docs/adr/0083, 0084).

Laws: one flight reads at a time. The answer never waits for a flight: it is closed when a page is complete
and no flight waits for the next one. A flight waits only while its bytes come as soon as by a request of its
own. Of an object that is written meanwhile, no later page is stored: each flight claims its turn while the
flight of an earlier page is in the table of flights, so a write marks one of the two.
"""

import asyncio
import sys
from contextlib import AbstractAsyncContextManager
from math import inf
from types import TracebackType

from shadeproxy.core.clock import Clock
from shadeproxy.core.types import ObjectMeta, ObjectRef, Span
from shadeproxy.engine.read.flight import Flight
from shadeproxy.origin.base import OriginRead

# Number of looks at the answer's pace in one latency, and the shortest time between two looks.
_LOOKS, _SHORTEST_S = 4, 0.002

_END_WITHIN_S = 0.1
"""If the last page of the answer comes next, its flight waits for a turn that it can expect within this time:
most bytes of the page are on their way already, and would be sent twice. Over slower links these are few.
"""

_OPEN_WITHIN_S = 1.0
"""Flights of later pages wait so long for the head of an answer. Other clients may want these pages too."""

_CLAIMED_WITHIN_TURNS = 4
"""After a part of a page, the answer waits so many turns of the event loop for a claim on the next page. The
reader of the part needs two turns: it is woken, and then the task that it starts claims the page.
"""

_UNSHARED_READS, _FEW_PAGES = 32, 4
"""If an answer for several pages was closed before its end, bytes on their way were lost, about as many as a
page or two have. If it brought fewer pages than ``_FEW_PAGES``, one of the next reads in ``_UNSHARED_READS``
requests several pages of a known object together.
"""


class SharedAnswers:
    """All answers whose bytes flights may claim."""

    def __init__(self) -> None:
        self.by_page: dict[tuple[ObjectRef, int], SharedAnswer] = {}
        """The answers that can be claimed, by the page that comes next. Several of an object can be claimed,
        because clients read several ranges of a big object at a time.
        """
        self._unshared = 0  # So many reads more request each page by itself.

    def may_share(self) -> bool:
        """Return whether a read should request several pages of a known object together."""
        self._unshared = max(self._unshared - 1, 0)
        return not self._unshared

    def note_few(self) -> None:
        """Note that an answer for several pages brought few of them."""
        self._unshared = _UNSHARED_READS


class SharedAnswer:
    """The answer that ``opened`` opens. As a context manager, it lasts as long as one flight's turn."""

    def __init__(
        self,
        opened: AbstractAsyncContextManager[OriginRead],
        flight: Flight,
        answers: SharedAnswers,
        *,
        clock: Clock,
        page_size: int,
        announced: ObjectMeta | None = None,
        span: Span | None = None,
    ) -> None:
        """``flight``: gets the first turn. ``answers``: all answers that can be claimed. ``announced``: the
        requested version, if the flights of later pages may claim turns before the answer comes; then
        ``span`` has the requested bytes.
        """
        self.lead: bytes | bytearray = b""
        """The first bytes of the next page, if they were read with the page before."""
        self._flight = flight  # The flight whose turn it is.
        self._opened = opened
        self._answers = answers
        self._clock = clock
        self._page_size = page_size
        self._read: OriginRead | None = None
        self._latency_s = self._began_s = 0.0
        # If the answer is closed after an earlier page, it brought few of the requested ones.
        self._few_before = 0 if flight.answer_stop is None else flight.number + _FEW_PAGES - 1
        self._version: ObjectMeta | None = None  # The answer's version; None: it cannot be claimed.
        self._span = Span(0, 0)  # The span of the object in the answer.
        self._next = 0  # The next page to be claimed.
        self._is_open = False  # True if the answer has come, and brings what was claimed.
        self._waiting: list[tuple[Flight, asyncio.Future[bool]]] = []
        self._looking: asyncio.TimerHandle | None = None
        if announced is not None and span is not None:
            self._announce(announced, span)

    async def __aenter__(self) -> OriginRead:
        if self._read is None:
            try:
                if self._version is not None:
                    await asyncio.sleep(0)  # Let the flights of later pages claim their turns.
                started_s = self._clock.monotonic_s()
                self._read = await self._opened.__aenter__()
            except BaseException:
                self._refuse()
                raise
            self._began_s = self._clock.monotonic_s()
            self._latency_s = self._began_s - started_s
        return self._read

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._is_open:
            await self._wait_for_claims()
            if self._waiting:
                following, turn = self._waiting.pop(0)
                if not turn.done():
                    self._flight = following
                    turn.set_result(True)
                    return
        if error is None and self._is_open and self._flight.number < min(self._few_before, self._last):
            self._answers.note_few()
        await self._close(kind, error, trace)

    async def _wait_for_claims(self) -> None:
        """Let the readers of a part of a page start the flight of the next page. All of a short part can come
        with the head of the answer.
        """
        for _ in range(_CLAIMED_WITHIN_TURNS if self._flight.start else 0):
            if self._waiting or self._flight.number >= self._last:
                return
            await asyncio.sleep(0)

    @property
    def _last(self) -> int:
        """The last page of which the answer has bytes."""
        return (self._span.stop - 1) // self._page_size

    def _announce(self, wanted: ObjectMeta, span: Span) -> None:
        """Let the flights of later pages claim turns. The answer has ``span`` of the version ``wanted``."""
        self._version, self._span = wanted, span
        self._next = self._flight.number + 1
        self._answers.by_page[self._flight.ref, self._next] = self

    def share(self, asked_s: float | None) -> None:
        """Let the flights of later pages claim turns. ``asked_s``: monotonic time when callbacks asked the
        origin; None: this object asked it.
        """
        read, known = self._read, self._version
        assert read is not None, "opened before it is shared"
        if asked_s is not None:
            self._latency_s = self._began_s - asked_s
        if known is None:
            self._announce(read.meta, read.span)
        elif (known.etag, known.size) != (read.meta.etag, read.meta.size) or read.span != self._span:
            self._refuse()
            return
        self._is_open = True
        if self._looking is not None:
            self._looking.cancel()
            self._look_later()

    async def turn(self, flight: Flight, wanted: ObjectMeta) -> bool:
        """Claim the next turn for ``flight``, and wait for it. ``wanted``: the version that the flight wants.
        Return False if the flight must ask the origin itself.
        """
        before, known = self._flight, self._version
        start, part = flight.number * self._page_size, flight.part
        stop = min(start + (self._page_size if part is None else part.stop), wanted.size)
        if (
            flight.start
            or stop > self._span.stop
            or known is None
            # With another size, the answer would end too early or too late for the page.
            or (wanted.etag, wanted.size) != (known.etag, known.size)
            or flight.upstream != before.upstream
            or not (before.publishable and flight.publishable)
            or not flight.budget_bytes  # A flight whose turn it is must not wait for memory.
        ):
            return False
        flight.began = before.began
        self._withdraw()
        self._next += 1
        # After a part, the answer goes on in the middle of a page, so no flight may claim the rest.
        if part is None:
            self._answers.by_page[flight.ref, self._next] = self
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((flight, turn))
        if self._looking is None:
            self._look_later()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                await self._close(*sys.exc_info())  # The turn came in the same step of the loop.
            raise

    def _look_later(self) -> None:
        later_s = max(self._latency_s / _LOOKS, _SHORTEST_S) if self._is_open else _OPEN_WITHIN_S
        self._looking = asyncio.get_running_loop().call_later(later_s, self._look)

    def _look(self) -> None:
        """Let the flights that wait ask the origin themselves if the next turn would come too late."""
        self._looking = None
        if not self._waiting:
            return
        now, following = self._flight, self._waiting[0][0]
        came = now.number * self._page_size + now.start + now.filled
        elapsed_s = self._clock.monotonic_s() - self._began_s
        pace = (came - self._span.start) / elapsed_s if elapsed_s > 0 else inf
        # After one latency, a request of its own would bring the next flight its first bytes.
        within_s = max(self._latency_s, _END_WITHIN_S) if following.number == self._last else self._latency_s
        if not self._is_open or following.number * self._page_size > came + pace * within_s:
            self._refuse()
        else:
            self._look_later()

    def _refuse(self) -> None:
        self._withdraw()
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        refused, self._waiting = self._waiting, []
        for _, turn in refused:
            if not turn.done():
                turn.set_result(False)

    def _withdraw(self) -> None:
        """Let no flight claim the next page, unless another answer has taken this one's place."""
        by_page, key = self._answers.by_page, (self._flight.ref, self._next)
        if by_page.get(key) is self:
            del by_page[key]

    async def _close(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._refuse()
        await self._opened.__aexit__(kind, error, trace)
