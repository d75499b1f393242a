"""``Engine``: the one read path (law 1 of the design), and the writes that invalidate it.

Every reader, whatever its intent, comes through ``open``. Order of questions: may this client see the
object; is what we know of it usable by its freshness rule; is the page resident; is it already on its
way; else read it from the origin.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import numpy as np

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import (
    BodyCutShort,
    ObjectChanged,
    OriginAnswer,
    ShuttingDown,
)
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.ranges import page_span
from shadeproxy.core.types import (
    Intent,
    JobContext,
    ListEntry,
    ListPage,
    ObjectMeta,
    ObjectRef,
    Page,
    Source,
    Span,
    Upstream,
)
from shadeproxy.engine.base import ReadRequest
from shadeproxy.engine.cache import PageCache
from shadeproxy.engine.flight import Flight, SingleFlight
from shadeproxy.engine.metadata import Known, MetadataCache
from shadeproxy.engine.reading import EngineReading, span_needed
from shadeproxy.engine.revalidation import Revalidator
from shadeproxy.engine.rules import Age, Rules
from shadeproxy.engine.verdicts import Verdicts
from shadeproxy.origin.base import ForwardRequest, ForwardResponse, Origin
from shadeproxy.telemetry.stats import Stats


class Engine:
    """Implements engine/base.py ``ReadPath`` over an origin and a page cache."""

    def __init__(
        self,
        origin: Origin,
        cache: PageCache,
        *,
        rules: Rules,
        ledger: Ledger,
        stats: Stats,
        clock: Clock,
        page_size: int,
        verdicts: Verdicts | None = None,
        job_of: Callable[[ObjectRef], str | None] = lambda _ref: None,
    ) -> None:
        """``verdicts``: given when clients have origin credentials of their own, else None.

        ``job_of``: the job whose data set an object is in, for reads that name none.
        """
        self.cache = cache
        self.page_size = page_size
        self._origin = origin
        self._rules = rules
        self._ledger = ledger
        self._stats = stats
        self._clock = clock
        self._verdicts = verdicts
        self._job_of = job_of
        self._metadata = MetadataCache()
        self._flights = SingleFlight(self._retire)
        self._revalidator = Revalidator(origin, settle=self._settle, confirm=self._confirm)
        self._writing: Counter[ObjectRef] = Counter()
        self._readings = 0
        self._closing = False

    # ------------------------------------------------------------------ what listeners call

    @asynccontextmanager
    async def open(self, request: ReadRequest) -> AsyncIterator[EngineReading]:
        """See ``ReadPath.open``."""
        self._refuse_when_closing()
        reading = EngineReading(
            request, cache=self.cache, fills=self, count=self._count, page_size=self.page_size
        )
        self._readings += 1
        try:
            await self._prepare(reading)
            yield reading
        finally:
            self._readings -= 1
            reading.close()

    async def stat(self, request: ReadRequest) -> tuple[ObjectMeta, Source]:
        """See ``ReadPath.stat``."""
        self._refuse_when_closing()
        await self._authorise(request)
        meta = await self._usable(request)
        if meta is None:
            return await self._check(request.ref, request.upstream), Source.ORIGIN
        slot = self.cache.find(Page(request.ref, meta.etag, 0))
        return meta, Source.RAM if slot is None else self.cache.source(slot)

    def forward(self, request: ForwardRequest) -> AbstractAsyncContextManager[ForwardResponse]:
        """See ``ReadPath.forward``."""
        self._refuse_when_closing()
        return self._origin.forward(request)

    @asynccontextmanager
    async def writing(self, refs: Iterable[ObjectRef]) -> AsyncIterator[None]:
        """See ``ReadPath.writing``."""
        touched = list(refs)
        for ref in touched:
            self._writing[ref] += 1
            self._invalidate(ref)
        try:
            # Erased before the origin changes: a crash must not bring back what was overwritten.
            await self.cache.erased()
            yield
        finally:
            for ref in touched:
                self._invalidate(ref)
                self._writing[ref] -= 1
                if not self._writing[ref]:
                    del self._writing[ref]

    async def list_objects(self, bucket: str, prefix: str, *, start_after: str = "") -> ListPage:
        """A page of the origin's listing, with the proxy's own credentials."""
        return await self._origin.list_objects(bucket, prefix, start_after=start_after)

    def cacheable(self, ref: ObjectRef) -> bool:
        """See ``ReadPath.cacheable``."""
        return self._rules.of(ref).cache

    async def purge(self, bucket: str, prefix: str, *, dry_run: bool) -> tuple[int, int, int]:
        """Drop what is cached under a prefix: objects, pages, bytes. A dry run only counts."""
        found = await self.cache.find_under(bucket, prefix)
        table = self.cache.residents
        counted = (
            len(np.unique(table.object_hash[found])), len(found), int(table.body_bytes[found].sum())
        )  # fmt: skip
        if not dry_run:
            self._flights.invalidate(lambda ref: ref.bucket == bucket and ref.key.startswith(prefix))
            self._metadata.forget_prefix(bucket, prefix)
            for slot in found.tolist():
                self.cache.drop(slot, "purged")
            await self.cache.erased()
        return counted

    async def inspect(self, ref: ObjectRef) -> tuple[Known, list[tuple[int, str, int]]] | None:
        """What is known of an object, and its resident pages as (number, tier, bytes); None: nothing."""
        known = await self._known(ref)
        return None if known is None else (known, self.cache.pages(ref, known.meta.etag))

    # ------------------------------------------------------------------ life

    @property
    def readings(self) -> int:
        """Reads that are open now."""
        return self._readings

    @property
    def idle(self) -> bool:
        return not self._readings and not len(self._flights) and self._revalidator.idle

    async def aclose(self) -> None:
        """Take no new reads, let the running fills end, stop background checks. Tiers stay open."""
        self._closing = True
        await self._revalidator.aclose()
        await self._flights.drain()
        await self.cache.drain()

    def assert_quiescent(self) -> None:
        """For tests: nobody reads, nothing flies, every byte of budget is back, the books balance."""
        assert self.idle, (self._readings, len(self._flights))
        assert not self._writing
        assert self._ledger.taken_bytes == 0, self._ledger.taken_bytes
        assert self._ledger.waiting == 0
        self.cache.assert_quiescent()

    # ------------------------------------------------------------------ what readings call

    def join(
        self, ref: ObjectRef, number: int, *, upstream: Upstream, intent: Intent, meta: ObjectMeta | None
    ) -> tuple[Flight, bool]:
        """The flight of a page, with the caller as a waiter; starts the fill when there is none."""

        async def fill(flight: Flight) -> None:
            try:
                await self._fill(flight, intent, meta)
            except ObjectChanged:
                if flight.publishable:
                    # What is known is old: the next read starts from nothing.
                    self._forget(ref, "changed at the origin")
                raise

        flight, coalesced = self._flights.join(ref, number, upstream, fill)
        if intent is Intent.DEMAND:
            self.cache.miss(ref, number)
            if coalesced:
                self._stats.record_coalesced()
        return flight, coalesced

    def leave(self, flight: Flight) -> None:
        self._flights.leave(flight)

    def _count(self, request: ReadRequest, source: Source, size_bytes: int) -> None:
        job = request.job
        if job is None and (name := self._job_of(request.ref)) is not None:
            job = JobContext(name)
        self._stats.record_read(request.ref.bucket, source, size_bytes, job)

    # ------------------------------------------------------------------ reading, inside

    async def _prepare(self, reading: EngineReading) -> None:
        try:
            await self._open(reading)
        except ObjectChanged:
            # Nothing was sent yet, and the old version was forgotten: once more, with the new one.
            reading.reset()
            await self._open(reading)
        except OriginAnswer as answer:
            if answer.code:
                raise
            raise await self._explained(reading.request, answer) from None

    async def _explained(self, request: ReadRequest, answer: OriginAnswer) -> OriginAnswer:
        """The error that a GET gets where a HEAD, which has no body, was answered with a bare status."""
        try:
            async with self._origin.open(request.ref, span=Span(0, 1), upstream=request.upstream):
                return answer
        except OriginAnswer as explained:
            return explained

    async def _open(self, reading: EngineReading) -> None:
        request, wanted = reading.request, reading.request.range
        await self._authorise(request)
        meta = await self._usable(request)
        if meta is None:
            if not request.conditions and (wanted is None or wanted.first is not None):
                first = 0 if wanted is None or wanted.first is None else wanted.first
                await reading.open_unknown(first // self.page_size)
                return
            meta = await self._check(request.ref, request.upstream)
        await reading.open_known(meta, span_needed(request, meta))

    async def _authorise(self, request: ReadRequest) -> None:
        """A hit is authorised like a miss: by the origin, with this client's own credentials."""
        verdicts, now_s = self._verdicts, self._clock.now_s()
        if verdicts is None or verdicts.allowed(request.upstream, request.ref, now_s):
            return
        await self._check(request.ref, request.upstream)

    async def _usable(self, request: ReadRequest) -> ObjectMeta | None:
        """Metadata that may answer now, or None when nothing is known."""
        known = await self._known(request.ref)
        if known is None:
            return None
        age = self._rules.of(request.ref).age(known.validated_s, self._clock.now_s())
        if request.force_check or age is Age.UNUSABLE:
            return await self._check(request.ref, request.upstream)
        if age is Age.STALE:
            self._revalidator.check_soon(request.ref, request.upstream)
        return known.meta

    async def _known(self, ref: ObjectRef) -> Known | None:
        known = self._metadata.get(ref)
        if known is None and (recalled := await self.cache.recall(ref)) is not None:
            # Something newer may have been learnt while the record was read.
            known = self._metadata.get(ref) or self._metadata.learn(ref, *recalled)
        return known

    async def _check(self, ref: ObjectRef, upstream: Upstream) -> ObjectMeta:
        meta = await self._revalidator.check(ref, upstream)
        if self._verdicts is not None:
            self._verdicts.allow(upstream, ref, self._clock.now_s())
        return meta

    # ------------------------------------------------------------------ filling

    async def _fill(self, flight: Flight, intent: Intent, known: ObjectMeta | None) -> None:
        ref, number = flight.ref, flight.number
        flight.publishable = not self._being_written(ref)
        # The first page of an unknown or small object is asked for without a range, which works for empty
        # objects too and brings whole-object checksums; of a bigger object the rest is not read.
        whole = number == 0 and (known is None or known.size <= self.page_size)
        span = None if whole else Span(number * self.page_size, (number + 1) * self.page_size)
        async with self._origin.open(
            ref,
            span=span,
            if_match=None if known is None else known.etag,
            upstream=flight.upstream,
            intent=intent,
        ) as read:
            meta = self._learn(flight, read.meta)
            length = page_span(number, self.page_size, meta.size).length
            await self._ledger.take(length, intent)
            flight.budget_bytes = length
            flight.open(meta, length)
            if length:
                async for chunk in read.chunks:
                    flight.advance(chunk)
                    if flight.filled == length:
                        break
        if flight.filled < length:
            raise BodyCutShort(f"{ref}: got {flight.filled} of {length} bytes of page {number}")
        flight.end()
        if flight.publishable and length:
            await self.cache.insert(
                Page(ref, meta.etag, number),
                meta,
                flight.buffer,
                self._clock.now_s(),
                lambda: flight.publishable,
            )

    def _learn(self, flight: Flight, meta: ObjectMeta) -> ObjectMeta:
        """Take in what the origin said of the object with a page; the richer of what is known."""
        now_s = self._clock.now_s()
        if self._verdicts is not None:
            self._verdicts.allow(flight.upstream, flight.ref, now_s)
        if not flight.publishable:
            return meta
        if self._holds_other_version(flight.ref, meta.etag):
            self._invalidate_others(flight)
        return self._metadata.learn(flight.ref, meta, now_s).meta

    def _retire(self, flight: Flight) -> None:
        self._ledger.give(flight.budget_bytes)
        flight.budget_bytes = 0

    # ------------------------------------------------------------------ invalidation

    def _invalidate(self, ref: ObjectRef) -> None:
        if not ref.key:
            self._flights.invalidate(lambda other: other.bucket == ref.bucket)
            if self._verdicts is not None:
                self._verdicts.forget(ref.bucket)
            self._metadata.forget_prefix(ref.bucket, "")
            for slot in self.cache.slots_under(ref.bucket, "")[0].tolist():
                self.cache.drop(slot, "invalidated")
            return
        self._flights.invalidate(lambda other: other == ref)
        self._revalidator.void(ref)
        if self._verdicts is not None:
            self._verdicts.forget(ref.bucket, ref.key)
        self._forget(ref, "invalidated")

    def _invalidate_others(self, current: Flight) -> None:
        """``current`` brought a newer version: what else is known or flying of the object is old."""
        self._flights.invalidate(lambda ref: ref == current.ref)
        current.publishable = True
        self._forget(current.ref, "changed at the origin")

    def _forget(self, ref: ObjectRef, reason: str) -> None:
        self.cache.drop_object(ref, reason)
        self._metadata.forget(ref)

    def _holds_other_version(self, ref: ObjectRef, etag: str) -> bool:
        known = self._metadata.get(ref)
        return (known is not None and known.meta.etag != etag) or self.cache.holds_other_version(ref, etag)

    def _being_written(self, ref: ObjectRef) -> bool:
        return ref in self._writing or ObjectRef(ref.bucket, "") in self._writing

    def _settle(self, ref: ObjectRef, meta: ObjectMeta | None) -> None:
        """A check came back: keep, replace or forget what is cached."""
        if self._being_written(ref):
            return
        if meta is None or self._holds_other_version(ref, meta.etag):
            self._flights.invalidate(lambda other: other == ref)
            self._forget(ref, "changed at the origin")
        if meta is not None:
            self._metadata.learn(ref, meta, self._clock.now_s())
            self.cache.confirm(ref, self._clock.now_s())

    def _confirm(self, ref: ObjectRef, entry: ListEntry) -> bool:
        if self._holds_other_version(ref, entry.etag) or self._being_written(ref):
            return False
        known = self._metadata.get(ref)
        if known is not None:
            self._metadata.learn(ref, known.meta, self._clock.now_s())
        self.cache.confirm(ref, self._clock.now_s())
        return True

    def _refuse_when_closing(self) -> None:
        if self._closing:
            raise ShuttingDown("the proxy is shutting down; retry on another endpoint or later")
