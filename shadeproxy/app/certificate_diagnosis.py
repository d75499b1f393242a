"""Judges the certificate of the S3 listener: when it expires, and whether its newest files can be used.

The functions are pure: they make findings and warnings from facts. The ssl module of Python shows dates only
of certificates that it has verified, so ``expiry_s`` reads the date from the certificate itself (RFC 5280,
4.1; X.690).
"""

import datetime as dt
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

from shadeproxy.app.tier_diagnosis import Finding
from shadeproxy.core.units import format_count

SOON_S = 14 * 86400.0
"""The proxy begins to warn this many seconds before a certificate expires."""
_LISTENER = "s3.listen"
_RENEW = "renew it: write the new files over s3.tls.cert and s3.tls.key; the proxy takes them within seconds"
_VERSION, _UTC_TIME = 0xA0, 0x17
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """``expires_s``: the time at which the certificate in use expires; None if it is not known. ``now_s``:
    the time now. ``reload_error``: why the newest files cannot be used, or "".
    """

    expires_s: float | None
    now_s: float
    reload_error: str = ""


def expiry_s(chain: bytes) -> float | None:
    """Return when the first certificate of a PEM file expires; None if that cannot be read."""
    try:
        _, _, rest = chain.decode("latin-1").partition(_BEGIN)
        der = ssl.PEM_cert_to_DER_cert(_BEGIN + rest.partition(_END)[0] + _END)
        _, certificate, _ = _element(der)
        _, fields, _ = _element(certificate)
        tag, _, after = _element(fields)
        # An optional version comes first. Serial number, algorithm and issuer come before the validity.
        for _ in range(3 if tag == _VERSION else 2):
            _, _, after = _element(after)
        _, validity, _ = _element(after)
        _, _, until = _element(validity)
        tag, text, _ = _element(until)
        form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
        return dt.datetime.strptime(text.decode(), form).replace(tzinfo=dt.UTC).timestamp()
    except (ValueError, IndexError):
        return None


def _element(der: bytes) -> tuple[int, bytes, bytes]:
    """Return tag and content of the first DER element in ``der``, and the bytes after that element."""
    length, start = der[1], 2
    if length >= 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[2:start])
    return der[0], der[start : start + length], der[start + length :]


def describe_expiry(facts: CertificateFacts) -> str:
    """Return in words that the certificate has expired or will soon; "" otherwise."""
    if facts.expires_s is None or facts.expires_s - facts.now_s >= SOON_S:
        return ""
    day = dt.datetime.fromtimestamp(facts.expires_s, dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    left_s = facts.expires_s - facts.now_s
    if left_s <= 0:
        return f"the TLS certificate of {_LISTENER} expired on {day}"
    left = format_count(int(left_s // 86400), "day")
    return f"the TLS certificate of {_LISTENER} expires on {day}, in {left}"


def certificate_warnings(facts: CertificateFacts) -> Iterator[str]:
    """Yield the warnings of ``/readyz``. They name no path, because any caller may ask."""
    if told := describe_expiry(facts):
        yield told
    if facts.reload_error:
        yield f"the new TLS certificate of {_LISTENER} cannot be used, so the old one stays in use"


def certificate_findings(facts: CertificateFacts) -> Iterator[Finding]:
    """Yield the findings of the doctor."""
    if told := describe_expiry(facts):
        expired = facts.expires_s is not None and facts.expires_s <= facts.now_s
        effect = "; clients refuse to connect" if expired else ""
        yield Finding(
            "certificate expired" if expired else "certificate expires soon",
            "wrong" if expired else "warning",
            told + effect,
            _RENEW,
        )
    if facts.reload_error:
        yield Finding(
            "certificate not changed",
            "warning",
            f"the new TLS certificate of {_LISTENER} cannot be used, so the old one stays in use:"
            f" {facts.reload_error}",
            "write a certificate and its key as PEM files; the proxy looks at them every two seconds",
        )
