"""The commands warm, purge, pin and unpin: their calls to the control listener, their output, and their
errors.
"""

import json

import pytest

OPERATION = {
    "id": "abc",
    "kind": "warm",
    "uri": "s3://b/d/",
    "dry_run": False,
    "state": "done",
    "listed": True,
    "done": 1200,
    "total": 1200,
    "pages": 0,
    "bytes": 3 << 20,
    "total_bytes": 4 << 20,
    "resident": 0,
    "not_stored": 0,
    "failed": 0,
    "error": "",
}
PINNED = {"uri": "s3://b/d/", "objects": 2, "pages": 1500, "bytes": 2048, "held": 1500}


@pytest.fixture
def answering(control, monkeypatch):
    """Return a function ``answering(changes, ...)``. The listener then answers with these operations in turn,
    and repeats the last one for ever. The command does not pause between its calls.
    """

    def answering(*changes):
        answers = [(200, json.dumps(OPERATION | change)) for change in changes]
        control.answer = answers.pop(0)

        def sleep(_seconds):
            if answers:
                control.answer = answers.pop(0)

        monkeypatch.setattr("shadeproxy.cli.prefixes.time.sleep", sleep)

    return answering


def test_warm_watches_it_to_the_end(shade, control, answering):
    answering(
        {"state": "running", "listed": False, "done": 0, "total": 0},
        {"state": "running", "done": 7},
        {"resident": 3, "not_stored": 1100},
    )
    result = shade("warm", "s3://b/d/", "--url", control.url)
    assert result.exit_code == 0
    assert result.stdout == (
        "s3://b/d/: 1,200 of 1,200 objects, read 3.0 MiB, 3 were cached already,"
        " 1,100 not stored, because the cached pages are worth as much or more\n"
    )
    assert "1200/1200" in result.stderr
    assert control.requests == [
        ("POST", "/v1/warm", None, {"uri": "s3://b/d/", "dry_run": False}),
        ("GET", "/v1/operations/abc", None, None),
        ("GET", "/v1/operations/abc", None, None),
    ]


def test_warm_dry_run(shade, control, answering):
    answering({"dry_run": True})
    result = shade("warm", "s3://b/d/", "--dry-run", "--url", control.url)
    assert result.stdout == "s3://b/d/: 1,200 of 1,200 objects, to read 3.0 MiB\n"
    assert control.requests[0][3] == {"uri": "s3://b/d/", "dry_run": True}


def test_warm_as_json_prints_the_end_and_nothing_else(shade, control, answering):
    answering({"state": "running"}, {})
    result = shade("warm", "s3://b/d/", "--json", "--url", control.url)
    assert json.loads(result.stdout) == OPERATION
    assert result.stderr == ""


def test_a_warm_that_finds_nothing_says_so(shade, control, answering):
    answering({"done": 0, "total": 0, "bytes": 0})
    result = shade("warm", "s3://b/d/", "--url", control.url)
    assert result.exit_code == 0
    assert result.stdout == "s3://b/d/: 0 of 0 objects, read 0 B\n"
    assert result.stderr.endswith("note: the origin has nothing below s3://b/d/: check bucket and prefix\n")


@pytest.mark.parametrize("call", ["warm", "purge"])
def test_who_interrupts_an_operation_ends_it(shade, control, answering, monkeypatch, call):
    answering({"kind": call, "state": "running", "done": 7, "pages": 1500})

    def interrupted(_seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("shadeproxy.cli.prefixes.time.sleep", interrupted)
    result = shade(call, "s3://b/d/", "--url", control.url)
    assert result.exit_code == 130
    assert control.requests[-1][:2] == ("DELETE", "/v1/operations/abc")
    told = {"warm": "read 3.0 MiB", "purge": "1,500 pages and parts, dropped 3.0 MiB"}[call]
    assert f"cancelled; s3://b/d/: 7 of 1,200 objects, {told}\n" in result.stderr


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {
                "state": "failed",
                "listed": False,
                "error": "404 NoSuchBucket: There is none.",
                "done": 0,
                "total": 0,
                "bytes": 0,
            },
            (
                "s3://b/d/ cannot be listed: 404 NoSuchBucket: There is none;"
                " `shadeproxy check --bucket b` says what to change\n"
            ),
        ),
        (
            {"state": "failed", "listed": False, "error": "503 SlowDown", "done": 960, "total": 1000},
            (
                "s3://b/d/ was not listed to its end: 503 SlowDown; s3://b/d/: 960 of 1,000 objects that were"
                " listed so far, read 3.0 MiB; run it again to read the rest\n"
            ),
        ),
        (
            {"state": "failed", "error": "16 reads in a row failed", "done": 20, "failed": 16},
            (
                "s3://b/d/ was not warmed: 16 reads in a row failed;"
                " s3://b/d/: 20 of 1,200 objects, read 3.0 MiB, 16 failed\n"
            ),
        ),
        (
            {"failed": 2, "error": "s3://b/d/1: timed out"},
            (
                "2 objects could not be read; the first: s3://b/d/1: timed out;"
                " run it again to read the missing ones\n"
            ),
        ),
        (
            {"state": "cancelled", "done": 5},
            "a call ended it, or the proxy stopped; s3://b/d/: 5 of 1,200 objects, read 3.0 MiB\n",
        ),
    ],
)
def test_a_warm_that_did_not_do_it_all_fails(shade, control, answering, change, text):
    answering({"state": "running"}, change)
    result = shade("warm", "s3://b/d/", "--url", control.url)
    assert result.exit_code == 1
    assert result.stderr.endswith(f"error: {text}")


