"""Failures of tiers are all counted. Their log lines do not hide the other lines of the log."""

from types import SimpleNamespace

from structlog.testing import capture_logs

from shadeproxy.core.errors import TierError
from shadeproxy.engine.storage.tier_failures import TierFailures
from shadeproxy.telemetry.stats import Stats

RAM, DISK = (
    SimpleNamespace(name="ram", disabled_reason=None),
    SimpleNamespace(name="disk", disabled_reason=None),
)


def test_a_medium_that_fails_for_each_page_gets_few_log_lines():
    stats, now_s = Stats(), [5.0]
    failures = TierFailures(stats, now_s=lambda: now_s[0])
    with capture_logs() as logs:
        for _ in range(1000):
            failures.note(DISK, "write", TierError("full"))
        failures.note(DISK, "read", TierError("damaged"))
        failures.note(RAM, "write", TierError("full"))
        now_s[0] += 10.0
        failures.note(DISK, "write", TierError("still full"))
        now_s[0] += 100.0
        failures.note(DISK, "write", TierError("full again"))
    assert [(line["tier"], line["doing"], line["error"], line.get("not_logged")) for line in logs] == [
        ("disk", "write", "full", None),
        ("disk", "read", "damaged", None),
        ("ram", "write", "full", None),
        ("disk", "write", "still full", 999),
        ("disk", "write", "full again", None),
    ]
    tiers = stats.snapshot()["tiers"]
    assert tiers["disk"]["errors"] == {"write": 1002, "read": 1}
    assert tiers["ram"]["errors"] == {"write": 1}


def test_a_tier_that_takes_no_more_pages_is_not_logged_again():
    stats = Stats()
    with capture_logs() as logs:
        TierFailures(stats).note(
            SimpleNamespace(name="disk", disabled_reason="EIO"), "reserve", TierError("EIO")
        )
    assert logs == []
    assert stats.snapshot()["tiers"]["disk"]["errors"] == {"reserve": 1}
