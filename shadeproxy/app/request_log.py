"""The access log: one line for each answered request, alike in every process.

A process logs what it answered itself: a worker its hits, the coordinator also what workers relay to it.
"""

from typing import Unpack

import structlog

from shadeproxy.api.s3.exchange import EndedRequest
from shadeproxy.core.types import JobContext
from shadeproxy.telemetry.log import ACCESS_LOG

_log = structlog.get_logger(ACCESS_LOG)


class RequestLog:
    """Implements api/s3 ``RequestObserver`` and ``JobObserver``. ``access_log`` may change at any time."""

    def __init__(self, *, access_log: bool) -> None:
        self.access_log = access_log

    def on_job(self, job: JobContext) -> None:
        """Do nothing: a worker sends its reads to the coordinator, and each read names its job."""

    def on_request(self, **request: Unpack[EndedRequest]) -> None:
        if self.access_log:
            origin_request_id = request.get("origin_request_id")
            _log.info(
                "request",
                request_id=request["request_id"],
                operation=request["operation"],
                bucket=request["bucket"],
                status=request["status"],
                source=request["source"].value,
                bytes=request["bytes_sent"],
                ms=round(request["duration_s"] * 1000, 2),
                **({"origin_request_id": origin_request_id} if origin_request_id else {}),
            )
