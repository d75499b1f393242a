"""Otel spans as the OpenTelemetry SDK sends them: their parents, failures and resource, and a collector that
does not answer.
"""

import logging
import os
import socket
import sys
import threading

import pytest
import structlog

from shadeproxy.core.clock import SystemClock
from shadeproxy.core.errors import ConfigError
from tests.support.clock import ManualClock
from tests.support.otel import open_tracer, record_spans

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from shadeproxy.telemetry import otel_sdk
from shadeproxy.telemetry.otel_sdk import RareWarnings, SdkTracer, make_exporter

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = PARENT[:-1] + "0"


@pytest.fixture
def recorded(monkeypatch):
    return record_spans(monkeypatch)


@pytest.fixture
def closed_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]  # The port is taken, and does not listen.


def test_a_request_to_the_origin_is_a_child_of_the_served_request(recorded):
    with open_tracer() as tracer:
        served = tracer.begin_served("S3", {})
        asked = tracer.begin_asked("origin GET", {"aws.s3.bucket": "b"}, parent=served)
        asked.end()
        served.name("GetObject")
        served.note({"http.response.status_code": 200})
        served.end()
    child, parent = recorded.all()
    assert (child.name, child.kind.name, child.attributes) == (
        "origin GET",
        "CLIENT",
        {"aws.s3.bucket": "b"},
    )
    assert (parent.name, parent.kind.name) == ("GetObject", "SERVER")
    assert parent.attributes == {"http.response.status_code": 200}
    assert parent.parent is None
    assert child.parent.span_id == parent.context.span_id
    assert child.context.trace_id == parent.context.trace_id


def test_the_client_s_span_is_the_parent(recorded):
    with open_tracer() as tracer:
        tracer.begin_served("S3", {"traceparent": PARENT, "tracestate": "a=b"}).end()
    span = recorded.one("SERVER")
    assert f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}" == PARENT[3:-3]
    assert span.context.trace_state.get("a") == "b"


def test_a_client_that_does_not_sample_is_followed(recorded):
    with open_tracer() as tracer:
        served = tracer.begin_served("S3", {"traceparent": UNSAMPLED})
        tracer.begin_asked("origin GET", {}, parent=served).end()
        served.end()
    assert recorded.all() == []


@pytest.mark.parametrize("field", ["", "nonsense", "00-" + "0" * 32 + "-b7ad6b7169203331-01", "x" * 5000])
def test_a_traceparent_that_is_none_begins_a_trace(recorded, field):
    with open_tracer() as tracer:
        tracer.begin_served("S3", {"traceparent": field}).end()
    assert recorded.one("SERVER").parent is None


def test_a_request_without_a_parent_begins_a_trace_even_inside_another_span(recorded):
    from opentelemetry import trace

    with open_tracer() as tracer, trace.use_span(tracer.begin_served("other", {}).inner):
        tracer.begin_asked("origin GET", {}, parent=None).end()
        tracer.begin_served("S3", {}).end()
    assert [span.parent for span in recorded.all()] == [None, None]


def test_a_failure_is_marked(recorded):
    with open_tracer() as tracer:
        tracer.begin_asked("origin GET", {}, parent=None).end("OriginUnavailable")
        tracer.begin_asked("origin GET", {}, parent=None).end()
    failed, well = recorded.all()
    assert failed.attributes["error.type"] == "OriginUnavailable"
    assert (failed.status.status_code.name, well.status.status_code.name) == ("ERROR", "UNSET")


def test_a_request_may_have_begun_before(recorded):
    with open_tracer() as tracer:
        tracer.begin_asked("origin GET", {}, parent=None, age_s=1000.0).end()
    span = recorded.one("CLIENT")
    assert span.end_time - span.start_time >= 1000 * 10**9


def test_the_resource_names_the_proxy_and_the_process(recorded):
    with open_tracer() as tracer:
        tracer.begin_served("S3", {}).end()
    attributes = recorded.one("SERVER").resource.attributes
    assert attributes["service.name"] == "shadeproxy"
    assert attributes["service.version"] == "1.2"
    assert attributes["process.pid"] == os.getpid()


def test_standard_variables_name_the_service(recorded, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "cache-of-team-a")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    with open_tracer() as tracer:
        tracer.begin_served("S3", {}).end()
    attributes = recorded.one("SERVER").resource.attributes
    assert attributes["service.name"] == "cache-of-team-a"
    assert attributes["deployment.environment"] == "test"


