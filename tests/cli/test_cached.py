"""``shadeproxy inspect``: its calls to the control listener, and its output for a prefix and for one key."""

import json
import time

import pytest

FOUND = {
    "key": "d/[red]a",
    "etag": '"e1"',
    "size": 9 << 20,
    "pages": 2,
    "parts": 0,
    "total_pages": 3,
    "bytes": 8 << 20,
    "tiers": {"ram": 1, "disk": 1},
    "pinned": 1,
    "validated_s": None,
    "freshness": "check",
}
LISTING = {"bucket": "b", "prefix": "d/", "objects": [FOUND], "more": 1200, "next": "d/[red]a"}


def test_a_prefix_is_listed(shade, control):
    fresh = FOUND | {"key": "d/b", "tiers": {"ram": 2}, "pinned": 0, "freshness": "fresh"}
    fresh["validated_s"] = time.time() - 7200
    control.answer = (200, json.dumps(LISTING | {"objects": [FOUND, fresh]}))
    result = shade("inspect", "s3://b/d/", "--limit", "2", "--url", control.url)
    assert result.exit_code == 0
    rows = [" ".join(line.split()) for line in result.stdout.splitlines() if "MiB" in line]
    checked = "not since the start, checked before it is answered"
    assert rows == [
        f'd/[red]a 9.0 MiB 2 of 3 8.0 MiB ram 1, disk 1 1 {checked} "e1"',
        'd/b 9.0 MiB 2 of 3 8.0 MiB ram 2 h ago "e1"',
    ]
    assert result.stdout.endswith("1,200 more: --limit, or --start-after d/[red]a\n")
    assert control.requests == [("GET", "/v1/objects/b?prefix=d%2F&limit=2&start_after=", None, None)]


def test_no_key_is_cut_short_where_the_screen_is_narrow(shade, control, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    keys = [f"imagenet/train/n01440764/n01440764_{number}.JPEG" for number in (10026, 10027)]
    control.answer = (200, json.dumps(LISTING | {"objects": [FOUND | {"key": key} for key in keys]}))
    result = shade("inspect", "s3://b/imagenet/", "--url", control.url)
    rows = [line.split() for line in result.stdout.splitlines() if "MiB" in line]
    assert [(row[0], row[-1]) for row in rows] == [(key, FOUND["etag"]) for key in keys]


def test_json_is_the_answer(shade, control):
    control.answer = (200, json.dumps(LISTING))
    result = shade("inspect", "s3://b/d/", "--json", "--start-after", "d/0", "--url", control.url)
    assert json.loads(result.stdout) == LISTING
    assert control.requests[0][1] == "/v1/objects/b?prefix=d%2F&limit=100&start_after=d%2F0"


def test_a_key_that_is_cached_is_shown_alone_in_the_same_form(shade, control):
    page = {"tier": "ram", "bytes": 4 << 20, "pinned": True}
    pages = [page | {"number": 0}, page | {"number": 1, "tier": "disk", "pinned": False}]
    kept = {"etag", "size", "total_pages", "validated_s", "freshness"}
    shown = {name: value for name, value in FOUND.items() if name in kept} | {"uri": "-", "pages": pages}
    control.answer = (200, json.dumps(shown))
    result = shade("inspect", "s3://b/d/[red]a", "--json", "--url", control.url)
    assert json.loads(result.stdout) == LISTING | {"prefix": "d/[red]a", "more": 0, "next": None}
    assert control.requests == [("GET", "/v1/objects/b/d/%5Bred%5Da", None, None)]


def test_parts_of_pages_are_counted_beside_pages(shade, control):
    one = FOUND | {"pages": 0, "parts": 1, "key": "d/one"}
    old = {name: value for name, value in FOUND.items() if name != "parts"}  # of a proxy of an older release
    control.answer = (200, json.dumps(LISTING | {"objects": [FOUND | {"parts": 1200}, one, old]}))
    result = shade("inspect", "s3://b/d/", "--url", control.url)
    rows = [" ".join(line.split()) for line in result.stdout.splitlines() if "MiB" in line]
    assert [row.split(" 8.0 MiB")[0].split(" 9.0 MiB ")[1] for row in rows] == [
        "2 of 3, 1,200 parts", "0 of 3, 1 part", "2 of 3",
    ]  # fmt: skip


def test_what_is_no_cached_key_is_taken_for_a_prefix(shade, control):
    error = {"code": "unknown_name", "message": "nothing of s3://b/d is cached", "hint": "read it"}
    control.answer = (404, json.dumps({"error": error}))
    result = shade("inspect", "s3://b/d", "--url", control.url)
    assert [path for _, path, _, _ in control.requests] == [
        "/v1/objects/b/d",
        "/v1/objects/b?prefix=d&limit=100&start_after=",
    ]
    assert result.exit_code == 1


def test_nothing_below_it(shade, control):
    control.answer = (200, json.dumps(LISTING | {"objects": [], "more": 0, "next": None}))
    result = shade("inspect", "s3://b", "--url", control.url)
    assert result.stdout == "nothing below s3://b is cached\n"


@pytest.mark.parametrize("uri", ["b/p", "s3://", "s3:///p"])
def test_what_is_no_s3_uri(shade, uri):
    result = shade("inspect", uri)
    assert result.exit_code == 2
    assert result.stderr == f"error: {uri!r} names nothing: write s3://bucket or s3://bucket/prefix\n"


def test_no_key_controls_the_terminal(shade, control):
    evil = "d/\x1b]0;title\x07\x1b[31mred\nrow\u202e"
    control.answer = (200, json.dumps(LISTING | {"objects": [FOUND | {"key": evil}], "next": evil}))
    shown = shade("inspect", "s3://b/d/", "--url", control.url).stdout
    assert all(line.isprintable() for line in shown.splitlines())
    assert shown.count("d/?]0;title??[31mred?row?") == 2
    result = shade("inspect", "s3://b/d/", "--json", "--url", control.url)
    assert json.loads(result.stdout)["next"] == evil


def test_a_name_that_is_no_utf8_is_refused(shade):
    for arguments in (("s3://b/\udcff",), ("s3://b/", "--start-after", "\udcff")):
        result = shade("inspect", *arguments, "--url", "http://127.0.0.1:1")
        assert result.exit_code == 2
        assert "is no UTF-8" in result.stderr
