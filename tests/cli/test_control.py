"""``shadeproxy`` stats and purge: their calls to the control listener, their output, and their errors."""

import json
import re
from dataclasses import asdict, replace

import pytest

from shadeproxy.core.types import JobContext, Source
from shadeproxy.hints.needs import NO_SHARE
from shadeproxy.telemetry.counters import TierGauges
from shadeproxy.telemetry.stats import Stats


@pytest.fixture
def counted():
    """Return a snapshot of the real ``Stats``. So a renamed number breaks a test here."""
    stats = Stats()
    job = JobContext("resnet", epoch=3)
    stats.record_read("train", Source.RAM, 1024, job)
    stats.record_read("train", Source.ORIGIN, 3 * 1024, job)
    stats.record_origin("get", 3 * 1024, 0.02)
    stats.record_origin_error("timeout")
    stats.record_training("resnet", 3, stall_s=1.25, compute_s=0.0)
    stats.watch_tier("ram", lambda: TierGauges(used_bytes=2048, capacity_bytes=1024**3, pages=7))
    stats.record_admission("ram")
    stats.record_eviction("ram", "capacity")
    stats.record_eviction("ram", "purged")
    return stats.snapshot()


def cells(text, first):
    """Return the cells of the row that begins with ``first``."""
    rows = [re.findall(r"\S+(?: (?:B|KiB|MiB|GiB|s)\b)?", line) for line in text.splitlines()]
    return next(row for row in rows if row and row[0] == first)


def test_stats_tables(shade, control, counted):
    control.answer = (200, json.dumps(counted))
    result = shade("stats", "--url", control.url)
    assert result.exit_code == 0
    assert control.requests == [("GET", "/v1/stats", None, None)]
    assert cells(result.stdout, "ram") == ["ram", "2.0 KiB", "1.0 GiB", "7", "1", "50.0%", "1", "2"]
    reads = ["2", "50.0%", "25.0%", "1", "0", "0", "1", "0", "4.0 KiB"]
    assert cells(result.stdout, "train") == ["train", *reads]
    assert cells(result.stdout, "all") == ["all", *reads]
    by_job = ["2", "50.0%", "25.0%", "1", "0", "1", "4.0 KiB"]
    assert cells(result.stdout, "resnet") == ["resnet", "3", *by_job, "1.2 s"]
    assert cells(result.stdout, "1") == ["1", "3.0 KiB", "1"]


def test_an_epoch_without_a_number_is_shown_only_if_it_was_read(shade, control, counted):
    unread = dict.fromkeys(counted["jobs"]["resnet"]["epochs"]["3"], 0) | {"origin_bytes": 4096}
    counted["jobs"]["resnet"]["epochs"]["unknown"] = unread
    control.answer = (200, json.dumps(counted))
    assert "unknown" not in shade("stats", "--url", control.url).stdout
    unread["requests"] = 1
    control.answer = (200, json.dumps(counted))
    assert "unknown" in shade("stats", "--url", control.url).stdout


def test_stats_show_needs_once_a_job_has_one(shade, control, counted):
    kept = replace(NO_SHARE, need="slowdown", needs_per_s=90.9, got_per_s=95.0, kept=True, link_share=0.25)
    jobs = {"quick": asdict(kept), "other": asdict(NO_SHARE)}
    counted["sharing"] = {"mode": "needs", "reason": "1 need shares the link", "jobs": jobs}
    control.answer = (200, json.dumps(counted))
    shown = shade("stats", "--url", control.url).stdout
    assert "needs: 1 need shares the link" in shown
    assert cells(shown, "quick") == ["quick", "slowdown", "90.9", "95", "-", "25.0%", "kept"]
    assert cells(shown, "other") == ["other", "-", "-", "-", "-", "-", "-"]


def test_stats_before_any_job_or_read(shade, control):
    control.answer = (200, json.dumps(Stats().snapshot()))
    result = shade("stats", "--url", control.url)
    assert result.exit_code == 0
    assert "jobs" not in result.stdout


def test_stats_as_json(shade, control, counted):
    control.answer = (200, json.dumps(counted))
    assert json.loads(shade("stats", "--json", "--url", control.url).stdout) == counted


@pytest.fixture
def waits(monkeypatch):
    """Return the list of waits in seconds. Ctrl-C ends the third wait."""
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", sleep)
    return waits


@pytest.mark.usefixtures("waits")
def test_stats_watch_refreshes_until_interrupted(shade, control, counted):
    control.answer = (200, json.dumps(counted))
    result = shade("stats", "--watch", "--url", control.url)
    assert result.exit_code == 130
    assert len(control.requests) == 3
    assert "resnet" in result.stdout


