"""The access log: one line for each answered request, alike in every process.

A process logs what it answered itself: a worker its hits, the coordinator also what workers relay to it.
"""

import structlog

from shadeproxy.core.types import JobContext, Source
from shadeproxy.telemetry.log import ACCESS_LOG

_log = structlog.get_logger(ACCESS_LOG)


class RequestLog:
    """Implements api/s3 ``RequestObserver`` and ``JobObserver``. ``access_log`` may change at any time."""

    def __init__(self, *, access_log: bool) -> None:
        self.access_log = access_log

    def on_job(self, job: JobContext) -> None:
        """Do nothing: a worker sends its reads to the coordinator, and each read names its job."""

    def on_request(
        self,
        *,
        operation: str,
        bucket: str,
        status: int,
        source: Source,
        bytes_sent: int,
        duration_s: float,
        job: JobContext | None,  # noqa: ARG002 - as RequestObserver
        request_id: str,
        origin_request_id: str = "",
    ) -> None:
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
