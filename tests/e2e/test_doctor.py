"""A proxy reports its own faults in /readyz, in /v1/stats and through ``shadeproxy doctor``."""

import json
import os
import signal
import urllib.error
import urllib.request

import pytest

from tests.support.copied import run_command
from tests.support.served import names, readyz, wait_for


def doctor(served, *arguments: str, url: str = "") -> tuple[int, dict]:
    """Run ``shadeproxy doctor``, and return exit status and report. Without ``url`` the command takes the
    address from the configuration.
    """
    command = ["doctor", "--json", *served.arguments, *arguments, *(["--url", url] if url else [])]
    done = run_command(*command, environment=served.environment)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def fetch(served, path: str, **fields: str) -> int:
    request = urllib.request.Request(served.s3 + path, headers=fields)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.fixture
def proxy(serve, fake_origin):
    fake_origin.objects = {f"/data/{n}": b"x" * 1000 for n in range(9)}
    return serve(
        origin__endpoint=fake_origin.url,
        origin__credentials="anonymous",
        origin__retry__backoff="1 ms",
        origin__retry__attempts="2",
        cache__ram__capacity="8 MiB",
    )


def test_a_well_proxy_is_healthy(proxy):
    assert fetch(proxy, "/data/0") == 200
    status, report = doctor(proxy, url=proxy.control)
    assert (status, report["running"], report["healthy"]) == (0, True, True), report["findings"]
    assert [one for one in report["findings"] if one["severity"] == "wrong"] == []
    assert "answers" in report["facts"]["probe"]
    assert readyz(proxy) == (200, {"status": "ready"})


def test_an_origin_that_fails_leaves_the_proxy_ready_with_a_warning(proxy, fake_origin):
    assert fetch(proxy, "/data/0") == 200
    fake_origin.failing = (500, "InternalError")
    assert fetch(proxy, "/data/1") == 503
    assert fetch(proxy, "/data/0") == 200, "what is cached is served"
    told = ["the origin does not answer"]
    assert readyz(proxy) == (200, {"status": "ready", "warnings": told, "remarks": told})
    health = proxy.stats()["origin"]["health"]
    assert (health["answering"], health["last_failure"]["kind"]) == (False, "OriginUnavailable")
    status, report = doctor(proxy, url=proxy.control)
    assert (status, names(report) >= {"origin unreachable"}) == (1, True)
    fake_origin.failing = None
    assert fetch(proxy, "/data/1") == 200
    assert readyz(proxy) == (200, {"status": "ready"})
    assert doctor(proxy, url=proxy.control)[0] == 0


def test_wrong_credentials_are_told_from_an_origin_that_is_down(proxy, fake_origin):
    fake_origin.failing = (403, "InvalidAccessKeyId")
    status, report = doctor(proxy, url=proxy.control)
    assert (status, names(report) >= {"credentials refused"}) == (1, True)
    assert readyz(proxy)[0] == 200


def test_throttling_that_was_waited_out_is_seen(proxy, fake_origin):
    # Wait for the proxy's own first request, because this request must not be the one that fails.
    wait_for(lambda: fake_origin.asked)
    fake_origin.fail_next = 1
    assert fetch(proxy, "/data/2") == 200
    assert proxy.stats()["origin"]["health"]["throttled"] == 1
    status, report = doctor(proxy, url=proxy.control)
    assert (status, names(report) >= {"throttled"}) == (0, True), "it is a warning"


def test_a_clock_that_is_wrong_is_seen_by_the_date_of_answers(serve, fake_origin):
    fake_origin.skew_s = -1000.0
    served = serve(origin__endpoint=fake_origin.url, origin__credentials="anonymous")
    wait_for(lambda: served.stats()["origin"]["health"]["clock_skew_s"])
    status, report = doctor(served, url=served.control)
    assert (status, names(report) >= {"clock skew"}) == (1, True)
    assert served.stats()["origin"]["health"]["clock_skew_s"] == pytest.approx(-1000, abs=30)


def test_settings_that_wait_and_a_reload_that_failed_are_remembered(serve, bucket_directory, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text("")
    served = serve(config, origin__kind="file", origin__path=str(bucket_directory))
    for text, expected in (('[cache]\npage_size = "1 MiB"', "needs a restart"), ("[oops", "reload refused")):
        config.write_text(text)
        os.kill(served.process.pid, signal.SIGHUP)
        wait_for(lambda: expected in names(served.get("/v1/doctor")))  # noqa: B023 - called here


def test_without_a_proxy_it_says_so_and_checks_what_it_can(serve, bucket_directory):
    served = serve(origin__kind="file", origin__path=str(bucket_directory))
    # The flags let the system choose the ports. So no proxy answers at the address that the flags name.
    status, report = doctor(served)
    assert (status, report["running"]) == (1, False)
    held = {f"{key}.path is held" for key in ("cache.ram", "state")}
    assert names(report) >= {"not running", *held}
    assert any(str(served.process.pid) in finding["cause"] for finding in report["findings"])
    served.stop()
    _, report = doctor(served, "--set", "origin.path=/nowhere")
    assert not names(report) & held
    assert names(report) >= {"not running", "origin"}
    assert all(finding["cause"] and finding["remedy"] for finding in report["findings"])


def test_a_job_that_waits_for_its_data_is_told_what_helps(proxy):
    proxy.call("PUT", "/v1/jobs/resnet", {})
    for number in range(4):
        assert fetch(proxy, f"/data/{number}", **{"x-shade-job": "resnet;epoch=0;rank=0"}) == 200
    loader = {"workers": 8, "batch_size": 1, "prefetch_factor": 2}
    report = {"epoch": 0, "rank": 0, "position": 4, "stall_s": 40.0, "compute_s": 10.0, "loader": loader}
    proxy.call("POST", "/v1/jobs/resnet/progress", report)
    proxy.call("PUT", "/v1/jobs/silent", {})
    status, report = doctor(proxy, url=proxy.control)
    assert status == 0
    (found,) = [one for one in report["findings"] if one["name"] == "waiting job"]
    assert found["severity"] == "warning"
    assert found["cause"].startswith(
        "job 'resnet' waits 80% of its time for data: 8 reads at a time, and the"
    )
