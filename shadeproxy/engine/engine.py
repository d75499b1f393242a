"""``Engine``: the one read path (law 1 of the design), and the writes that invalidate it.

Every read, whatever its intent, comes through ``open``. Order of questions: may this client see the object;
is its metadata usable by its freshness rule; is the page resident; is it already on its way; else read it
from the origin.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from shadeproxy.core.clock import Clock
from shadeproxy.core.deadline import DEFAULT_BOUNDS, ReadBounds
from shadeproxy.core.errors import ObjectChanged, OriginAnswer, OriginError, ShuttingDown, WriteRefused
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.types import OWN, ListPage, ObjectMeta, ObjectRef, Page, Source, Span
from shadeproxy.engine.access_records import Kind, Uses
from shadeproxy.engine.base import (
    Grant,
    Hit,
    Located,
    ReadRequest,
    span_needed,
)
from shadeproxy.engine.freshness.namespaces import ONLY_OWN, Upstreams, upstream_in
from shadeproxy.engine.freshness.verdicts import Verdicts
from shadeproxy.engine.freshness.versions import Versions
from shadeproxy.engine.read import upkeep
from shadeproxy.engine.read.access_log import AccessLog, Counting, JobsOf
from shadeproxy.engine.read.fill import PageFiller
from shadeproxy.engine.read.hits import Hits
from shadeproxy.engine.read.prefetch_port import PrefetchPort
from shadeproxy.engine.read.read_recorder import ReadRecorder
from shadeproxy.engine.read.reading import EngineReading, Opening
from shadeproxy.engine.rules import Rules
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.hints.order.upcoming import NothingAnnounced, ReadObserver
from shadeproxy.origin.base import ForwardRequest, ForwardResponse, Origin, OriginRead
from shadeproxy.telemetry.recording import Recording
from shadeproxy.telemetry.stats import Stats

_UNKNOWN_OUTCOME_S = 60.0
"""Longer than the origin's read timeout by default: a write that it still carries out is over by then."""


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
        bounds: ReadBounds = DEFAULT_BOUNDS,
        verdicts: Verdicts | None = None,
        jobs_of: JobsOf = lambda hashes: [None] * len(hashes),
        orders: ReadObserver | None = None,
        recording: Recording | None = None,
        upstreams: Upstreams = ONLY_OWN,
    ) -> None:
        """``verdicts``: None unless clients have origin credentials. ``upstreams``: see namespaces.py.

        ``jobs_of``: the jobs whose datasets hold the objects, by object hash, for reads that name no job.
        ``orders``: receives demand reads. ``recording``: keeps them, if one is made.
        """
        self.cache = cache
        self.page_size = page_size
        self._origin = origin
        self._rules = rules
        self._upstreams = upstreams
        self._ledger = ledger
        recorder = None if recording is None else ReadRecorder(recording, cache, clock)
        self._counting = Counting(
            stats,
            clock,
            jobs_of=jobs_of,
            orders=orders or NothingAnnounced(),
            recorder=recorder,
            before_recording=self._count_earlier,
            tick=cache.tick,
        )
        self.access_log = AccessLog(cache, count=self._counting.count_uses)
        self._versions = Versions(
            origin,
            cache,
            rules=rules,
            clock=clock,
            stats=stats,
            verdicts=verdicts,
            outdated=self._outdated,
            upstreams=upstreams,
        )
        self._filling = PageFiller(
            origin,
            cache,
            versions=self._versions,
            ledger=ledger,
            stats=stats,
            clock=clock,
            page_size=page_size,
            outdated=self._outdated,
            bounds=bounds,
            before_deciding=self.access_log.flush_many,
        )
        self.prefetch_port = PrefetchPort(
            cache,
            self._filling,
            versions=self._versions,
            cacheable=self.cacheable,
            ledger=ledger,
            stats=stats,
            page_size=page_size,
            upstreams=upstreams,
        )
        self.hits = hits = Hits(cache, page_size, access_log=self.access_log, fresh=self._fresh)
        # These calls of ``ReadPath`` are those of ``Hits``.
        self.find_handle, self.place = hits.find_handle, hits.place
        self.take, self.take_slices = hits.take, hits.take_slices
        self.find_samples, self.remember_sample = hits.find_samples, hits.remember_sample
        self._clock = clock
        self._lingering: set[asyncio.Task[None]] = set()
        self._readings = 0
        self._closing = False

    # ------------------------------------------------------------------ calls of listeners

    def open(self, request: ReadRequest) -> AbstractAsyncContextManager[EngineReading]:
        """See ``ReadPath.open``."""
        reading = EngineReading(
            request,
            cache=self.cache,
            fills=self._filling,
            count=self._counting.count,
            page_size=self.page_size,
        )
        return Opening(reading, self._enter, self._leave)

    async def stat(self, request: ReadRequest) -> tuple[ObjectMeta, Source]:
        """See ``ReadPath.stat``."""
        self._refuse_when_closing()
        request = request._replace(grant=Grant.HEAD)
        await self._versions.authorise(request)
        meta = await self._versions.usable(request)
        if meta is None:
            return await self._versions.check(request.ref, request.upstream), Source.ORIGIN
        return meta, self.where(request.ref, meta)

    def where(self, ref: ObjectRef, meta: ObjectMeta) -> Source:
        """See ``ReadPath.where``."""
        slot = self.cache.find(Page(ref, meta.etag, 0))
        return Source.RAM if slot is None else self.cache.source(slot)

    def usable_now(self, request: ReadRequest) -> ObjectMeta | None:
        """See ``ReadPath.usable_now``."""
        return None if self._closing else self._versions.usable_now(request)

    def hit(self, request: ReadRequest, meta: ObjectMeta, span: Span) -> Hit | None:
        """See ``ReadPath.hit``."""
        told = partial(self._counting.note_read, request, span.start)
        found = self.hits.read(request.ref, meta, span, told)
        if found is not None:
            self._counting.count(request, found.source, span.length)
        return found

    def ready(self, request: ReadRequest, meta: ObjectMeta, span: Span) -> bool:
        """See ``ReadPath.ready``."""
        return self.hits.ready(request.ref, meta, span)

    def locate(self, request: ReadRequest, meta: ObjectMeta, span: Span) -> tuple[Located, ...] | None:
        """See ``ReadPath.locate``."""
        told = partial(self._counting.note_read, request, span.start)
        found = self.hits.locate(request.ref, meta, span, told)
        if found is not None:
            source = Source.DISK if any(one.source is Source.DISK for one in found) else Source.RAM
            self._counting.count(request, source, span.length)
        return found

    def bypass(self, request: ReadRequest, span: Span | None) -> AbstractAsyncContextManager[OriginRead]:
        """See ``ReadPath.bypass``."""
        self._refuse_when_closing()
        return self._origin.open(request.ref, span=span, upstream=request.upstream, intent=request.intent)

    def forward(self, request: ForwardRequest) -> AbstractAsyncContextManager[ForwardResponse]:
        """See ``ReadPath.forward``."""
        self._refuse_when_closing()
        return self._origin.forward(request)

    @asynccontextmanager
    async def writing(self, refs: Iterable[ObjectRef]) -> AsyncIterator[None]:
        """See ``ReadPath.writing``."""
        touched = list(refs)
        self._versions.begin_write(touched)
        try:
            self._invalidate(touched)
            # Erase before the origin changes: a crash must not bring back the overwritten version.
            await self.cache.erasing.over()
            if refused := self.cache.erasing.unmarked(touched):
                raise WriteRefused(refused)
            yield
        except (asyncio.CancelledError, OriginError):
            # After a hang-up of the client or silence of the origin, the write may still be carried out.
            self._linger(touched)
            raise
        finally:
            self._invalidate(touched)
            self._versions.end_write(touched)

    def note_reads(self, uses: Uses, kinds: Sequence[Kind]) -> None:
        """Take in demand reads that a worker answered (worker_reads.py)."""
        self.access_log.record_others(uses, kinds)

    async def list_objects(
        self, bucket: str, prefix: str, *, start_after: str = "", namespace: str = OWN
    ) -> ListPage:
        """Return a page of the origin's listing, with the credentials that read in ``namespace``."""
        upstream = upstream_in(self._upstreams, namespace)
        return await self._origin.list_objects(bucket, prefix, start_after=start_after, upstream=upstream)

    def cacheable(self, ref: ObjectRef) -> bool:
        """See ``ReadPath.cacheable``."""
        return self._rules.of(ref).cache and self._versions.may_keep(ref)

    async def purge(self, bucket: str, prefix: str, namespace: str = OWN, *, dry_run: bool) -> upkeep.Purged:
        """Drop all cached pages under a prefix. Return objects, pages, bytes. A dry run only counts."""
        place = ObjectRef(bucket, prefix, namespace)
        return await upkeep.purge(self.cache, self._filling.flights, self._versions, place, dry_run=dry_run)

    async def inspect(self, ref: ObjectRef) -> upkeep.Inspected | None:
        """Return the known version of an object and its cached pages; None where nothing is known."""
        return await upkeep.inspect(self.cache, self._versions, self._rules, ref, self._clock.now_s())

    def check_listed(self, bucket: str, prefix: str, most_pages: int, namespace: str = OWN) -> None:
        """See ``Versions.check_listed``."""
        self._versions.check_listed(bucket, prefix, most_pages, namespace)

    def forget_rights(self, verdicts: Verdicts | None) -> None:
        """Forget granted rights, because clients' rights or the rules changed.

        Callers must drop their page handles, which are invalid now. ``verdicts``: as in ``__init__``.
        """
        self._versions.forget_rights(verdicts)
        self.hits.forget()

    # ------------------------------------------------------------------ life

    @property
    def readings(self) -> int:
        """Number of reads that are open now."""
        return self._readings

    @property
    def idle(self) -> bool:
        return not self._readings and not len(self._filling.flights) and self._versions.idle

    async def aclose(self) -> None:
        """Take no new reads, let the running fills end, stop background checks. Tiers stay open."""
        self._closing = True
        for task in (lingering := list(self._lingering)):
            task.cancel()
        await asyncio.gather(*lingering, return_exceptions=True)
        await self._versions.aclose()
        self._filling.flights.cancel_unwatched()
        await self._filling.flights.drain()
        self.access_log.flush()
        await self.cache.drain()

    def assert_quiescent(self) -> None:
        """Assert for tests: no reads or flights, all memory returned, the accounting balances."""
        assert self.idle, (self._readings, len(self._filling.flights))
        assert self._ledger.taken_bytes == 0, self._ledger.taken_bytes
        assert self._ledger.waiting == 0
        self.access_log.flush()
        self.cache.assert_quiescent()

    # ------------------------------------------------------------------ inside

    def _count_earlier(self) -> None:
        """Count the reads in the access log, because a later one is about to be recorded."""
        self.access_log.flush_to_statistics()

    def _fresh(self, ref: ObjectRef) -> tuple[ObjectMeta, float] | None:
        return None if self._closing or not self.cacheable(ref) else self._versions.fresh_now(ref)

    async def _enter(self, reading: EngineReading) -> EngineReading:
        self._refuse_when_closing()
        self._readings += 1
        try:
            try:
                await self._open(reading)
            except ObjectChanged:
                # Nothing was sent yet, and the old version was forgotten: try once more, with the new one.
                reading.reset()
                await self._open(reading)
            except OriginAnswer as answer:
                if answer.code:
                    raise
                raise await self._explained(reading.request, answer) from None
        except BaseException:
            self._leave(reading)
            raise
        return reading

    def _leave(self, reading: EngineReading) -> None:
        self._readings -= 1
        reading.close()

    async def _explained(self, request: ReadRequest, answer: OriginAnswer) -> OriginAnswer:
        """Return the error of a GET, because the answer to a HEAD has a bare status and no body."""
        try:
            async with self._origin.open(request.ref, span=Span(0, 1), upstream=request.upstream):
                return answer
        except OriginAnswer as explained:
            return explained

    async def _open(self, reading: EngineReading) -> None:
        request, wanted = reading.request, reading.request.range
        await self._versions.authorise(request)
        # The start of a suffix range depends on the object's size.
        told = not request.conditions and (wanted is None or wanted.first is not None)
        if told:
            # Count before the page is on its way: it is ranked by its next use, not by this one.
            reading.explained |= self._counting.note_read(request, (wanted and wanted.first) or 0)
        meta = await self._versions.usable(request)
        if meta is None:
            if told:
                first = 0 if wanted is None or wanted.first is None else wanted.first
                try:
                    await reading.open_unknown(first // self.page_size)
                except OriginAnswer as answer:
                    if answer.status != 416:
                        raise
                    # Not every server sends the size with its 416; ours does, so ask for it.
                    reading.reset()
                else:
                    return
            meta = await self._versions.check(request.ref, request.upstream)
        span = span_needed(request, meta)
        if not told and span.length:
            # Count only now that the bytes to be read are known.
            reading.explained |= self._counting.note_read(request, span.start)
        await reading.open_known(meta, span)

    def _linger(self, touched: list[ObjectRef]) -> None:
        """Store no read of ``touched`` until a write with unknown outcome must be over."""
        self._versions.begin_write(touched)
        task = asyncio.create_task(self._clock.sleep(_UNKNOWN_OUTCOME_S), name="outcome unknown")
        self._lingering.add(task)

        def over(_task: asyncio.Task[None]) -> None:
            self._lingering.discard(task)
            self._invalidate(touched)
            self._versions.end_write(touched)

        task.add_done_callback(over)

    def _invalidate(self, touched: Iterable[ObjectRef]) -> None:
        for ref in touched:
            self._versions.touch(ref)
            if ref.key:
                self._filling.flights.invalidate_object(ref)
                self.cache.drop_object(ref, "invalidated")
            else:
                self._filling.flights.invalidate_bucket(ref.bucket, ref.namespace)
                self.cache.mark_stale(ref.bucket, ref.namespace)

    def _outdated(self, ref: ObjectRef) -> None:
        """Drop all that is cached, known or flying of ``ref``: the origin has another version."""
        self._filling.flights.invalidate_object(ref)
        self.cache.drop_object(ref, "changed at the origin")
        self._versions.forget(ref)

    def _refuse_when_closing(self) -> None:
        if self._closing:
            raise ShuttingDown("the proxy is shutting down; retry on another endpoint or later")
