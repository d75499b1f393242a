"""Joins the engine with the listeners. ``EngineAdmin`` administers the cache for the control listener, and
``Observer`` counts and logs requests.
"""

import asyncio
from collections.abc import Callable

from shadeproxy.api.control.bodies import (
    Freshness,
    PageSummary,
    PinAnswer,
    PinList,
    PinSummary,
)
from shadeproxy.api.control.context import CachedListing, CachedObject
from shadeproxy.api.s3.exchange import EndedRequest
from shadeproxy.app.pinning import DurablePins
from shadeproxy.app.request_log import RequestLog
from shadeproxy.core.clock import Clock
from shadeproxy.core.ranges import part_start
from shadeproxy.core.types import JobContext, ObjectRef, Source
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.placement.pins import Prefix
from shadeproxy.engine.read.purge import Purge
from shadeproxy.engine.rules import Age
from shadeproxy.engine.storage.object_names import distinct
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.prefetch.warm import Warm
from shadeproxy.telemetry.requests import RequestCounts
from shadeproxy.telemetry.stats import Stats

_INSPECTED = 32  # Objects of a listing that are inspected in one step of the event loop: some 40 us each.
_FRESHNESS: dict[Age, Freshness] = {Age.FRESH: "fresh", Age.STALE: "stale", Age.UNUSABLE: "check"}


class EngineAdmin:
    """Implements api/control ``CacheAdmin``."""

    def __init__(
        self, engine: Engine, pins: DurablePins, clock: Clock, *, fetches: Callable[[], int]
    ) -> None:
        """Make the object. ``fetches``: returns the most fetches that a ``Warm`` runs at a time."""
        self._engine = engine
        self._pins = pins
        self._clock = clock
        self._fetches = fetches

    def purging(self, place: Prefix, *, dry_run: bool) -> Purge:
        return self._engine.purging(*place, dry_run=dry_run)

    async def inspect(self, ref: ObjectRef) -> CachedObject | None:
        found = await self._engine.inspect(ref)
        if found is None:
            return None
        known, age, pages = found
        cached = tuple(self._summary(*page) for page in pages)
        return CachedObject(known.meta, cached, known.validated_s or None, _FRESHNESS[age])

    def _summary(self, number: int, tier: str, size_bytes: int, pinned: bool) -> PageSummary:
        if (start := part_start(number)) is not None:
            number = start // self._engine.page_size
        return PageSummary(number, tier, size_bytes, pinned, start)

    async def list_cached(self, place: Prefix, *, start_after: str, limit: int) -> CachedListing:
        refs, more = await self._engine.cache.listing.under(*place, start_after=start_after, limit=limit)
        objects = []
        for number, ref in enumerate(refs, 1):
            cached = await self.inspect(ref)
            # Leave out objects whose pages were evicted meanwhile: for them ``inspect`` may still return
            # metadata.
            if cached is not None and cached.pages:
                objects.append((ref, cached))
            if not number % _INSPECTED:
                await asyncio.sleep(0)
        return CachedListing(tuple(objects), more, refs[-1].key if more else None)

    async def pin(self, place: Prefix, *, dry_run: bool) -> PinAnswer:
        if not dry_run:
            await self._pins.pin(*place)
        return await self._pinned(place)

    async def unpin(self, place: Prefix, *, dry_run: bool) -> PinAnswer:
        if dry_run:
            self._pins.require(place)
        else:
            await self._pins.unpin(*place)
        return await self._pinned(place)

    async def _pinned(self, place: Prefix) -> PinAnswer:
        table = self._engine.cache.residents
        found = (await self._engine.cache.find_under(*place)).slots
        hashes, size_bytes = table.object_hash[found], int(table.body_bytes[found].sum())
        pinned = int(table.pinned[found].sum())
        objects = len(await asyncio.to_thread(distinct, hashes))
        return PinAnswer(f"s3://{place.bucket}/{place.prefix}", objects, len(found), size_bytes, pinned)

    def pins(self) -> PinList:
        pins, cache = self._pins.pins, self._engine.cache
        by_call = [
            PinSummary(f"s3://{pin.bucket}/{pin.prefix}", "call", pin.since_s, pin.namespace)
            for pin in pins.by_call()
        ]
        by_rule = [
            PinSummary(f"s3://{rule.bucket}/{rule.prefix}", f"rules[{place}]", None)
            for place, rule in pins.by_rule()
        ]
        held_bytes = sum(members.pinned_bytes for members in cache.residents.members)
        return PinList([*by_call, *by_rule], held_bytes, held_bytes + cache.placement.pinnable_bytes)

    def warming(self, place: Prefix, *, dry_run: bool) -> Warm:
        return Warm(
            self._engine.prefetch_port,
            self._engine.list_objects,
            bucket=place.bucket,
            prefix=place.prefix,
            namespace=place.namespace,
            dry_run=dry_run,
            clock=self._clock,
            fetches=self._fetches,
        )


class Observer(RequestLog):
    """Counts and logs the requests that the coordinator answers. ``counts``: to be given if the requests are
    not those of S3 clients; then they are counted there, and not in ``stats.requests``.
    """

    def __init__(
        self,
        stats: Stats,
        hints: HintRegistry,
        clock: Clock,
        *,
        access_log: bool,
        counts: RequestCounts | None = None,
    ) -> None:
        super().__init__(access_log=access_log, counts=stats.requests if counts is None else counts)
        self._stats = stats
        self._hints = hints
        self._clock = clock

    def on_job(self, job: JobContext) -> None:
        if job.job in self._hints.jobs:
            self._hints.jobs.touch(job.job, self._clock.now_s(), job.epoch)

    def on_forwarded(self, request: EndedRequest) -> None:
        if request.get("relayed_to"):
            if (job := request["job"]) is not None:
                self.on_job(job)
            return
        self.count_forwarded(
            request["operation"],
            request["bucket"],
            request["status"],
            request["bytes_sent"],
            request["job"],
        )

    def count_forwarded(
        self, operation: str, bucket: str, status: int, bytes_sent: int, job: JobContext | None
    ) -> None:
        """Count a request that went past the cache, and note that its job gave a sign of life."""
        if operation == "GetObject" and status in (200, 206):
            self._stats.record_read(bucket, Source.BYPASS, bytes_sent, job)
        if job is not None:
            self.on_job(job)
