import json
import re

import pytest
from aiohttp.test_utils import TestClient, TestServer

from shadeproxy.api.control.app import make_control_app
from shadeproxy.api.control.context import Access
from shadeproxy.core.errors import Conflict
from shadeproxy.core.types import JobContext, Source


async def test_probes(client, backend):
    assert await (await client.get("/healthz")).json() == {"status": "ok"}
    assert (await client.get("/readyz")).status == 200
    backend.readiness = "draining"
    answer = await client.get("/readyz")
    assert answer.status == 503
    assert await answer.json() == {"status": "draining"}
    assert (await client.get("/healthz")).status == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_heads_are_answered_as_gets_without_body(client, guarded, path):
    got, head = await client.get(path), await client.head(path)
    assert (head.status, head.headers["Content-Type"]) == (200, got.headers["Content-Type"])
    assert int(head.headers["Content-Length"]) > 0
    assert await head.read() == b""
    assert (await guarded.head(path)).status == (401 if path == "/metrics" else 200)


@pytest.mark.parametrize("path", ["/v1/stats", "/metrics", "/v1/jobs", "/v1/jobs/mine"])
async def test_reads_that_wait_are_counted_before_an_answer_shows_them(client, context, path):
    await client.put("/v1/jobs/mine", json={})
    context.count_reads = lambda: context.stats.record_read("train", Source.RAM, 10)
    await client.get(path)
    assert context.stats.totals().requests == 1


async def test_stats_are_the_snapshot(client, context):
    context.stats.record_read("train", Source.RAM, 10, JobContext("resnet", 3))
    snapshot = json.loads(json.dumps(context.stats.snapshot()))
    assert await (await client.get("/v1/stats")).json() == snapshot | {"orders": {}, "sharing": {}}


async def test_metrics_are_prometheus_text(client, context):
    context.stats.record_read("train", Source.RAM, 10)
    answer = await client.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert 'shadeproxy_bucket_requests_total{bucket="train"} 1.0' in await answer.text()


async def test_info_tells_the_sdk_where_to_read(client, context):
    context.clock.advance(7.5)
    info = await (await client.get("/v1/info")).json()
    assert info == {
        "version": "9.9.9",
        "uptime_s": 7.5,
        "s3_endpoint": "http://127.0.0.1:9000",
        "page_size": 4 << 20,
    }