def test_stats_watch_as_json_prints_a_line_a_second(shade, control, counted, waits):
    control.answer = (200, json.dumps(counted))
    result = shade("stats", "--watch", "--json", "--url", control.url)
    assert result.exit_code == 130
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert lines == [counted] * 3
    assert waits == [1.0] * 3


def test_stats_sorts_epochs_by_number_and_names_by_letter(shade, control):
    stats = Stats()
    for job in ("zebra", "ant"):
        for epoch in (10, 9, None, 2):
            stats.record_read("train", Source.RAM, 1, JobContext(job, epoch))
    stats.record_read("a bucket", Source.RAM, 1)
    control.answer = (200, json.dumps(stats.snapshot()))
    lines = shade("stats", "--url", control.url).stdout.splitlines()
    rows = [line.split()[:2] for line in lines if line.split()[:1] in (["ant"], ["zebra"])]
    epochs = ["2", "9", "10", "unknown"]
    assert rows == [[job, epoch] for job in ("ant", "zebra") for epoch in epochs]
    firsts = [line.split()[0] for line in lines if line.split()]
    assert [first for first in firsts if first in {"a", "train", "all"}] == ["a", "train", "all"]


@pytest.mark.parametrize("columns", ["20", "60", "80"])
def test_stats_cuts_no_name_and_no_number_in_a_narrow_terminal(shade, control, monkeypatch, columns):
    name = "a-bucket-with-a-name-of-quite-some-length-of-63-characters-12345"
    stats = Stats()
    for _ in range(1_234):
        stats.record_read(name, Source.RAM, 1_000_000, JobContext(name, 3))
    control.answer = (200, json.dumps(stats.snapshot()))
    monkeypatch.setenv("COLUMNS", columns)
    text = shade("stats", "--url", control.url).stdout
    assert "\u2026" not in text
    # A name that is folded continues in the first column of the next lines.
    folded = "".join(line.split()[0] for line in text.splitlines() if line.split())
    assert name in folded
    assert "1,234" in text
    assert "1.1 GiB" in text


def test_address_and_token_come_from_the_configuration(shade, control, monkeypatch):
    control.answer = (200, json.dumps(Stats().snapshot()))
    monkeypatch.setenv("SHADE_TOKEN", "hunter2")
    listen = ("--set", f"control.listen=0.0.0.0:{control.port}", "--set", "control.token=env:SHADE_TOKEN")
    assert shade("stats", *listen).exit_code == 0
    assert control.requests[0][2] == "Bearer hunter2"


def test_purge_asks_and_tells(shade, control):
    counts = {"objects": 3, "pages": 1, "bytes": 6_000_000}
    control.answer = (200, json.dumps({"uri": "s3://b/p", "dry_run": False, **counts}))
    result = shade("purge", "s3://b/p", "--url", control.url)
    assert result.stdout == "purged s3://b/p: 3 objects, 1 page or part, 5.7 MiB\n"
    assert control.requests == [("POST", "/v1/purge", None, {"uri": "s3://b/p", "dry_run": False})]


def test_purge_without_a_prefix_names_both_ways(shade, control):
    result = shade("purge", "--url", control.url)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: write s3://bucket or s3://bucket/prefix, or --all to empty")


def test_purge_dry_run_and_json(shade, control):
    answer = {"dry_run": True, "pages": 5}
    control.answer = (200, json.dumps(answer))
    result = shade("purge", "s3://b", "--dry-run", "--url", control.url)
    assert result.stdout == "would purge s3://b: 5 pages and parts\n"
    assert control.requests[0][3] == {"uri": "s3://b", "dry_run": True}
    assert json.loads(shade("purge", "s3://b", "--json", "--url", control.url).stdout) == answer


@pytest.mark.parametrize("uri", ["b/p", "s3://", "s3:///p", "http://b/p"])
def test_purge_of_what_is_no_s3_uri(shade, uri):
    result = shade("purge", uri)
    assert result.exit_code == 2
    assert result.stderr == f"error: {uri!r} names nothing: write s3://bucket or s3://bucket/prefix\n"


def test_nobody_listens(shade, taken_port):
    """The error says that no proxy listens. Port 1 stands for a port without a listener."""
    result = shade("stats", "--url", "http://127.0.0.1:1")
    assert result.exit_code == 1
    assert result.stderr == (
        "error: no control listener answers at http://127.0.0.1:1 (Connection refused);"
        " start it with `shadeproxy serve`, or name another with --url\n"
    )


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:9001",
        "ftp://h",
        "http://",
        "http://h:port",
        "http://h:99999",
        "http://[::1",
        "http://h h:1",
    ],
)
def test_a_url_that_is_none(shade, url):
    result = shade("stats", "--url", url)
    assert result.exit_code == 2
    assert result.stderr == f"error: --url {url}: write it as http://127.0.0.1:9001\n"


