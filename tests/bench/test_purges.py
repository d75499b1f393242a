"""The long runs count a purge as done only when its operation has ended."""

import json

import pytest

from shadeproxy_bench.reliability.kit import purges


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        (["running", "running", "done"], 200),
        (["running", "cancelled"], 503),
        (["running", "failed"], 503),
        (["running", None], 0),
        (["running", {"error": {"code": "unknown_name"}}], 0),
    ],
)
def test_a_long_purge_is_followed_to_its_end(monkeypatch, answers, status):
    monkeypatch.setattr(purges, "_INTERVAL_S", 0.0)
    told, asked = [], []
    for one in answers:
        body = {"id": "abc", "state": one} if isinstance(one, str) else one
        told.append(b"" if body is None else json.dumps(body).encode())

    def get(path):
        asked.append(path)
        return told.pop(0)

    assert purges.end_of_purge(202, told.pop(0), get) == status
    assert asked == ["/v1/operations/abc"] * (len(answers) - 1)


@pytest.mark.parametrize("status", [200, 0, 503])
def test_a_short_purge_needs_no_second_call(status):
    assert purges.end_of_purge(status, b"", None) == status
