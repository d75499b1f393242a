"""The commands check and doctor and the call /readyz show a certificate that expires, and unusable files."""

import asyncio
import datetime as dt

import pytest
from cryptography import x509

from shadeproxy.app.certificate_diagnosis import (
    CertificateFacts,
    certificate_findings,
    certificate_warnings,
    expiry_s,
)
from shadeproxy.app.tls import ServerTls
from shadeproxy.cli.check import run_checks
from shadeproxy.config import Settings
from tests.support.certificate import write_certificate, write_self_signed
from tests.support.clock import ManualClock

DAY_S = 86400.0
NOON_S = dt.datetime(2030, 3, 1, 12, tzinfo=dt.UTC).timestamp()


def test_the_date_is_the_one_that_another_library_reads(tmp_path):
    for made in (write_certificate(tmp_path, days=500), write_self_signed(tmp_path)):
        chain = made.cert.read_bytes()
        expected = x509.load_pem_x509_certificate(chain).not_valid_after_utc.timestamp()
        assert expiry_s(b"text before\n" + chain + made.authority.read_bytes()) == expected


def test_a_date_after_2049_is_read(tmp_path):
    chain = write_certificate(tmp_path, days=365 * 60).cert.read_bytes()
    assert expiry_s(chain) == x509.load_pem_x509_certificate(chain).not_valid_after_utc.timestamp()


@pytest.mark.parametrize("chain", [b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nAAAA\n", b"\xff"])
def test_what_is_no_certificate_has_no_date(chain):
    assert expiry_s(chain) is None


@pytest.mark.parametrize(
    ("left_s", "severity", "text"),
    [
        (15 * DAY_S, None, ""),
        (13.5 * DAY_S, "warning", "of s3.listen expires on 2030-03-15 00:00 UTC, in 13 days"),
        (-DAY_S, "wrong", "of s3.listen expired on 2030-02-28 12:00 UTC"),
    ],
)
def test_the_end_of_a_certificate_is_shown_14_days_ahead(left_s, severity, text):
    facts = CertificateFacts(NOON_S + left_s, NOON_S)
    assert [one.severity for one in certificate_findings(facts)] == [severity] * (severity is not None)
    (warning,) = certificate_warnings(facts) if severity else ("",)
    assert warning.endswith(text)


async def test_a_watch_tells_that_new_files_cannot_be_used(tmp_path):
    made = await asyncio.to_thread(write_certificate, tmp_path)
    tls, clock = await asyncio.to_thread(ServerTls, str(made.cert), str(made.key)), ManualClock()
    watching = asyncio.create_task(tls.watch(clock))
    await asyncio.to_thread(made.key.write_bytes, b"no key")
    async with asyncio.timeout(20):
        while not tls.failure:
            await asyncio.sleep(0.01)
    (warning,) = (one for one in certificate_warnings(tls.facts(0.0)) if "cannot be used" in one)
    assert warning == "the new TLS certificate of s3.listen cannot be used, so the old one stays in use"
    (finding,) = (
        one for one in certificate_findings(tls.facts(0.0)) if one.name == "certificate not changed"
    )
    assert str(made.key) in finding.cause
    watching.cancel()


@pytest.mark.parametrize(
    ("days", "ok", "text"), [(90, True, ""), (3, True, "expires on"), (-1, False, "expired on")]
)
def test_check_shows_the_end_of_the_certificate(tmp_path, days, ok, text):
    made = write_certificate(tmp_path, days=days)
    settings = Settings.load(None, [f"s3.tls.cert={made.cert}", f"s3.tls.key={made.key}"])
    (row,) = (row for row in run_checks(settings, with_origin=False) if row.name == "s3.tls")
    assert row.ok is ok
    assert text in row.detail
    assert bool(row.change) is bool(text)