PURGE = {"kind": "purge", "pages": 1500, "total_bytes": 3 << 20}
RUNNING = PURGE | {"state": "running"}


def test_a_long_purge_is_watched_to_its_end(shade, control, answering):
    answering(
        PURGE | {"state": "running", "done": 0, "pages": 0}, PURGE | {"state": "running", "done": 7}, PURGE
    )
    result = shade("purge", "s3://b/d/", "--url", control.url)
    assert result.exit_code == 0
    assert result.stdout == "purged s3://b/d/: 1,200 objects, 1,500 pages and parts, 3.0 MiB\n"
    assert "1200/1200" in result.stderr
    assert control.requests == [
        ("POST", "/v1/purge", None, {"uri": "s3://b/d/", "dry_run": False}),
        ("GET", "/v1/operations/abc", None, None),
        ("GET", "/v1/operations/abc", None, None),
    ]


def test_a_long_purge_has_the_json_of_a_short_one(shade, control, answering):
    answering(RUNNING, PURGE)
    result = shade("purge", "s3://b/d/", "--json", "--url", control.url)
    assert json.loads(result.stdout) == {"objects": 1200, "pages": 1500, "bytes": 3 << 20}
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"state": "cancelled"}, "a call ended it, or the proxy stopped; "),
        ({"state": "failed", "error": "read-only"}, "s3://b/d/ was not purged: read-only; "),
    ],
)
def test_a_purge_that_did_not_do_it_all_is_not_told_as_done(shade, control, answering, change, text):
    told = "s3://b/d/: 5 of 1,200 objects, 9 pages and parts, dropped 2.0 KiB\n"
    for options in ([], ["--json"]):
        answering(RUNNING, PURGE | {"done": 5, "pages": 9, "bytes": 2048} | change)
        result = shade("purge", "s3://b/d/", *options, "--url", control.url)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.endswith(f"error: {text}{told}")


def test_pin_tells_what_is_cached(shade, control):
    control.answer = (200, json.dumps(PINNED))
    result = shade("pin", "s3://b/d/", "--url", control.url)
    assert result.stdout == "pinned s3://b/d/: 2 objects cached, 1,500 pages and parts, 2.0 KiB\n"
    assert result.stderr == ""
    assert control.requests == [("POST", "/v1/pin", None, {"uri": "s3://b/d/", "dry_run": False})]


def test_pin_warns_of_what_finds_no_room(shade, control):
    control.answer = (200, json.dumps(PINNED | {"held": 300}))
    result = shade("pin", "s3://b/d/", "--url", control.url)
    assert result.exit_code == 0
    assert result.stderr == (
        "warning: 1,200 of these are not held: pinned pages take 90 % of a tier at most;"
        " raise its capacity, or unpin something\n"
    )


def test_unpin_tells_what_another_pin_holds(shade, control):
    control.answer = (200, json.dumps(PINNED))
    result = shade("unpin", "s3://b/d/", "--url", control.url)
    assert result.stdout == "unpinned s3://b/d/: 2 objects cached, 1,500 pages and parts, 2.0 KiB\n"
    assert result.stderr == "note: another pin still holds 1,500 of these\n"
    assert control.requests == [("POST", "/v1/unpin", None, {"uri": "s3://b/d/", "dry_run": False})]


