"""The engine as the control listener sees it, and what requests leave behind in statistics and logs."""

import structlog

from shadeproxy.api.control.context import CachedObject, CachedPage, Purged
from shadeproxy.core.clock import Clock
from shadeproxy.core.types import JobContext, ObjectRef, Source
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.knowledge.knowledge import Knowledge
from shadeproxy.telemetry.stats import Stats

_log = structlog.get_logger("shadeproxy.access")


class EngineAdmin:
    """Implements api/control ``CacheAdmin``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def purge(self, bucket: str, prefix: str, *, dry_run: bool) -> Purged:
        return Purged(*await self._engine.purge(bucket, prefix, dry_run=dry_run))

    async def inspect(self, ref: ObjectRef) -> CachedObject | None:
        found = await self._engine.inspect(ref)
        if found is None:
            return None
        known, pages = found
        cached = tuple(CachedPage(number, tier, size_bytes) for number, tier, size_bytes in pages)
        return CachedObject(known.meta, cached, known.validated_s)


class Observer:
    """Implements api/s3 ``RequestObserver`` and ``JobObserver``. ``access_log`` may be changed."""

    def __init__(self, stats: Stats, knowledge: Knowledge, clock: Clock, *, access_log: bool) -> None:
        self._stats = stats
        self._knowledge = knowledge
        self._clock = clock
        self.access_log = access_log

    def on_job(self, job: JobContext) -> None:
        if job.job in self._knowledge.jobs:
            self._knowledge.touch(job.job, self._clock.now_s())

    def on_request(
        self,
        *,
        operation: str,
        bucket: str,
        status: int,
        source: Source,
        bytes_sent: int,
        duration_s: float,
        job: JobContext | None,
        request_id: str,
        origin_request_id: str = "",
    ) -> None:
        if operation == "GetObject" and source is Source.BYPASS and status in (200, 206):
            self._stats.record_read(bucket, source, bytes_sent, job)
        if job is not None:
            self.on_job(job)
        if self.access_log:
            _log.info(
                "request",
                request_id=request_id,
                operation=operation,
                bucket=bucket,
                status=status,
                source=source.value,
                bytes=bytes_sent,
                ms=round(duration_s * 1000, 2),
                **({"origin_request_id": origin_request_id} if origin_request_id else {}),
            )
