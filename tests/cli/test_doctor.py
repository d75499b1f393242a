"""``shadeproxy doctor`` without a running proxy. The first finding says that no proxy runs, and nothing is
reported that cannot be checked.
"""

import json
import os

import msgspec
import pytest

from shadeproxy.cli import looks
from shadeproxy.cli.check import WRONG_KEYS
from shadeproxy.cli.doctor import examine
from shadeproxy.core.errors import NoListener, OriginAnswer
from shadeproxy.core.locks import LOCK_NAME
from shadeproxy.tiers.version import VERSION_NAME
from tests.support.cli_origin import FakeOrigin
from tests.support.profiles import epoch, profile, truth


@pytest.fixture
def doctor(shade, check, tmp_path):
    """Return a function ``doctor(ARGUMENTS)``. It runs the command without a running proxy, and returns the
    lines of the output.
    """

    def run(*arguments):
        result = shade(
            "doctor",
            *("--set", f"cache.ram.path={tmp_path / 'ram'}", "--set", "cache.ram.capacity=1 MiB"),
            *("--set", "s3.listen=127.0.0.1:0", "--set", "control.listen=127.0.0.1:1"),
            *arguments,
        )
        assert result.exit_code == 1
        return result.stdout.splitlines()

    return run


def test_a_stopped_proxy_is_said_first_and_aws_is_not_accused(doctor, check):
    check.origin = FakeOrigin(probe=OriginAnswer(403, "AccessDenied", "no origin credentials"))
    lines = doctor()
    assert lines[0] == "wrong   not running: no proxy answers at http://127.0.0.1:1 (Connection refused)"
    assert lines[1] == (
        "        change: start it: `shadeproxy serve` with its --config and --set (its log says why it ended)"
        "; or name the control listener of another with --url"
    )
    assert lines[2] == (
        "warning origin not tried: origin.endpoint is not set here, which means AWS S3; whether the proxy is"
        " meant to read from there is not known"
    )
    assert lines[3] == (
        "        change: name the proxy's own --config or --set; `shadeproxy check` tries AWS"
    )
    assert len(lines) == 4
    assert not check.origin.closed, "it was not even opened"


def test_an_endpoint_that_was_given_is_tried_and_named(doctor, check):
    check.origin = FakeOrigin(probe=OriginAnswer(403, "SignatureDoesNotMatch"))
    lines = doctor("--set", "origin.endpoint=http://store:7480")
    assert lines[0].startswith("wrong   not running: ")
    assert lines[2:] == [
        "wrong   origin: http://store:7480: 403 SignatureDoesNotMatch",
        f"        change: {WRONG_KEYS}; the origin does not know this key or its secret",
    ]


def test_a_proxy_elsewhere_is_judged_by_nothing_here(doctor, check):
    lines = doctor("--url", "http://127.0.0.1:2", "--set", "origin.endpoint=http://store:7480")
    assert len(lines) == 2
    assert lines[0].startswith("wrong   not running: no proxy answers at http://127.0.0.1:2 (")
    assert not check.origin.closed


def test_the_report_for_machines_says_the_same(shade, check):
    result = shade(
        "doctor", "--json", "--set", "control.listen=127.0.0.1:1", "--set", "s3.listen=127.0.0.1:0"
    )
    report = json.loads(result.stdout)
    assert (report["running"], report["healthy"]) == (False, False)
    assert report["findings"][0]["name"] == "not running"
    assert [one["severity"] for one in report["findings"] if one["name"] == "origin not tried"] == ["warning"]


def test_a_cause_stays_whole_whatever_it_says():
    """A cause is shown as a whole, even if it contains the separators of the text. Its words may come from
    another program, here from the TLS library.
    """

    class Mute:
        def get(self, _path):
            raise NoListener(
                "https://h does not speak TLS (bad; very bad)", remedy="write --url; or start it"
            )

    (finding,) = examine(Mute(), None, elsewhere=True)["findings"]
    assert finding["cause"] == "https://h does not speak TLS (bad; very bad)"
    assert finding["remedy"] == "write --url; or start it"


def test_of_many_jobs_that_wait_those_that_wait_most_are_advised_and_the_others_named():
    told = {
        f"j{number}": profile(epoch(0, truth(), 0.2, compute_s=100.0, stall_s=float(number)), loader=None)
        for number in range(10, 70)
    }

    class Proxy:
        def get(self, path):
            if path == "/v1/doctor":
                return {"healthy": True, "findings": [], "facts": {}}
            if path == "/v1/jobs":
                return {"jobs": [{"job": name, "in_use": True} for name in told]}
            name = path.split("/")[3]
            return json.loads(msgspec.json.encode(msgspec.structs.replace(told[name], job=name)))

    findings = examine(Proxy(), None, elsewhere=True)["findings"]
    assert [one["name"] for one in findings] == ["waiting job"] * 16 + ["waiting jobs"]
    assert findings[0]["cause"].startswith("job 'j69' waits 41% of its time for data")
    assert findings[15]["cause"].startswith("job 'j54' waits 35%")
    assert findings[16]["cause"].startswith("these jobs wait for data too: j53 (35%), j52 (34%), ")
    assert findings[16]["cause"].endswith(" and 26 others")


def test_a_directory_whose_disk_hangs_is_a_finding(doctor, monkeypatch, tmp_path):
    monkeypatch.setattr(looks, "LOOK_S", 3.0)
    (tmp_path / "ram").mkdir()
    os.mkfifo(tmp_path / "ram" / LOCK_NAME)
    os.mkfifo(tmp_path / "ram" / VERSION_NAME)
    cause = f"{tmp_path / 'ram'} did not answer within 5 s: its disk hangs"
    assert f"wrong   cache.ram.path: {cause}" in doctor()
