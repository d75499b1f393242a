"""Fills flights from the origin by tasks.

Law: a fill by a task takes the same steps as one by callbacks (callback_fill.py), with the same objects
(fill_steps.py).
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from shadeproxy.core.deadline import DEADLINE
from shadeproxy.core.errors import BodyCutShort, ObjectChanged, OriginAnswer, Overloaded, Unidentified
from shadeproxy.core.types import Intent, ObjectMeta, ObjectRef, Span
from shadeproxy.engine.freshness.verdicts import AuthEpoch
from shadeproxy.engine.read.fill_steps import FillSteps
from shadeproxy.engine.read.flight import Flight
from shadeproxy.engine.read.shared_answer import SharedAnswer
from shadeproxy.origin.base import HandedOver, OpenOptions, OriginRead, Wanted

Place = Callable[[Flight, ObjectMeta, Span], None]
"""Gives a flight the page in which ``span`` of an object begins."""


class FlightFiller(FillSteps):
    """Fills flights from the origin, and stores their pages."""

    async def fill(
        self,
        known: ObjectMeta | None,
        flight: Flight,
        handed: HandedOver | None = None,
        epoch: AuthEpoch | None = None,
        place: Place | None = None,
    ) -> None:
        """Fill a flight, or continue a fill that callbacks began. ``handed``: the state in which the
        callbacks handed the fill over. ``epoch``: the auth epoch from before the callbacks asked the origin.
        ``place``: gives a flight of the last bytes of an object its page.
        """
        # The first reader's deadline does not bind the fill, because other readers may need the page.
        DEADLINE.set(None)
        try:
            if flight.meta is None:
                await self._bring(flight, known, handed, epoch, place)
            else:
                await self._bring_rest(flight, flight.meta, handed)
        except (ObjectChanged, OriginAnswer) as error:
            over = not isinstance(error, OriginAnswer) or error.status == 404
            if over and flight.publishable and self._is_believed(flight.ref, known):
                # The known version is old, or gone. Forget it, so that the next read does not ask the origin
                # for it. Pages may be cached even if nothing is known of the object.
                self._outdated(flight.ref)
            raise
        finally:
            if flight.meta is None:
                # Nothing was filled. Return the memory now: a reader may leave much later.
                self._retire(flight)

    def _is_believed(self, ref: ObjectRef, known: ObjectMeta | None) -> bool:
        """Return whether a read that begins now would ask for the version ``known``. If not, only the reader
        that started this flight has an old version.
        """
        now = self._versions.known_now(ref)
        return now is None or known is None or now.etag == known.etag

    async def _bring(
        self,
        flight: Flight,
        known: ObjectMeta | None,
        handed: HandedOver | None,
        epoch: AuthEpoch | None,
        place: Place | None,
    ) -> None:
        if handed is None:
            epoch = self.begin(flight)
            if known is not None and await self._bring_shared(flight, known):
                return
        if known is not None and not self.take_early(flight, self.within(flight, known.size).length):
            raise Overloaded("prefetch budget exhausted")
        wanted = self.wanted(flight, known)
        whole = wanted.span is None
        answer = SharedAnswer(
            self._open(flight, wanted, handed),
            flight,
            self.answers,
            clock=self._clock,
            page_size=self.page_size,
            announced=known if flight.answer_stop is not None else None,
            span=wanted.span,
        )
        async with answer as read:
            if place is not None:
                place(flight, read.meta, read.span)
            if read.pass_on is not None:
                self._versions.allow(flight.upstream, flight.ref, epoch)
                await self._pass_on(flight, read, known)
                return
            meta = self.accept(flight, read.meta, epoch, whole=whole)
            length = self.length_of(flight, meta)
            await self._take(flight, length)
            flight.open(meta, length, doubtful=read.doubtful and length == read.span.length)
            if length < read.span.length and flight.intent is Intent.DEMAND:
                answer.share(None if handed is None else handed.started_s)
            if length:
                await read.read_into(flight.buffer, flight.advance)
            if whole:
                if length < meta.size:
                    # So far the length is only a claim of the origin. A byte after the page confirms it.
                    await read.read_into(memoryview(lead := bytearray(1)), lambda _count: None)
                    answer.lead = lead
                self._prove(flight)
        await self._store(flight)

    async def _bring_shared(self, flight: Flight, meta: ObjectMeta) -> bool:
        """Fill a flight from the answer that fills an earlier page. Return False, with nothing done, if there
        is no such answer.
        """
        answer = self.answers.by_page.get((flight.ref, flight.number))
        if answer is None or not await answer.turn(flight, meta):
            return False
        async with answer as read:
            if self._versions.holds_other(flight.ref, meta):
                flight.publishable = False  # It was learnt after the origin gave this answer.
            flight.open(meta, self.length_of(flight, meta))
            if lead := answer.lead:
                answer.lead = b""
                flight.buffer[: len(lead)] = lead
                flight.advance(len(lead))
            if not flight.ended:
                await read.read_into(flight.buffer[flight.filled :], flight.advance)
        await self._store(flight)
        return True

    async def _bring_rest(self, flight: Flight, meta: ObjectMeta, handed: HandedOver | None) -> None:
        """Fill the rest of a flight that callbacks began."""
        whole = self.wanted(flight, meta).span is None
        span = self.within(flight, meta.size)
        rest: Span | None = Span(span.start + flight.filled, span.stop)
        if flight.doubtful and not flight.filled and (handed is None or handed.check is None):
            rest = None  # Only an answer with the whole body has the checksum.
        async with self._open(flight, Wanted(flight.ref, rest, meta.etag, flight.upstream), handed) as read:
            if read.pass_on is not None:
                raise BodyCutShort(f"the rest of {flight.ref} came without its version")
            await read.read_into(flight.buffer[flight.filled :], flight.advance)
        if whole:
            self._prove(flight)
        await self._store(flight)

    def _open(
        self, flight: Flight, wanted: Wanted, handed: HandedOver | None
    ) -> AbstractAsyncContextManager[OriginRead]:
        options = OpenOptions(
            span=wanted.span, if_match=wanted.if_match, upstream=wanted.upstream, intent=flight.intent
        )
        if handed is not None:
            options["handed"] = handed
        return self._origin.open(wanted.ref, **options)

    async def _pass_on(self, flight: Flight, read: OriginRead, known: ObjectMeta | None) -> None:
        """Pass on an answer that cannot be stored.

        A short answer goes to all readers of the flight. A longer one goes to one reader, and only if nothing
        was known of the object.
        """
        size = read.meta.size
        self._versions.unidentified(flight.ref)
        flight.publishable = False
        if flight.intent is not Intent.DEMAND:
            raise Unidentified(flight.ref)
        if size > self.page_size or read.span != Span(0, size):
            if known is not None:
                raise Unidentified(flight.ref)  # The readers began with the known version.
            # From here on, the read goes at the pace of a client, and needs no memory.
            self._retire(flight)
            await flight.hand_over(read)
            return
        await self._take(flight, size)
        flight.open(read.meta, size, doubtful=read.doubtful)
        if size:
            await read.read_into(flight.buffer, flight.advance)

    def _prove(self, flight: Flight) -> None:
        """Record a version of which all bytes have come, because this proves the object's length."""
        assert flight.meta is not None, "opened before its bytes came"
        # If another version was learnt during this flight, that one is newer.
        if flight.publishable:
            flight.publishable = self._versions.prove(flight.ref, flight.meta, flight.began)

    async def _store(self, flight: Flight) -> None:
        """Store the page of a flight that a task has filled."""
        checked_s, ownership = self._clock.now_s(), self._versions.ownership
        if ownership is not None:
            checked_s = self._validated_s(ownership, flight, checked_s)
        if not self._keeps(flight):
            return
        assert flight.meta is not None, "complete"
        self._before_deciding()
        page, body = flight.page, flight.buffer
        stored = await self._cache.insert(page, flight.meta, body, checked_s, flight.may_publish)
        if stored:
            self._replace_parts(flight)
        self._note_stored(flight, stored=stored)

    async def _take(self, flight: Flight, length: int) -> None:
        """Take memory as ``take_now`` does, but wait until there is enough. Raises as ``Ledger.take``."""
        if not self.take_now(flight, length):
            await self._ledger.take(length - flight.budget_bytes, flight.intent)
            flight.budget_bytes = length