@pytest.mark.parametrize("command", ["pin", "unpin"])
def test_dry_runs_and_json(shade, control, command):
    control.answer = (200, json.dumps(PINNED | {"held": 0}))
    result = shade(command, "s3://b/d/", "--dry-run", "--url", control.url)
    assert result.stdout == f"would {command} s3://b/d/: 2 objects cached, 1,500 pages and parts, 2.0 KiB\n"
    assert result.stderr == ""
    assert control.requests[0][3] == {"uri": "s3://b/d/", "dry_run": True}
    result = shade(command, "s3://b/d/", "--json", "--url", control.url)
    assert json.loads(result.stdout) == PINNED | {"held": 0}


def test_pin_without_a_prefix_lists_the_pins(shade, control):
    pins = [
        {"uri": "s3://b/d/", "by": "call", "since_s": 1.0},
        {"uri": "s3://t*/x", "by": "rules[0]", "since_s": None},
    ]
    answer = {"pins": pins, "bytes": 1024, "limit_bytes": 1 << 30}
    control.answer = (200, json.dumps(answer))
    result = shade("pin", "--url", control.url)
    assert [line.split() for line in result.stdout.splitlines() if "s3://" in line] == [
        ["s3://b/d/", "call"],
        ["s3://t*/x", "rules[0]"],
    ]
    assert result.stdout.endswith("1.0 KiB held of at most 1.0 GiB\n")
    assert json.loads(shade("pin", "--json", "--url", control.url).stdout) == answer
    control.answer = (200, json.dumps({"pins": [], "bytes": 0, "limit_bytes": 0}))
    assert shade("pin", "--url", control.url).stdout == (
        "nothing is pinned; shadeproxy pin s3://bucket/prefix pins something\n0 B held of at most 0 B\n"
    )


@pytest.mark.parametrize("command", ["warm", "pin", "unpin"])
@pytest.mark.parametrize("uri", ["b/p", "s3://", "s3:///p"])
def test_what_is_no_s3_uri(shade, command, uri):
    result = shade(command, uri)
    assert result.exit_code == 2
    assert result.stderr == f"error: {uri!r} names nothing: write s3://bucket or s3://bucket/prefix\n"


def test_what_is_refused_is_told_with_its_hint(shade, control):
    error = {"code": "unknown_name", "message": "no call pinned s3://b/d", "hint": "pinned are s3://b/e"}
    control.answer = (404, json.dumps({"error": error}))
    result = shade("unpin", "s3://b/d", "--url", control.url)
    assert result.exit_code == 1
    assert result.stderr == "error: no call pinned s3://b/d; pinned are s3://b/e\n"


@pytest.mark.parametrize("call", ["warm", "pin", "unpin", "purge"])
def test_a_call_names_the_namespace_that_it_means(shade, control, answering, call):
    if call == "warm":
        answering({})
    else:
        control.answer = (200, json.dumps(PINNED))
    shade(call, "s3://b/d/", "--namespace", "team-a", "--url", control.url)
    asked = control.requests[0][3]
    assert asked == {"uri": "s3://b/d/", "dry_run": False, "namespace": "team-a"}


def test_pins_of_other_namespaces_are_told_apart(shade, control):
    pins = [{"uri": "s3://b/d", "by": "call", "since_s": 1.0}]
    pins.append(pins[0] | {"namespace": "team-a"})
    control.answer = (200, json.dumps({"pins": pins, "bytes": 0, "limit_bytes": 1}))
    told = shade("pin", "--url", control.url).stdout
    assert "s3://b/d (team-a)" in told
    assert told.count("s3://b/d") == 2


def test_no_pin_controls_the_terminal_or_is_taken_for_markup(shade, control):
    pins = [{"uri": "s3://b/\x1b[31m[red]x[/y]", "by": "call", "since_s": 1.0}]
    control.answer = (200, json.dumps({"pins": pins, "bytes": 0, "limit_bytes": 1}))
    result = shade("pin", "--url", control.url)
    assert "s3://b/?[31m[red]x[/y]" in result.stdout
    error = {"code": "unknown_name", "message": "no call pinned it", "hint": "pinned are s3://b/\x1b[31m"}
    control.answer = (404, json.dumps({"error": error}))
    assert shade("unpin", "s3://b/c", "--url", control.url).stderr.endswith("pinned are s3://b/?[31m\n")


@pytest.mark.parametrize("command", ["warm", "purge", "pin", "unpin"])
def test_a_prefix_that_is_no_utf8_is_refused(shade, command):
    result = shade(command, "s3://b/\udcff", "--url", "http://127.0.0.1:1")
    assert result.exit_code == 2
    assert "is no UTF-8" in result.stderr