async def test_openapi_lists_exactly_the_routes(client):
    document = await (await client.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    described = {
        (method.upper(), path) for path, operations in document["paths"].items() for method in operations
    }
    served = set()
    for resource in client.app.router.resources():
        for route in resource:
            served.add((route.method, resource.canonical))
    assert described == served
    assert ("POST", "/v1/jobs/{job}/scores") in described
    assert {("POST", "/v1/pin"), ("POST", "/v1/unpin"), ("POST", "/v1/warm")} <= described


async def test_openapi_references_resolve_and_parameters_are_declared(client):
    document = await (await client.get("/openapi.json")).json()
    for reference in re.findall(r'"\$ref": ?"#/([^"]+)"', json.dumps(document)):
        target = document
        for step in reference.split("/"):
            target = target[step]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            declared = [item["name"] for item in operation["parameters"] if item["in"] == "path"]
            assert declared == re.findall(r"{(\w+)}", path)
            assert operation["responses"]
    scores, job, dataset = (
        document["paths"][path]
        for path in ("/v1/jobs/{job}/scores", "/v1/jobs/{job}", "/v1/datasets/{dataset}")
    )
    fields = [
        [item["name"] for item in one["parameters"] if item["in"] == "header"]
        for one in (scores["post"], job["delete"], dataset["put"], job["put"])
    ]
    assert fields == [["x-shade-manifest"]] * 3 + [[]]


async def test_openapi_says_which_calls_may_find_no_room_for_new_hints(client):
    paths = (await (await client.get("/openapi.json")).json())["paths"]
    found = {
        (method, path) for path, calls in paths.items() for method, call in calls.items()
        if "507" in call["responses"]
    }  # fmt: skip
    assert found == {
        ("put", "/v1/datasets/{dataset}"),
        ("put", "/v1/jobs/{job}"),
        ("post", "/v1/jobs/{job}/scores"),
    }


async def test_statistics_and_metrics_show_the_memory_of_hints(client, job):
    shown = (await (await client.get("/v1/stats")).json())["gauges"]["hint_bytes"]
    assert shown > 10 * 64
    assert f"shadeproxy_hint_bytes {shown}" in await (await client.get("/metrics")).text()


async def test_unknown_paths_and_methods_are_errors_of_the_same_form(client, refused):
    text = await refused(await client.get("/v1/nothing"), 404, "not_found")
    assert "GET /v1/nothing" in text
    assert "/openapi.json" in text
    answer = await client.delete("/v1/stats")
    await refused(answer, 405, "method_not_allowed")
    assert answer.headers["Allow"] == "GET"


# ------------------------------------------------------------------ who may call

EVERY_CALL = [
    "/metrics",
    "/v1/stats",
    "/v1/history",
    "/v1/info",
    "/v1/jobs",
    "/openapi.json",
    "/v1/objects/b/k",
    "/x",
]


@pytest.mark.parametrize("path", EVERY_CALL)
async def test_with_a_token_every_call_needs_it(guarded, refused, path):
    answer = await guarded.get(path)
    assert "Authorization: Bearer TOKEN" in await refused(answer, 401, "unauthorized")
    assert "Basic" in answer.headers["WWW-Authenticate"]
    for wrong in (
        "Bearer no",
        "Bearer ",
        "Bearer s3cret2",
        "Token s3cret",
        "Basic !!",
        "Basic czNjcmV0",
        "Basic \u0661",
    ):
        text = await refused(await guarded.get(path, headers={"Authorization": wrong}), 401, "unauthorized")
        assert "the control token is wrong" in text
        assert "s3cret" not in text


async def test_probes_are_open(guarded):
    assert (await guarded.get("/healthz")).status == 200
    assert (await guarded.get("/readyz")).status == 200
    assert (await guarded.get("/healthz", headers={"Host": "evil.example"})).status == 200


@pytest.mark.parametrize("field", ["Bearer s3cret", "bearer s3cret", "Basic YW55Om15LXMzY3JldA=="])
async def test_the_token_opens_as_bearer_or_as_a_browsers_password(context, guarded, field):
    if field.startswith("Basic"):
        field = "Basic YW55OnMzY3JldA=="  # "any:s3cret" in base64
    answer = await guarded.get("/v1/stats", headers={"Authorization": field, "Host": "proxy.cluster:9001"})
    assert answer.status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:9001", "localhost.evil.example", "[bad", "", "a@localhost", "127.0.0.1.x"],
)
async def test_without_a_token_a_rebound_name_is_refused(client, refused, host):
    text = await refused(await client.get("/v1/stats", headers={"Host": host}), 403, "access_denied")
    assert "set a control token" in text


@pytest.mark.parametrize(
    "host", ["localhost:9001", "shade.localhost", "LocalHost.", "127.0.0.1", "[::1]:9001", "10.0.0.7:9001"]
)
async def test_without_a_token_addresses_and_localhost_are_served(client, host):
    assert (await client.get("/v1/stats", headers={"Host": host})).status == 200


async def test_an_allowed_name_is_served(context):
    from dataclasses import replace

    app = make_control_app(replace(context, allowed_hosts=frozenset({"proxy"})))
    async with TestClient(TestServer(app)) as client:
        assert (await client.get("/v1/stats", headers={"Host": "proxy:9001"})).status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
async def test_a_page_of_another_origin_changes_nothing(client, refused, backend, origin):
    body = {"uri": "s3://b/"}
    answer = await client.post("/v1/purge", json=body, headers={"Origin": origin})
    assert "another origin" in await refused(answer, 403, "access_denied")
    assert backend.purges == []
    # A browser that sends no Origin still says in Sec-Fetch-Site that the page is from another site.
    for site in ("cross-site", "same-site"):
        answer = await client.post("/v1/purge", json=body, headers={"Sec-Fetch-Site": site})
        assert "another origin" in await refused(answer, 403, "access_denied")
    assert backend.purges == []
    own = f"http://127.0.0.1:{client.port}"
    assert (await client.post("/v1/purge", json=body, headers={"Origin": own})).status == 200


def test_the_context_does_not_show_its_token(context):
    from dataclasses import replace

    assert "s3cret" not in repr(replace(context, access=Access("s3cret")))


async def test_the_level_of_the_log_is_shown_and_changed(client, backend):
    assert await (await client.get("/v1/log-level")).json() == {"level": "info"}
    answer = await client.put("/v1/log-level", json={"level": "debug"})
    assert (answer.status, await answer.json()) == (200, {"level": "debug"})
    assert backend.log_level == "debug"


@pytest.mark.parametrize("body", [{}, {"level": "loud"}, {"level": "info", "for_s": 3}, {"level": 1}])
async def test_a_level_that_is_none_changes_nothing(client, refused, backend, body):
    answer = await client.put("/v1/log-level", json=body)
    await refused(answer, 400, "invalid_request")
    assert backend.log_level == "info"


async def test_a_level_that_does_not_go_with_the_settings_is_a_conflict(client, refused, backend):
    backend.refusal = Conflict("not with debug", hint="ask for info")
    answer = await client.put("/v1/log-level", json={"level": "debug"})
    assert "ask for info" in await refused(answer, 409, "conflict")


async def test_a_ready_proxy_says_what_it_cannot_do_now(client, backend):
    backend.warnings = told = ["tier disk takes no more pages"]
    answer = await client.get("/readyz")
    # "remarks" is the former name of "warnings", kept for one release.
    assert (answer.status, await answer.json()) == (
        200,
        {"status": "ready", "warnings": told, "remarks": told},
    )
    backend.readiness = "draining"
    assert await (await client.get("/readyz")).json() == {"status": "draining"}


async def test_openapi_marks_the_former_name_of_the_warnings_as_deprecated(client):
    document = await (await client.get("/openapi.json")).json()
    properties = document["components"]["schemas"]["Readiness"]["properties"]
    assert [name for name, schema in properties.items() if schema.get("deprecated")] == ["remarks"]
    assert "next release" in properties["remarks"]["description"]
    assert properties["warnings"]["items"] == properties["remarks"]["items"] == {"type": "string"}


async def test_the_history_has_a_value_of_each_series_for_each_time(client, context):
    context.history.tick()
    for _ in range(3):
        context.stats.record_reads("train", Source.RAM, 5, 50)
        context.clock.advance(5.0)
        context.history.tick()
    answer = await (await client.get("/v1/history")).json()
    assert (answer["interval_s"], len(answer["times"])) == (5.0, 3)
    assert answer["series"]["hits_ram_per_s"] == [1.0, 1.0, 1.0]
    later = await (await client.get(f"/v1/history?since={answer['times'][1]}")).json()
    assert later["times"] == answer["times"][2:]


@pytest.mark.parametrize("query", ["since=yesterday", "until=3", "since=1&since=2"])
async def test_a_wrong_query_of_the_history_is_told(client, refused, query):
    text = await refused(await client.get(f"/v1/history?{query}"), 400, "invalid_request")
    assert "the query is not right" in text
    assert "parameters: since" in text
