"""Counts each answered request, in the same way in every process. If the access log is on, also logs the
request in one line.

Each process counts and logs the requests that it answered itself: a worker its hits, the coordinator also the
requests that workers relay to it. Hits of the request cache are not reported here, because that cache counts
them.
"""

from bisect import bisect_left
from typing import Unpack

import structlog

from shadeproxy.api.s3.exchange import EndedRequest
from shadeproxy.core.types import JobContext, Source
from shadeproxy.engine.worker_reads import WorkerReads
from shadeproxy.telemetry.log import ACCESS_LOG
from shadeproxy.telemetry.requests import REQUEST_BOUNDS_S, RequestCounts

_log = structlog.get_logger(ACCESS_LOG)


class RequestLog:
    """Implements api/s3 ``RequestObserver`` and ``JobObserver``. ``counts``: counts each request.
    ``access_log`` may change at any time.
    """

    def __init__(self, *, access_log: bool, counts: RequestCounts | None = None) -> None:
        self.access_log = access_log
        self.counts = RequestCounts() if counts is None else counts
        self._groups = self.counts.groups

    def on_job(self, job: JobContext) -> None:
        """Do nothing. A worker sends its reads to the coordinator, and each of them names its job."""

    def on_forwarded(self, request: EndedRequest) -> None:
        """Do nothing. Workers report forwarded requests to the coordinator, which counts them."""

    def on_request(self, **request: Unpack[EndedRequest]) -> None:
        operation, status, source = request["operation"], request["status"], request["source"]
        group = self._groups.get((operation, status, source))  # type: ignore[call-overload] # equal to the key
        if group is None:
            group = self.counts.group(operation, status, source)
        # These lines repeat ``RequestGroup.observe``, to save a call for each request.
        group.requests += 1
        group.seconds += request["duration_s"]
        group.received_bytes += request.get("bytes_received", 0)
        group.buckets[bisect_left(REQUEST_BOUNDS_S, request["duration_s"])] += 1
        if source is Source.BYPASS:
            self.on_forwarded(request)
        elif (job := request["job"]) is not None:
            self.on_job(job)
        if self.access_log:
            self._write(request)

    def _write(self, request: EndedRequest) -> None:
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


class WorkerRequestLog(RequestLog):
    """The request log of a worker. It also tells the coordinator which jobs read objects of other proxies.
    ``reader``: has the access log, by which the coordinator learns of these jobs.
    """

    def __init__(self, reader: WorkerReads, *, access_log: bool) -> None:
        super().__init__(access_log=access_log)
        self._reader = reader

    def on_forwarded(self, request: EndedRequest) -> None:
        if request.get("relayed_to") and (job := request["job"]) is not None:
            self._reader.note_job(request["bucket"], job)
