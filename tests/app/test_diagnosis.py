"""The doctor finds each problem from the facts, with its cause and the remedy. A healthy proxy has no
findings.
"""

from dataclasses import replace

import pytest

from shadeproxy.app.certificate_diagnosis import CertificateFacts
from shadeproxy.app.cluster_diagnosis import ClusterFacts
from shadeproxy.app.diagnosis import DoubtfulJob, MissedNeed, ProxyState, diagnose
from shadeproxy.app.tier_diagnosis import TierFacts

GIB = 1024**3
TIER = TierFacts(
    name="disk",
    path="/cache",
    capacity_bytes=8 * GIB,
    limit_bytes=8 * GIB,
    used_bytes=GIB,
    min_free_bytes=GIB,
    file_system_bytes=100 * GIB,
    free_bytes=50 * GIB,
)
WELL = ProxyState(
    status="ready",
    endpoint="http://origin",
    probe="S3 at http://origin answers; 2 buckets",
    probe_error="",
    probe_code="",
    probe_status=0,
    health={"clock_skew_s": 0.4, "throttled": 0, "last_refusal": None, "last_failure": None},
    requests=100,
    misses=100,
    miss_p90_s=0.2,
    credentials_left_s=None,
    tiers=(replace(TIER, name="ram"), TIER),
    state_path="/state",
    state_error="",
    state_failing=False,
    state_detached=False,
    state_aside=(),
    descriptors_open=100,
    descriptors_limit=65536,
    connections_refused=0,
    waits=(),
    reload_error="",
)


def test_a_well_proxy_has_no_findings():
    assert diagnose(WELL) == []


def tier(**changes):
    return {"tiers": (replace(TIER, **changes),)}


def health(**changes):
    return {"health": WELL.health | changes}


REFUSED = {"kind": "InvalidAccessKeyId", "text": "403 InvalidAccessKeyId", "age_s": 30.0}


@pytest.mark.parametrize(
    ("changes", "name", "severity", "cause", "remedy"),
    [
        (tier(detached=True), "tier disk deleted", "wrong", "/cache was deleted or", "restart the proxy"),
        (
            tier(aside=("/cache.incompatible-1",)),
            "cache of tier disk moved aside",
            "warning",
            "/cache.incompatible-1: an earlier start could not use it",
            "delete it",
        ),
        ({"state_detached": True}, "state deleted", "wrong", "the database in /state was", "restart"),
        (
            {"state_aside": ("/state/cache.db.damaged-1",)},
            "state moved aside",
            "warning",
            "/state/cache.db.damaged-1",
            "delete it",
        ),
        (
            {"probe_error": "http://origin is no S3 server: it answers", "probe_hint": "set origin.endpoint"},
            "origin is no S3 server",
            "wrong",
            "http://origin is no S3 server: it answers",
            "set origin.endpoint",
        ),
        ({"probe_error": "refused"}, "origin unreachable", "wrong", "http://origin does not", "endpoint"),
        (
            {"probe_error": "403 SignatureDoesNotMatch", "probe_code": "SignatureDoesNotMatch"},
            "credentials refused",
            "wrong",
            "SignatureDoesNotMatch",
            "[origin.credentials]",
        ),
        (
            {"probe_error": "403 AccessDenied", "probe_status": 403, "probe_hint": "set AWS_ACCESS_KEY_ID"},
            "no credentials",
            "wrong",
            "the proxy has no credentials for the origin",
            "set AWS_ACCESS_KEY_ID",
        ),
        (
            {
                "probe_error": "the config profile (nope) could not be found",
                "probe_code": "CredentialsUnresolved",
                "probe_hint": "correct the profile",
            },
            "no credentials",
            "wrong",
            "the config profile (nope) could not be found",
            "correct the profile",
        ),
        (
            {"probe_error": "403 Other", "probe_status": 403, "probe_code": "Other"},
            "access refused",
            "wrong",
            "403 Other",
            "rights",
        ),
        (health(clock_skew_s=90.0), "clock skew", "warning", "90 s behind", "set the clock"),
        (health(clock_skew_s=-3600.0), "clock skew", "wrong", "3600 s ahead of", "set the clock"),
        (
            {"unidentified": 3},
            "objects without identity",
            "warning",
            "sent 3 answers without a strong ETag or Content-Length",
            "gateway",
        ),
        (health(throttled=7), "throttled", "warning", "slow down 7 times", "origin.max_connections"),
        (
            health(last_refusal=REFUSED),
            "a client's credentials refused",
            "warning",
            "30 s ago",
            "[[auth.clients]]",
        ),
        ({"loop_lag_p99_s": 0.2}, "event loop late", "warning", "up to 200 ms", "in binary form"),
        ({"miss_p90_s": 3.0}, "slow misses", "warning", "longer than 3.0 s", "latency"),
        ({"credentials_left_s": 100.0}, "credentials expire", "warning", "expire in 100 s", "issues"),
        (
            {"certificate": CertificateFacts(0.0, 1.0)},
            "certificate expired",
            "wrong",
            "of s3.listen expired on 1970-01-01 00:00 UTC; clients refuse to connect",
            "renew it",
        ),
        (
            {"certificate": CertificateFacts(86400.0, 1.0)},
            "certificate expires soon",
            "warning",
            "of s3.listen expires on 1970-01-02 00:00 UTC",
            "renew it",
        ),
        (
            {"certificate": CertificateFacts(None, 1.0, "they do not fit")},
            "certificate not changed",
            "warning",
            "stays in use: they do not fit",
            "PEM files",
        ),
        ({"credentials_left_s": -5.0}, "credentials expire", "wrong", "expired 5 s ago", "issues"),
        (
            tier(hangs_s=12.3, free_bytes=0),
            "disk of tier disk hangs",
            "wrong",
            "an operation on /cache has taken 12 s so far",
            "mend the medium of /cache",
        ),
        (
            tier(disabled_reason="tier disk takes no more pages: Input/output error"),
            "tier disk disabled",
            "wrong",
            "Input/output error",
            "restart",
        ),
        (
            tier(limit_bytes=2 * GIB, free_bytes=GIB),
            "tier disk full",
            "wrong",
            "holds 2.0 GiB of 8.0 GiB",
            "cache.disk.capacity or min_free",
        ),
        (
            tier(file_system_bytes=GIB, limit_bytes=GIB),
            "tier disk too big",
            "wrong",
            "has 1.0 GiB in all",
            "lower cache.disk.min_free and cache.disk.capacity",
        ),
        (
            tier(error="Stale file handle", file_system_bytes=0),
            "tier disk unreadable",
            "wrong",
            "Stale",
            "path",
        ),
        ({"state_error": "No space left"}, "state not writable", "wrong", "No space left", "state.path"),
        ({"state_failing": True}, "state not saved", "wrong", "last commit", "log has the reason"),
        ({"descriptors_limit": 1024}, "few descriptors", "warning", "may open 1024", "LimitNOFILE"),
        ({"descriptors_open": 60000}, "descriptors run out", "wrong", "60000 of 65536", "clients that leak"),
        ({"status": "draining"}, "not ready", "warning", "is draining", "wait"),
        ({"waits": ("cache.page_size",)}, "needs a restart", "warning", "cache.page_size", "restart"),
        ({"reload_error": "x: unknown key"}, "reload refused", "warning", "unknown key", "SIGHUP"),
    ],
)
def test_a_trouble_is_found_by_its_sign(changes, name, severity, cause, remedy):
    (finding,) = diagnose(replace(WELL, **changes))
    assert (finding.name, finding.severity) == (name, severity)
    assert cause in finding.cause
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    "changes",
    [
        health(clock_skew_s=59.0),
        health(clock_skew_s=None),
        health(last_refusal=REFUSED | {"age_s": 3600.0}),
        {"miss_p90_s": 3.0, "misses": 3},
        {"credentials_left_s": 3600.0},
        {"doubtful_jobs": (DoubtfulJob("resnet", True, 4_000, 0.004, "silent"),)},
    ],
)
def test_what_is_only_unusual_is_no_trouble(changes):
    assert diagnose(replace(WELL, **changes)) == []


