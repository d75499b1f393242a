"""The control listener against its own description. Requests that schemathesis makes from /openapi.json are
answered as it says, and never with a 5xx that is the proxy's own fault.

``make test`` runs it derandomised and bounded; ``make fuzz-control EXAMPLES=2000`` runs it for longer.
"""

import importlib
import json
import os
import urllib.request

import pytest
from hypothesis import HealthCheck, Phase, given, settings

schemathesis = pytest.importorskip("schemathesis", reason="pip install --group test")

EXAMPLES = int(os.environ.get("SHADEPROXY_CONTROL_EXAMPLES", "6"))
LONG = EXAMPLES > 6
ORIGINS = {"origin_refused", "origin_failed", "origin_unavailable", "origin_throttled", "origin_slow"}
"""Codes of 5xx answers that are the origin's fault. Only calls that list or read the origin may give them."""


@pytest.fixture(scope="module")
def proxy(serve_for_module, tmp_path_factory):
    buckets = tmp_path_factory.mktemp("buckets")
    (buckets / "data").mkdir()
    for name in ("a", "b", "c"):
        (buckets / "data" / name).write_bytes(name.encode() * 1000)
    proxy = serve_for_module(origin__kind="file", origin__path=str(buckets))
    # Make a dataset, a job and an object whose names the generated requests may hit.
    put(proxy, "/v1/datasets/0", {"bucket": "data", "prefix": ""})
    put(proxy, "/v1/jobs/0", {"dataset": "0"})
    return proxy


def put(proxy, path, body):
    request = urllib.request.Request(proxy.control + path, data=json.dumps(body).encode(), method="PUT")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


def document(proxy):
    with urllib.request.urlopen(f"{proxy.control}/openapi.json", timeout=10) as answer:
        return json.load(answer)


def test_every_call_answers_as_it_is_described(proxy):
    described_by = importlib.import_module("schemathesis.specs.openapi.checks")
    checks = [
        described_by.status_code_conformance,
        described_by.content_type_conformance,
        described_by.response_schema_conformance,
    ]
    schema = schemathesis.openapi.from_dict(document(proxy))
    seen = []
    for found in schema.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=EXAMPLES,
            derandomize=not LONG,
            database=None,
            deadline=None,
            phases=[Phase.explicit, Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def answers_as_described(case):
            response = case.call(base_url=proxy.control, timeout=60)
            if response.status_code >= 500:
                assert response.json()["error"]["code"] in ORIGINS, (response.status_code, response.text)
            case.validate_response(response, checks=checks)

        answers_as_described()
        seen.append(f"{operation.method.upper()} {operation.path}")
    described = document(proxy)["paths"]
    assert sorted(seen) == sorted(f"{m.upper()} {path}" for path, calls in described.items() for m in calls)
    log = proxy.log.read_text()
    assert "control call failed" not in log
    assert "batch failed" not in log
    assert proxy.get("/healthz") == {"status": "ok"}
