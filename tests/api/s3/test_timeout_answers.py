"""The 503 of a worker whose coordinator does not answer.

It is sent like any other answer, and counted with its duration.
"""

from types import SimpleNamespace

import pytest
import structlog

from shadeproxy.api.s3.exchange import ReadReports
from shadeproxy.api.s3.timeout_answers import TimeoutAnswers
from shadeproxy.app.request_log import RequestLog
from shadeproxy.core.deadline import ReadBounds
from shadeproxy.core.types import Source
from tests.support.clock import ManualClock


class Outlet:
    """A connection that records the bytes written."""

    def __init__(self):
        self.sent = b""

    def write_pieces(self, pieces):
        self.sent += b"".join(pieces)


@pytest.fixture
def log():
    return RequestLog(access_log=False)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def late(log, clock):
    reports = ReadReports(log, structlog.get_logger(), verbose=False)
    return TimeoutAnswers(reports, clock=clock, bounds=ReadBounds(first_byte_s=5.0, window_s=7.0))


def asked(method="GET"):
    request = SimpleNamespace(method=method, raw_path="/b/k", bucket="b", job=None)
    operation = SimpleNamespace(name="GetObject" if method == "GET" else "HeadObject")
    return SimpleNamespace(call=SimpleNamespace(request=request, operation=operation), keep_alive=True)


def test_a_read_that_got_no_byte_is_counted_with_its_wait(late, log, clock):
    deadline, outlet = late.deadline(), Outlet()
    clock.advance(6.5)
    late.send(outlet, asked(), deadline=deadline)
    assert outlet.sent.startswith(b"HTTP/1.1 503 ")
    assert b"<Code>SlowDown</Code>" in outlet.sent
    (row,) = log.counts.take()
    assert row[:4] == ("GetObject", 503, Source.BYPASS, 1)
    assert row.seconds == pytest.approx(6.5)


def test_a_relayed_read_has_waited_as_long_as_it_may(late, log):
    outlet = Outlet()
    late.send(outlet, asked("HEAD"))
    assert outlet.sent.endswith(b"\r\n\r\n")
    (row,) = log.counts.take()
    assert row[:4] == ("HeadObject", 503, Source.BYPASS, 1)
    assert row.seconds == late.relayed_s == 14.0