@pytest.mark.parametrize(
    ("is_silent", "name", "remedy"),
    [
        (
            True,
            "silent job",
            "if it is dead, forget it and its scores at once: DELETE /v1/jobs/resnet",
        ),
        (
            False,
            "doubtful job",
            "let no two runs use one name at the same time: until then its pages count for less",
        ),
    ],
)
def test_a_job_that_is_hardly_believed_is_named_with_what_it_holds_and_why(is_silent, name, remedy):
    job = DoubtfulJob("resnet", is_silent, 873_000, 0.873, "3 % of its reads were announced")
    (finding,) = diagnose(replace(WELL, doubtful_jobs=(job,)))
    assert (finding.name, finding.severity) == (name, "warning")
    state = "silent" if is_silent else "hardly believed"
    held = "its data set has 873,000 bytes (87 %) of the cache"
    assert finding.cause == f"job 'resnet' is {state}: {held}: 3 % of its reads were announced"
    assert finding.remedy.endswith(remedy)


def test_the_worst_comes_first():
    found = diagnose(replace(WELL, waits=("a",), state_failing=True, **health(throttled=1)))
    assert [finding.severity for finding in found] == ["wrong", "warning", "warning"]


def test_a_missed_need_is_named_with_numbers_cause_and_remedy():
    job = MissedNeed("resnet", 400.0, 284.0, "its reads wait for the link", "ask for less")
    (finding,) = diagnose(replace(WELL, missed_needs=(job,)))
    assert (finding.name, finding.severity, finding.remedy) == ("need missed", "warning", "ask for less")
    assert finding.cause == (
        "job 'resnet' gets 284 of the 400 samples a second that it needs: its reads wait for the link"
    )


def test_the_findings_about_the_cluster_are_among_all_others():
    cluster = ClusterFacts(owned=True, lapses=1, conflict=True)
    found = diagnose(replace(WELL, cluster=cluster, unidentified=3))
    assert [one.name for one in found] == [
        "state directory copied",
        "objects without identity",
        "lease lapsed",
    ]


def test_hints_that_found_no_room_are_a_warning_that_names_the_setting():
    (finding,) = diagnose(replace(WELL, hints_refused=3))
    assert (finding.name, finding.severity) == ("hints refused", "warning")
    assert "3 calls found no room" in finding.cause
    assert "raise control.hint_memory" in finding.remedy
