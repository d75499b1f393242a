"""``Engine``: the one path for reads, and for the writes that invalidate what reads have cached.

A hit is answered without waiting. Any other read of a client comes through ``open``, or first through
``begin``. ``open`` asks these questions in order. May this client see the object? May its cached metadata
answer, by the freshness rule? Is the page resident? Is the page already on its way? If none of this helps,
the engine reads the page from the origin. Prefetch uses the same flights, through ``prefetch_port``.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from shadeproxy.core.clock import Clock
from shadeproxy.core.deadline import DEFAULT_BOUNDS, ReadBounds
from shadeproxy.core.errors import ObjectChanged, OriginAnswer, OriginUnavailable, ShuttingDown
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.tracing import READER
from shadeproxy.core.types import OWN, ListPage, ObjectMeta, ObjectRef, Page, Source, Span
from shadeproxy.engine.access_records import Kind, Uses
from shadeproxy.engine.base import NO_CONDITIONS, UNKNOWN, Grant, Hit, Located, NothingKnown, ReadRequest
from shadeproxy.engine.freshness.namespaces import ONLY_OWN, Upstreams, upstream_in
from shadeproxy.engine.freshness.verdicts import Verdicts
from shadeproxy.engine.freshness.versions import Versions
from shadeproxy.engine.index.metadata import KnownMetadata
from shadeproxy.engine.ownership import Ownership, Standing
from shadeproxy.engine.read import upkeep
from shadeproxy.engine.read.access_log import AccessLog, Counting, JobsOf
from shadeproxy.engine.read.fill import PageFiller
from shadeproxy.engine.read.flight import Flight
from shadeproxy.engine.read.hits import Hits
from shadeproxy.engine.read.needed import first_needed, joins_earlier, only_page, span_needed
from shadeproxy.engine.read.opening import Opening, open_unknown
from shadeproxy.engine.read.plain_reads import PlainReads
from shadeproxy.engine.read.prefetch_port import PrefetchPort
from shadeproxy.engine.read.purge import Purge
from shadeproxy.engine.read.read_recorder import ReadRecorder
from shadeproxy.engine.read.reading import EngineReading
from shadeproxy.engine.read.writes import Writes
from shadeproxy.engine.rules import Rules
from shadeproxy.engine.storage.distrust import Keep
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.hints.order.upcoming import NothingAnnounced, ReadObserver
from shadeproxy.origin.base import CallbackOrigin, ForwardRequest, ForwardResponse, Origin, OriginRead
from shadeproxy.telemetry.recording import Recording
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
        bounds: ReadBounds = DEFAULT_BOUNDS,
        verdicts: Verdicts | None = None,
        jobs_of: JobsOf = lambda hashes: [None] * len(hashes),
        orders: ReadObserver | None = None,
        recording: Recording | None = None,
        upstreams: Upstreams = ONLY_OWN,
        callback_reads: CallbackOrigin | None = None,
        prefetch_reads: Callable[[], CallbackOrigin | None] = lambda: None,
        ownership: Ownership | None = None,
        past: Origin | None = None,
    ) -> None:
        """``callback_reads``: reads of ``origin`` by callbacks, if it supports them. ``prefetch_reads``:
        called for each page to prefetch; returns the reads that fetch it, or None for ``callback_reads``.
        ``verdicts``: None unless clients have origin credentials. ``upstreams``: see namespaces.py.

        ``jobs_of``: finds the jobs of reads that name none: it returns, for each hash of an object, the job
        whose dataset holds the object. ``orders``: observes demand reads. ``recording``: a file that also
        gets the demand reads. ``ownership``: None unless proxies share a cache. ``past``: the origin for
        reads past the cache and for forwarded requests; None: ``origin``.
        """
        self.cache, self.page_size = cache, page_size
        self._origin, self._clock, self._callback_reads = origin, clock, callback_reads
        self._past, self._ownership = (origin if past is None else past), ownership
        self._rules, self._upstreams, self._ledger = rules, upstreams, ledger
        self._counting = Counting(
            stats,
            clock,
            jobs_of=jobs_of,
            orders=orders or NothingAnnounced(),
            recorder=None if recording is None else ReadRecorder(recording, cache, clock),
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
            ownership=ownership,
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
            callback_reads=callback_reads,
        )
        # ``Versions`` implements these calls of ``ReadPath``.
        self.cacheable, self.find_now = self._versions.cacheable, self._versions.find_now
        if ownership is not None:
            self.cacheable = self._versions.cacheable_here
        self.prefetch_port = PrefetchPort(
            cache,
            self._filling,
            versions=self._versions,
            cacheable=self.cacheable,
            ledger=ledger,
            stats=stats,
            page_size=page_size,
            upstreams=upstreams,
            reads=prefetch_reads,
        )
        self.hits = hits = Hits(cache, page_size, access_log=self.access_log, fresh=self._fresh)
        # ``Hits`` implements these calls of ``ReadPath``.
        self.find_handle, self.place = hits.find_handle, hits.place
        self.take, self.take_slices = hits.take, hits.take_slices
        self.find_samples, self.remember_sample = hits.find_samples, hits.remember_sample
        self._new_reading = partial(
            EngineReading, cache=cache, fills=self._filling, count=self._counting.count, page_size=page_size
        )
        self._writes = Writes(self._versions, self._filling, cache, clock=clock, ownership=ownership)
        self.writing = self._writes.writing
        self.plain_reads = PlainReads(
            cache, self._filling, self._versions, self._counting, new_reading=self._new_reading
        )
        self._closing = False

    # ------------------------------------------------------------------ calls of listeners

    def open(self, request: ReadRequest) -> AbstractAsyncContextManager[EngineReading]:
        """Open an object for reading; see ``ReadPath.open``."""
        return Opening(self._new_reading(request), self._enter, self.leave)

    def begin(
        self, request: ReadRequest, found: ObjectMeta | NothingKnown, reads: CallbackOrigin | None = None
    ) -> tuple[EngineReading, Flight] | None:
        """Begin a read without waiting; see ``BeginsReads`` (lane_read.py), ``BeginsWorkerReads``."""
        plain = request.range is None and request.conditions is NO_CONDITIONS
        first = 0 if plain else first_needed(request)
        owned = self._ownership is None or self._owns(request)
        if first is None or self._callback_reads is None or self._closing or not owned:
            return None
        meta = None if found is UNKNOWN else found
        number = first // self.page_size if meta is None else only_page(request, meta, self.page_size)
        if number is None:
            return None
        if meta is not None:
            part = None if request.range is None else span_needed(request, meta)
            record = self.cache.record_with(Page(request.ref, meta.etag, number), part)
            if self.cache.find(record) is not None:
                return None
        elif joins_earlier(request, number, self._filling.flights, self._rules):
            return None
        if reads is not None and self._filling.flights.busy(request.ref, number):
            return None
        reading = self._new_reading(request)
        reading.explained = self._counting.note_read(request, first)
        flight = reading.begin(number, meta, reads)
        self.plain_reads.readings += 1
        return reading, flight

    def resume(self, reading: EngineReading) -> AbstractAsyncContextManager[EngineReading]:
        """Open the object of a read that ``begin`` began; see ``BeginsReads.resume``."""
        return Opening(reading, self._enter, self.leave)

    def leave(self, reading: EngineReading, *, served: bool = False) -> None:
        """Release a reading and leave its flights; see ``BeginsReads.leave``."""
        self.plain_reads.readings -= 1
        if reading.loads is not None:
            reading.loads.stop_all()
        while reading.joined:
            self._filling.flights.leave(reading.joined.popitem()[1], served=served or reading.relayed)

    async def stat(self, request: ReadRequest) -> tuple[ObjectMeta, Source]:
        """Return metadata for a HeadObject; see ``ReadPath.stat``."""
        self._refuse_when_closing()
        request = request._replace(grant=Grant.HEAD)
        await self._versions.authorise(request)
        meta = await self._versions.usable(request)
        if meta is None:
            meta = await self._versions.check(request.ref, request.upstream, exact=request.force_check)
            return meta, Source.ORIGIN
        return meta, self.where(request.ref, meta)

    def where(self, ref: ObjectRef, meta: ObjectMeta) -> Source:
        """Return the tier of an object's first page; see ``ReadPath.where``."""
        slot = self.cache.find(Page(ref, meta.etag, 0))
        return Source.RAM if slot is None else self.cache.source(slot)

    def usable_now(self, request: ReadRequest) -> ObjectMeta | None:
        """Return metadata that may answer at once; see ``ReadPath.usable_now``."""
        return self._versions.usable_now(request)

    def hit(self, request: ReadRequest, meta: ObjectMeta, span: Span) -> Hit | None:
        """Return bytes of resident pages, and count the read; see ``ReadPath.hit``."""
        if self._ownership is not None and not self._owns(request):
            return None
        told = partial(self._counting.note_read, request, span.start)
        found = self.hits.read(request.ref, meta, span, told)
        if found is not None:
            self._counting.count(request, found.source, span.length)
        return found

    def ready(self, request: ReadRequest, meta: ObjectMeta, span: Span) -> bool:
        """Return whether ``hit`` would answer now; see ``ReadPath.ready``."""
        return (self._ownership is None or self._owns(request)) and self.hits.ready(request.ref, meta, span)

    def locate(self, request: ReadRequest, meta: ObjectMeta, span: Span) -> tuple[Located, ...] | None:
        """Return the places of cached bytes, and count the read; see ``ReadPath.locate``."""
        if self._ownership is not None and not self._owns(request):
            return None
        told = partial(self._counting.note_read, request, span.start)
        found = self.hits.locate(request.ref, meta, span, told)
        if found is not None:
            source = Source.DISK if any(one.source is Source.DISK for one in found) else Source.RAM
            self._counting.count(request, source, span.length)
        return found

    def bypass(self, request: ReadRequest, span: Span | None) -> AbstractAsyncContextManager[OriginRead]:
        """Read an object that is not cacheable past the cache; see ``ReadPath.bypass``."""
        self._refuse_when_closing()
        READER.set(request.job or request.ref)
        return self._past.open(request.ref, span=span, upstream=request.upstream, intent=request.intent)

    def forward(self, request: ForwardRequest) -> AbstractAsyncContextManager[ForwardResponse]:
        """Send another request to the origin; see ``ReadPath.forward``."""
        self._refuse_when_closing()
        return self._past.forward(request)

    def note_reads(self, uses: Uses, kinds: Sequence[Kind]) -> None:
        """Add demand reads that a worker answered (worker_reads.py) to the access log."""
        self.access_log.record_others(uses, kinds)

    async def list_objects(
        self, bucket: str, prefix: str, *, start_after: str = "", namespace: str = OWN
    ) -> ListPage:
        """List keys at the origin, one part at a time, with the upstream of ``namespace``. Raises
        OriginUnavailable if the listing does not go on, so that no caller loops.
        """
        upstream = upstream_in(self._upstreams, namespace)
        page = await self._origin.list_objects(bucket, prefix, start_after=start_after, upstream=upstream)
        if page.entries[-1].key <= start_after if page.entries else page.truncated:
            raise OriginUnavailable(
                f"the origin's listing of {bucket!r} does not go on after {start_after!r}"
            )
        return page

    def purging(self, bucket: str, prefix: str, namespace: str = OWN, *, dry_run: bool) -> Purge:
        """Return a ``Purge`` of the pages under a prefix, which the caller runs. A dry run only counts."""
        place = ObjectRef(bucket, prefix, namespace)
        return Purge(self.cache, self._filling.flights, self._versions, place, dry_run=dry_run)

    async def inspect(self, ref: ObjectRef) -> upkeep.Inspected | None:
        """Return the known version of an object and its cached pages; None if the object is unknown."""
        return await upkeep.inspect(self.cache, self._versions, self._rules, ref, self._clock.now_s())

    def check_listed(self, bucket: str, prefix: str, most_pages: int, namespace: str = OWN) -> None:
        """Check cached objects below ``prefix`` by listings; see ``Versions.check_listed``."""
        self._versions.check_listed(bucket, prefix, most_pages, namespace)

    def forget_rights(self, verdicts: Verdicts | None) -> None:
        """Forget granted rights, because clients' rights or the rules changed.

        Callers must drop all page handles, which are now invalid. ``verdicts``: as in ``__init__``.
        """
        self._versions.forget_rights(verdicts)
        self.hits.forget()

    def distrust(self, keep: Keep | None = None) -> None:
        """Let no cached page answer before a check with the origin, because the trust epoch has risen. Void
        running flights and checks. ``keep``: finds the objects that are spared (distrust.py).
        """
        self.access_log.flush()  # The log finds pages by their stamps, which all change below.
        self._filling.flights.invalidate(lambda _ref: True)
        self._versions.distrust()
        self.cache.distrust(keep)
        self.hits.forget()

    # ------------------------------------------------------------------ life

    @property
    def readings(self) -> int:
        """Number of reads that are open now."""
        return self.plain_reads.readings

    @property
    def idle(self) -> bool:
        return not self.readings and not len(self._filling.flights) and self._versions.idle

    async def aclose(self) -> None:
        """Refuse new reads, wait for running fills, stop background checks. Tiers stay open."""
        self._closing = self._versions.closing = True
        await self._writes.aclose()
        await self._versions.aclose()
        self._filling.flights.cancel_unwatched()
        await self._filling.flights.drain()
        self.access_log.flush()
        await self.cache.drain()

    def assert_quiescent(self) -> None:
        """Assert, for tests, that no read or flight is open, and that no memory is taken."""
        assert self.idle, (self.readings, len(self._filling.flights))
        assert self._ledger.taken_bytes == 0, self._ledger.taken_bytes
        assert self._ledger.waiting == 0
        self.access_log.flush()
        self.cache.assert_quiescent()

    # ------------------------------------------------------------------ inside

    def _count_earlier(self) -> None:
        """Count the reads in the access log, so that reads are counted in the order in which they came."""
        self.access_log.flush_to_statistics()

    def _owns(self, request: ReadRequest) -> bool:
        """Return whether the object is OWN now, in a cluster. Its freshness rule then decides."""
        return self._ownership is not None and self._ownership.standing(request.ref) is Standing.OWN

    def _fresh(self, ref: ObjectRef) -> tuple[KnownMetadata, float] | None:
        return None if self._closing or not self.cacheable(ref) else self._versions.fresh_now(ref)

    async def _enter(self, reading: EngineReading) -> EngineReading:
        if not reading.begun:
            self._refuse_when_closing()
            self.plain_reads.readings += 1
        try:
            try:
                await self._open(reading)
            except (ObjectChanged, OriginAnswer) as error:
                if isinstance(error, OriginAnswer):
                    await self._explain(reading.request, error)
                # The client has got no byte yet. The origin may have a new version, so try once more.
                reading.reset()
                await self._open(reading)
        except BaseException:
            self.leave(reading)
            raise
        return reading

    async def _explain(self, request: ReadRequest, answer: OriginAnswer) -> None:
        """Raise ``answer``, or a more exact error. An answer to a HEAD has no code and no body that explain
        it. So ask once more by a GET, and raise the GET's error. Return if the GET finds the object.
        """
        if answer.code:
            raise answer
        try:
            async with self._origin.open(request.ref, span=Span(0, 1), upstream=request.upstream):
                return
        except OriginAnswer as explained:
            if explained.status != 416:  # A 416 means that the object exists and is empty.
                raise explained from answer

    async def _open(self, reading: EngineReading) -> None:
        request = reading.request
        await self._versions.authorise(request)
        first = first_needed(request)
        if first is not None:
            # Note the read before its page comes: the page is then ranked by its next use, not by this one.
            reading.note(self._counting.note_read, first)
        meta = await self._versions.usable(request)
        if meta is None:
            note_read = self._counting.note_read
            if await open_unknown(reading, fills=self._filling, rules=self._rules, note_read=note_read):
                return
            meta = await self._versions.check(request.ref, request.upstream, exact=request.force_check)
        span = span_needed(request, meta)
        if first is None and span.length:
            reading.note(self._counting.note_read, span.start)  # The first byte is known only now.
        await reading.open_known(meta, span)

    def _outdated(self, ref: ObjectRef) -> None:
        """Drop all that is cached or on its way of ``ref``, because the origin has another version."""
        self._filling.flights.invalidate_object(ref)
        self.cache.drop_object(ref, "changed at the origin")
        self._versions.forget(ref)

    def _refuse_when_closing(self) -> None:
        if self._closing:
            raise ShuttingDown("the proxy is shutting down; retry on another endpoint or later")
