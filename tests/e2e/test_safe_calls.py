"""No GET changes anything. The test sends every GET of /openapi.json with every query parameter that any call
accepts or once accepted.
"""

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote, urlencode

import numpy as np
import pytest

from tests.support.served import wait_for

COUNT = 12
STILL_S = 3.0
"""Seconds without a change after which the state counts as settled. The proxy writes its state about once a
second.
"""
EPOCH, OTHER = 3, 4
NAMES = {"dataset": "d", "job": "j", "rank": "0", "epoch": str(EPOCH), "bucket": "data", "key": "k03"}
VALUES = {
    "epoch": [str(EPOCH), str(OTHER)],
    "mean_loss": ["77"],
    "rank": ["0"],
    "offset": ["0"],
    "position": ["5"],
    "dry_run": ["false"],
    "uri": ["s3://data/"],
    "level": ["debug"],
    "format": ["jsonl", "summary"],
    "method": ["DELETE"],
    "_method": ["POST"],
}
"""Query parameters of present and former calls. ``documented`` adds the parameters of /openapi.json."""
BODIES = [
    {"uri": "s3://data/"},
    {"level": "debug"},
    {"ids": [0], "scores": [9.0]},
    {"mean_loss": 77.0},
    {"epoch": EPOCH, "rank": 0, "position": 5},
    {"dataset": "d", "world_size": 7},
]
ASKING = {
    "X-HTTP-Method-Override": "DELETE",
    "X-HTTP-Method": "PUT",
    "x-shade-job": f"j;epoch={OTHER};rank=0",
}


@pytest.fixture
def trained(serve, bucket_directory):
    """Run a proxy with an example of each thing that a call can change."""
    for number in range(COUNT):
        (bucket_directory / "data" / f"k{number:02d}").write_bytes(bytes([number]) * 1000)
    served = serve(origin__kind="file", origin__path=str(bucket_directory))
    served.call("PUT", "/v1/datasets/d", {"bucket": "data"})
    served.call("PUT", "/v1/jobs/j", {"dataset": "d", "world_size": 2})
    served.call("POST", "/v1/jobs/j/scores", {"ids": [0, 1, 2], "scores": [1.0, 2.0, 3.0]})
    served.call("PUT", f"/v1/jobs/j/epochs/{EPOCH}/order?rank=0", {"ids": list(range(COUNT))})
    served.call("POST", "/v1/jobs/j/progress", {"epoch": EPOCH, "rank": 0, "position": 2})
    served.call("POST", "/v1/pin", {"uri": "s3://data/k0"})
    for number in range(0, COUNT, 2):
        urllib.request.urlopen(f"{served.s3}/data/k{number:02d}", timeout=10).read()
    operation = json.loads(served.call("POST", "/v1/warm", {"uri": "s3://data/k1"}))["id"]
    wait_for(lambda: served.get(f"/v1/operations/{operation}")["state"] not in {"running", "waiting"})
    served.operation = operation
    return served


def state_of(served) -> dict:
    """Return the files of the state and all that the control listener shows. Values that change with time
    alone are left out.
    """
    jobs = served.get("/v1/jobs")["jobs"]
    for job in jobs:
        del job["silent_s"], job["silent_reads"]
        for name in ("silent_s", "lapses_after_s", "rate_per_s"):
            job["order"].pop(name, None)
    directory = Path(served.log).parent / "state"
    return {
        "jobs": jobs,
        "datasets": served.get("/v1/datasets"),
        "manifest": served.call("GET", "/v1/datasets/d?format=jsonl"),
        "scores": served.call("GET", "/v1/jobs/j/scores"),
        "residency": served.call("GET", "/v1/jobs/j/residency"),
        "pins": served.get("/v1/pins"),
        "cached": served.get("/v1/objects/data"),
        "operations": served.get("/v1/operations"),
        "level": served.get("/v1/log-level"),
        # Leave out SQLite's table of readers, because each look at the database changes it.
        "files": {
            str(path): path.read_bytes()
            for path in sorted(directory.rglob("*"))
            if path.is_file() and not path.name.endswith("-shm")
        },
    }


def settled(served) -> dict:
    """Return the state when delayed writes are done and fetches under way have ended."""
    seen, since_s = state_of(served), time.monotonic()
    end_s = since_s + 60
    while time.monotonic() - since_s < STILL_S:
        assert time.monotonic() < end_s, "the state does not come to rest"
        time.sleep(0.1)
        now = state_of(served)
        if now != seen:
            seen, since_s = now, time.monotonic()
    return seen


def ask(served, path, *, method="GET", body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(served.control + path, data=data, method=method)
    for name, value in {**ASKING, "Content-Type": "application/json"}.items():
        request.add_header(name, value)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()
            return answer.status
    except urllib.error.HTTPError as error:
        error.read()
        return error.code


def targets(served):
    """Return (documented path, method, request targets) of every call that must change nothing."""
    document = served.get("/openapi.json")
    names = NAMES | {"id": served.operation}
    documented = {
        parameter["name"]
        for calls in document["paths"].values()
        for call in calls.values()
        for parameter in call["parameters"]
        if parameter["in"] == "query"
    }
    values = {name: ["1"] for name in documented} | VALUES
    for path, calls in document["paths"].items():
        plain = path.format_map({name: quote(value) for name, value in names.items()})
        singles = [f"{plain}?{urlencode({name: value})}" for name in values for value in values[name]]
        pairs = [f"{plain}?epoch={epoch}&mean_loss=77" for epoch in (EPOCH, OTHER)]
        everything = f"{plain}?{urlencode({name: some[0] for name, some in values.items()})}"
        for method in ("GET", "HEAD"):
            if method.lower() in calls:
                yield path, method, [plain, *singles, *pairs, everything]


def test_no_get_changes_anything(trained):
    before = settled(trained)
    assert before["files"]
    answered = {}
    for path, method, found in targets(trained):
        statuses = {ask(trained, target, method=method) for target in found}
        if method == "GET":
            statuses |= {ask(trained, found[0], body=body) for body in BODIES}
        answered[method, path] = statuses
    after = settled(trained)
    for name, value in before.items():
        assert after[name] == value, name
    # Each call had at least one success, so the requests were real. Only the call for an object's owner
    # fails, because a single proxy knows no owners.
    assert 409 in answered.pop(("GET", "/v1/cluster/owner/{bucket}/{key}"))
    assert all(200 in statuses for statuses in answered.values()), answered
    assert max(max(statuses) for statuses in answered.values()) < 500, answered
    assert len(answered) > 15
    # If a GET had frozen the scores of an epoch, this call would return the frozen score instead of 50.
    trained.call("POST", "/v1/jobs/j/scores", {"ids": [0], "scores": [50.0]})
    for epoch in (EPOCH, OTHER):
        column = np.frombuffer(trained.call("POST", f"/v1/jobs/j/epochs/{epoch}/scores", {}), "<f4")
        assert column[0] == 50.0, f"a GET froze epoch {epoch}"
