"""Builds the parts by which a worker forwards requests: an origin, a handler, and a channel to ask the
coordinator.
"""

import structlog

from shadeproxy.api.s3.auth.authenticator import Authenticator
from shadeproxy.api.s3.authorizer import RequestAuthorizer
from shadeproxy.api.s3.forward import MAX_TRAILED_BYTES
from shadeproxy.api.s3.forward_handler import TRAILED_BUDGET_BYTES, ForwardHandler, HandlerSettings
from shadeproxy.api.s3.worker_forwarder import WorkerForwarder
from shadeproxy.api.s3.worker_misses import SentKeys
from shadeproxy.api.s3.worker_path import (
    AskedCoordinator,
    CoordinatorSlots,
    ReportedOrigin,
    ReportedRequests,
    WorkerPath,
)
from shadeproxy.app.origins import build_origin, read_bounds
from shadeproxy.app.request_log import RequestLog
from shadeproxy.app.worker_access import OtelForwardHandler
from shadeproxy.config import Settings
from shadeproxy.core.clock import Clock
from shadeproxy.core.types import SHARED
from shadeproxy.engine.base import ReadsNow
from shadeproxy.engine.read.fill_messages import Outbox
from shadeproxy.origin.bucket_regions import BucketRegions
from shadeproxy.telemetry.otel import OtelTracer


def trailed_budget_bytes(settings: Settings) -> int:
    """Return how many bytes of memory each process has for uploads that it holds whole. It is an equal share
    of one budget, but always enough for one upload.
    """
    return max(TRAILED_BUDGET_BYTES // settings.s3.processes, MAX_TRAILED_BYTES)


class WorkerForwarding:
    """The forwarding of one worker. ``authorizer``: decides which requests it forwards. ``tracer``: makes
    otel spans of these requests. ``regions``: the regions of buckets that this process knows.
    """

    def __init__(
        self,
        settings: Settings,
        reads: ReadsNow,
        authenticator: Authenticator,
        outbox: Outbox,
        *,
        instance: str,
        clock: Clock,
        request_log: RequestLog,
        authorizer: RequestAuthorizer,
        regions: BucketRegions,
        tracer: OtelTracer | None = None,
    ) -> None:
        keys, bounds = SentKeys(), read_bounds(settings)
        coordinator = AskedCoordinator(outbox, keys)
        built = build_origin(
            settings,
            clock=clock,
            providers={SHARED: keys},
            instance=instance,
            forwards=CoordinatorSlots(coordinator),
            tracer=tracer,
            regions=regions,
        )
        self._origin = ReportedOrigin(built.origin, outbox, clock=clock, bounds=bounds)
        path = WorkerPath(coordinator, self._origin)
        options: HandlerSettings = {
            "clock": clock,
            "observer": ReportedRequests(request_log, outbox),
            "log": structlog.get_logger("shadeproxy.s3"),
            "base_domains": tuple(domain.lower() for domain in settings.s3.domains),
            "trailed_budget_bytes": trailed_budget_bytes(settings),
            "verbose": authorizer.verbose,
            "bounds": bounds,
            "instance": instance,
        }
        self.handler = (
            ForwardHandler(reads, path, authenticator, **options)
            if tracer is None
            else OtelForwardHandler(reads, path, authenticator, tracer=tracer, **options)
        )
        self.server = WorkerForwarder(self.handler, authorizer)
        self.hear = coordinator.hear
        """Process a frame from the coordinator."""

    async def aclose(self) -> None:
        """End the requests under way, and close the connections to the origin."""
        await self.server.aclose()
        await self._origin.aclose()