def test_the_standard_sampler_applies(recorded, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with open_tracer() as tracer:
        tracer.begin_served("S3", {}).end()
    assert recorded.all() == []


@pytest.fixture
def made(monkeypatch):
    """Return the arguments with which the exporter of the OpenTelemetry SDK was made."""
    given = {}
    monkeypatch.setattr(otel_sdk, "OTLPSpanExporter", lambda **arguments: given.update(arguments))
    return given


def test_the_endpoint_of_the_settings_gets_the_path_of_traces(made):
    make_exporter("http://collector:4318", "api-key=abc,tenant=t%201")
    assert made == {
        "endpoint": "http://collector:4318/v1/traces",
        "headers": {"api-key": "abc", "tenant": "t 1"},
    }


def test_without_settings_the_standard_variables_name_collector_and_headers(made):
    make_exporter("", None)
    assert made == {"endpoint": None, "headers": None}


def test_headers_that_are_none_are_refused_without_their_text(made):
    with pytest.raises(ConfigError) as refused:
        make_exporter("", "tenant=x,5ecret")
    assert "telemetry.otel.headers" in str(refused.value)
    assert "5ecret" not in str(refused.value)


def test_a_variable_that_the_sdk_refuses_is_a_wrong_setting(monkeypatch):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    with pytest.raises(ConfigError, match=r"telemetry\.otel: .*max_queue_size"):
        SdkTracer("", None, version="1", clock=SystemClock())
    assert logging.getLogger("opentelemetry").propagate


def test_a_collector_that_is_down_loses_spans_and_nothing_else(monkeypatch, closed_port):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    monkeypatch.setattr(otel_sdk, "_LAST_SPANS_S", 0.1)
    with structlog.testing.capture_logs() as lines:
        tracer = SdkTracer(f"http://127.0.0.1:{closed_port}", None, version="1", clock=SystemClock())
        for _ in range(1000):
            tracer.begin_served("S3", {}).end()
        tracer.close()
    assert len(lines) <= 1  # At most one warning is logged in a minute.
    assert [one.name for one in threading.enumerate() if one.name.startswith(("Otel", "otel"))] == []


def test_the_end_does_not_wait_for_a_collector_that_hangs(monkeypatch):
    """The end of the proxy does not wait for a collector that hangs. The sending thread stays in its request.
    ``close`` returns, and tells the exporter to give up.
    """
    given_up, asked = threading.Event(), threading.Event()

    class Hanging:
        def export(self, _spans):
            asked.set()
            given_up.wait()

        def shutdown(self):
            given_up.set()

    monkeypatch.setattr(otel_sdk, "make_exporter", lambda _endpoint, _headers: Hanging())
    monkeypatch.setattr(otel_sdk, "_LAST_SPANS_S", 0.05)
    tracer = SdkTracer("", None, version="1", clock=SystemClock())
    tracer.begin_served("S3", {}).end()
    tracer.close()
    assert asked.is_set()
    assert given_up.is_set()


def test_threads_switch_sooner_while_a_batch_is_encoded(monkeypatch):
    """Threads switch more often while a batch is encoded. Until a switch comes, the event loop waits for the
    interpreter.
    """
    during = []

    class Encoding:
        def export(self, _spans):
            during.append(sys.getswitchinterval())

        def shutdown(self):
            during.append(None)

    monkeypatch.setattr(otel_sdk, "make_exporter", lambda _endpoint, _headers: Encoding())
    tracer = SdkTracer("", None, version="1", clock=SystemClock())
    before_s = sys.getswitchinterval()
    tracer.begin_served("S3", {}).end()
    tracer.close()
    shorter_s, ended = during
    assert shorter_s < before_s == sys.getswitchinterval()
    assert ended is None


class TestRareWarnings:
    @pytest.fixture
    def clock(self):
        clock = ManualClock()
        warnings = RareWarnings(clock)
        warnings.attach()
        yield clock
        warnings.detach()

    def test_one_warning_a_minute_that_counts_the_others(self, clock):
        sdk = logging.getLogger("opentelemetry.sdk.trace")
        with structlog.testing.capture_logs() as lines:
            for _ in range(5):
                sdk.warning("cannot send to %s", "there")
            clock.advance(61)
            sdk.error("again")
        assert [(line["reason"], line["left_out"]) for line in lines] == [
            ("cannot send to there", 0),
            ("again", 4),
        ]
        assert {line["event"] for line in lines} == {"otel warning"}

    @pytest.mark.usefixtures("clock")
    def test_the_sdk_s_own_lines_are_not_in_the_log(self, monkeypatch):
        records = []
        root = logging.Handler()
        root.emit = records.append
        monkeypatch.setattr(logging.getLogger(), "handlers", [root])
        logging.getLogger("opentelemetry.exporter").warning("Transient error")
        assert "opentelemetry.exporter" not in {record.name for record in records}

    @pytest.mark.usefixtures("clock")
    def test_a_header_that_cannot_be_read_is_not_shown(self, monkeypatch):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "5ecret")
        with structlog.testing.capture_logs() as lines:
            make_exporter("http://127.0.0.1:1", None).shutdown()
        assert len(lines) == 1
        assert "5ecret" not in str(lines)
