"""The answer of a worker to a read that got no byte in time: the same 503 that the coordinator would send."""

from shadeproxy.api.s3.errors import answer_error
from shadeproxy.api.s3.exchange import Asked, ReadReports, with_own
from shadeproxy.api.s3.lane_read import LaneOutlet
from shadeproxy.api.s3.response import connection_fields, render_head
from shadeproxy.core.clock import Clock
from shadeproxy.core.deadline import Deadline, ReadBounds
from shadeproxy.core.tracing import next_request_id
from shadeproxy.core.types import Source

_GRACE_S = 2.0


class TimeoutAnswers:
    """Answers reads whose time is over. ``bounds``: the time limits of each read. ``reports``: gets the
    report when a read has ended.
    """

    def __init__(self, reports: ReadReports, *, clock: Clock, bounds: ReadBounds) -> None:
        self._reports = reports
        self._clock = clock
        self._bounds = bounds
        self.relayed_s = bounds.first_byte_s + bounds.window_s + _GRACE_S
        """Seconds after which a relayed read without an answer shows that the coordinator is stuck. It is the
        sum of both limits, because a read whose body must be verified before it is sent may use both.
        """

    def deadline(self) -> Deadline:
        """Return the deadline of a read that begins now."""
        return Deadline(self._clock, self._bounds)

    def overdue(self, deadline: Deadline) -> bool:
        """Return True if a deadline passed so long ago that a coordinator that works would have answered."""
        return deadline.left_s < -_GRACE_S

    def send(
        self, outlet: LaneOutlet, asked: Asked, request_id: str = "", *, deadline: Deadline | None = None
    ) -> None:
        """Send the 503, and report the read. ``deadline``: the deadline of the read; None if the read was
        relayed.
        """
        waited_s = self.relayed_s if deadline is None else self._bounds.first_byte_s - deadline.left_s
        call, request_id = asked.call, request_id or next_request_id()
        error = self.deadline().exceeded()
        answer = answer_error(error, resource=call.request.raw_path, request_id=request_id)
        has_body = call.request.method != "HEAD"
        fields = [*answer.headers, ("Content-Type", "application/xml")]
        if has_body:
            fields.append(("Content-Length", str(len(answer.body))))
        own = with_own(fields, request_id=request_id, now_s=self._clock.now_s(), source=Source.BYPASS)
        shown, _, _ = connection_fields(own, has_body=has_body, keep=asked.keep_alive, http_11=True)
        body = answer.body if has_body else b""
        outlet.write_pieces((render_head(answer.status, shown), body))
        self._reports.report_hit(
            call, answer.status, Source.BYPASS, len(body), request_id=request_id, duration_s=waited_s
        )