@pytest.mark.parametrize(
    "url", ["http://me:hidden@127.0.0.1:1", "http://me:hidden@127.0.0.1:x", "me:hidden@h"]
)
def test_a_password_in_the_url_is_refused_and_not_shown(shade, url):
    result = shade("stats", "--url", url)
    assert result.exit_code == 2
    assert result.stderr == "error: --url: write it as http://127.0.0.1:9001, without user and password\n"


def test_the_token_of_another_proxy_is_named_by_reference(shade, control, monkeypatch, tmp_path):
    monkeypatch.setenv("THEIRS", "t0ken")
    (tmp_path / "token").write_text("of-a-file\n")
    for reference in ("env:THEIRS", f"file:{tmp_path / 'token'}"):
        assert shade("stats", "--json", "--url", control.url, "--token", reference).exit_code == 0
    assert [sent for _, _, sent, _ in control.requests] == ["Bearer t0ken", "Bearer of-a-file"]


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        (
            "t0ken",
            'write "env:NAME" or "file:PATH"; a secret itself would be seen in the list of processes',
        ),
        (
            "env:NOT_SET_ANYWHERE",
            "the environment variable NOT_SET_ANYWHERE is not set; set it to the secret",
        ),
    ],
)
def test_a_token_that_is_no_reference_is_refused_and_not_shown(shade, reference, text):
    result = shade("stats", "--url", "http://127.0.0.1:1", "--token", reference)
    assert result.exit_code == 2
    assert result.stderr == f"error: --token: {text}\n"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            (403, "<Error><Code>AccessDenied</Code></Error>"),
            "answered 403, but not as a control listener does",
        ),
        ((200, "[]"), "answered 200, but not as a control listener does"),
        (
            (401, '{"error": {"message": "no"}}'),
            "asks for a bearer token: set control.token as the proxy has it, for example --token env:NAME",
        ),
        (
            (404, '{"error": {"code": "x", "message": "no dataset d", "hint": "PUT it"}}'),
            "no dataset d; PUT it",
        ),
        ((500, '{"error": {"code": "x", "message": "broken"}}'), "error: broken\n"),
        ((500, '{"error": {}}'), "error: status 500\n"),
        # Such answers come from other services that speak JSON.
        ((500, "{}"), "answered 500, but not as a control listener does"),
        ((404, '{"error": "no such page"}'), "answered 404, but not as a control listener does"),
        ((404, '{"detail": "Not Found"}'), "answered 404, but not as a control listener does"),
        ((404, '{"error": {"code": "unknown_name"}}'), "error: status 404\n"),
    ],
)
def test_what_the_listener_refuses_is_told(shade, control, answer, text):
    control.answer = answer
    result = shade("stats", "--url", control.url)
    assert result.exit_code == 1
    assert text in result.stderr


def test_a_token_that_the_listener_refuses_is_called_another_one(shade, control, monkeypatch):
    monkeypatch.setenv("OTHER", "another-token")
    control.answer = (401, '{"error": {"message": "no"}}')
    result = shade("stats", "--url", control.url, "--token", "env:OTHER")
    assert "asks for another bearer token" in result.stderr


def test_a_listener_that_speaks_no_tls(shade, control):
    url = control.url.replace("http:", "https:")
    result = shade("stats", "--url", url)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {url} does not speak TLS as it should (")
    assert result.stderr.endswith(
        "); the control listener itself speaks plain HTTP: write --url http://...\n"
    )


def test_a_token_of_any_letters_is_sent_as_the_listener_reads_it(shade, control, monkeypatch):
    monkeypatch.setenv("CONTROL_TOKEN", "clé ❤")
    control.answer = (200, json.dumps(Stats().snapshot()))
    result = shade("stats", "--url", control.url, "--set", "control.token=env:CONTROL_TOKEN")
    assert result.exit_code == 0
    ((_, _, sent, _),) = control.requests
    assert sent.encode("latin-1").decode() == "Bearer clé ❤"


@pytest.mark.parametrize(
    ("token", "fault"),
    [("two\nlines", "has a line end or control character"), ("a\udcff", "is not UTF-8 text")],
)
def test_a_token_that_no_header_can_carry_is_named(shade, monkeypatch, token, fault):
    monkeypatch.setenv("CONTROL_TOKEN", token)
    result = shade("stats", "--set", "control.token=env:CONTROL_TOKEN")
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: control.token: the environment variable CONTROL_TOKEN {fault};"
        " it must hold the secret alone\n"
    )
