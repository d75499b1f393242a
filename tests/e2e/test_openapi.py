"""The control listener against its own /openapi.json. Requests that schemathesis generates get the documented
answers. No request gets a 5xx that is the proxy's fault.

``make test`` runs the test derandomised and bounded. ``make fuzz-control EXAMPLES=2000`` runs it for longer.
"""

import importlib
import json
import os
import subprocess
import sys
import urllib.request

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from shadeproxy.api.control.openapi import EXAMPLES as EXAMPLES_IN_ORDER

schemathesis = pytest.importorskip("schemathesis", reason="pip install --group test")

EXAMPLES = int(os.environ.get("SHADEPROXY_CONTROL_EXAMPLES", "6"))
LONG = EXAMPLES > 6
ORIGINS = {"origin_refused", "origin_failed", "origin_unavailable", "origin_throttled", "origin_slow"}
"""Codes of the 5xx answers for which the origin is responsible. Only calls that list or read the origin may
give them.
"""


USE = """
import sys
from made import Client
from made.api.jobs import list_jobs, put_job
from made.api.proxy import readyz, stats
from made.models import JobSpec

with Client(base_url=sys.argv[1]) as client:
    print(readyz.sync(client=client).status)
    print(put_job.sync("generated", client=client, body=JobSpec(world_size=1)).world_size)
    print(*[one.job for one in list_jobs.sync(client=client).jobs if one.job == "generated"])
    print(stats.sync(client=client).totals.requests >= 0)
"""


@pytest.fixture(scope="module")
def proxy(serve_for_module, tmp_path_factory):
    buckets = tmp_path_factory.mktemp("buckets")
    (buckets / "data").mkdir()
    for name in ("a", "b", "c"):
        (buckets / "data" / name).write_bytes(name.encode() * 1000)
    proxy = serve_for_module(origin__kind="file", origin__path=str(buckets))
    # Make a dataset, a job and an object with short names that the generated requests can hit.
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


def undescribed(value, schema, components, place="answer"):
    """Yield the paths of all fields in ``value`` that ``schema`` does not describe."""
    if (reference := schema.get("$ref")) is not None:
        schema = components[reference.rpartition("/")[2]]
    if isinstance(value, dict):
        named, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name, inner in value.items():
            if name in named:
                yield from undescribed(inner, named[name], components, f"{place}.{name}")
            elif isinstance(others, dict):
                yield from undescribed(inner, others, components, f"{place}.{name}")
            elif schema.get("type") == "object" and not named:
                return  # the schema permits any object
            elif not schema.get("anyOf"):
                yield f"{place}.{name}"
    elif isinstance(value, list) and "items" in schema:
        for number, inner in enumerate(value):
            yield from undescribed(inner, schema["items"], components, f"{place}[{number}]")


@pytest.mark.parametrize("path", ["/v1/stats", "/v1/info", "/v1/doctor", "/v1/jobs"])
def test_every_field_of_an_answer_is_described(proxy, path):
    proxy.client().get_object(Bucket="data", Key="a")["Body"].read()
    answer, described = proxy.get(path), document(proxy)
    content = described["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]
    assert list(undescribed(answer, content["schema"], described["components"]["schemas"])) == []
    assert answer.keys() >= {"/v1/stats": {"totals", "origin"}}.get(path, set())


def test_every_call_has_a_tag_and_a_new_proxy_takes_every_example(serve, tmp_path):
    (tmp_path / "buckets" / "train" / "imagenet").mkdir(parents=True)
    for name in ("0", "1"):
        (tmp_path / "buckets" / "train" / "imagenet" / name).write_bytes(b"x")
    proxy = serve(origin__kind="file", origin__path=str(tmp_path / "buckets"))
    calls = document(proxy)["paths"]
    assert all(len(one["tags"]) == 1 for operations in calls.values() for one in operations.values())
    with_body = {
        (method.upper(), path): one["requestBody"]["content"].get("application/json", {}).get("example")
        for path, operations in calls.items()
        for method, one in operations.items()
        if "requestBody" in one
    }
    assert {call for call, example in with_body.items() if example is None} == {
        ("POST", "/v1/cluster/drain"),
        ("POST", "/v1/cluster/forget"),
    }
    for method, path in EXAMPLES_IN_ORDER:
        filled = path.format(dataset="imagenet", job="resnet50", epoch=1)
        body = json.dumps(with_body[method, path]).encode()
        request = urllib.request.Request(proxy.control + filled, data=body, method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status < 300, (method, path)


def test_a_generated_client_works(proxy, tmp_path):
    pytest.importorskip("openapi_python_client", reason="pip install --group test")
    (tmp_path / "openapi.json").write_text(json.dumps(document(proxy)))
    command = [
        sys.executable,
        "-m",
        "openapi_python_client",
        "generate",
        "--path",
        "openapi.json",
        "--meta",
        "none",
    ]
    made = subprocess.run(
        [*command, "--output-path", "made"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stdout + made.stderr
    # schemathesis cannot generate some kinds of content, such as JSON lines. Calls that accept only those are
    # not tested.
    kinds = {"application/json", "application/octet-stream"}
    wanted = {
        one["operationId"]
        for operations in document(proxy)["paths"].values()
        for one in operations.values()
        if "requestBody" not in one or kinds & one["requestBody"]["content"].keys()
    }
    assert {path.stem for path in (tmp_path / "made" / "api").rglob("*.py")} >= wanted
    ended = subprocess.run(
        [sys.executable, "-c", USE, proxy.control], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["ready", "1", "generated", "True"]
