"""Makes signed heads of page GETs, with the same signatures as core/sigv4.py makes, but in fewer steps.

A page GET signs only Host and the x-amz fields that are added here. So for one second the head stays the same
except for path, range and signature. The parts that stay the same are made once a second (docs/adr/0005 has
the measurements). tests/origin/test_signing.py compares both signers.
"""

import hashlib
from typing import NamedTuple

from shadeproxy.core.sigv4 import (
    ALGORITHM,
    EMPTY_SHA256,
    Credentials,
    Scope,
    Signer,
    canonical_request,
    encode_path,
    format_amz_date,
    is_plain_path,
    signing_key,
)
from shadeproxy.core.tracing import INSTANCE_FIELD, ORIGIN_FIELD
from shadeproxy.core.types import Span
from shadeproxy.origin.addressing import Target
from shadeproxy.origin.base import Wanted

CHECKSUM_MODE = "x-amz-checksum-mode"


class SignedParts(NamedTuple):
    """The parts of a signature that stay the same for a second. ``canonical``: the canonical request after
    its path. ``inner``, ``outer``: hashes of a Signer, to be copied. ``authorization``: the field up to the
    signature.
    """

    canonical: str
    inner: "hashlib._Hash"
    outer: "hashlib._Hash"
    authorization: str


def signed_parts(
    signed: list[tuple[str, str]], *, access_key: str, secret_key: str, region: str, amz_date: str
) -> SignedParts:
    """Return the fixed parts of signatures of GETs without a query. ``signed``: the fields to sign, sorted by
    name.
    """
    scope = Scope(amz_date[:8], region)
    signer = Signer(signing_key(secret_key, scope), str(scope))
    names = ";".join(name for name, _ in signed)
    return SignedParts(
        canonical_request("GET", "", "", signed, EMPTY_SHA256).removeprefix("GET\n"),
        signer.begin(amz_date.encode()),
        signer.outer,
        f"Authorization: {ALGORITHM} Credential={access_key}/{scope}, SignedHeaders={names}, Signature=",
    )


class PageHeads:
    """Renders heads of page GETs. ``instance``: the name by which the proxy recognises its own requests."""

    def __init__(self, instance: str = "") -> None:
        self._ours = f"{INSTANCE_FIELD}: {instance}\r\n" if instance else ""
        self._second = -1
        # The parts that stay the same during this second, by host, by region, by whether the whole object is
        # requested, and by credentials.
        self._fixed: dict[tuple[object, ...], tuple[str, SignedParts | None]] = {}

    def render(
        self,
        target: Target,
        wanted: Wanted,
        credentials: Credentials | None,
        *,
        now_s: float,
        request_id: str = "",
    ) -> bytes:
        """Return the head of a GET. It has no signature if ``credentials`` is None. ``request_id``: the id of
        the client's request; "" if no client waits.
        """
        _, host, raw_path, region = target
        span = wanted.span
        if int(now_s) != self._second:
            self._second = int(now_s)
            self._fixed.clear()
        key: tuple[object, ...] = (host, region, span is None)
        if credentials is not None:
            key = (*key, credentials.access_key, credentials.secret_key, credentials.session_token)
        fields, signing = self._fixed.get(key) or self._fix(key, target, credentials, whole=span is None)
        more = "" if span is None else f"Range: {range_field(span)}\r\n"
        if wanted.if_match is not None:
            more += f"If-Match: {wanted.if_match}\r\n"
        if request_id:
            more += f"{ORIGIN_FIELD}: {request_id}\r\n"
        if signing is not None:
            path = raw_path if is_plain_path(raw_path) else encode_path(raw_path)
            inner, outer = signing.inner.copy(), signing.outer.copy()
            inner.update(hashlib.sha256(f"GET\n{path}{signing.canonical}".encode()).hexdigest().encode())
            outer.update(inner.digest())
            more += f"{signing.authorization}{outer.hexdigest()}\r\n"
        return f"GET {raw_path} HTTP/1.1\r\n{fields}{more}\r\n".encode("utf-8", "surrogateescape")

    def _fix(
        self, key: tuple[object, ...], target: Target, credentials: Credentials | None, *, whole: bool
    ) -> tuple[str, SignedParts | None]:
        host = target.host
        # "identity": a gateway on the way must not compress bodies, because sizes and ranges count the stored
        # bytes.
        fields = f"Host: {host}\r\nUser-Agent: shadeproxy\r\nAccept-Encoding: identity\r\n{self._ours}"
        signed = [("host", host)]
        if whole:
            signed.append((CHECKSUM_MODE, "ENABLED"))
            fields += f"{CHECKSUM_MODE}: ENABLED\r\n"
        signing = None
        if credentials is not None:
            amz_date = format_amz_date(self._second)
            added = [("x-amz-content-sha256", EMPTY_SHA256), ("x-amz-date", amz_date)]
            if credentials.session_token:
                added.append(("x-amz-security-token", credentials.session_token))
            signed += added
            fields += "".join(f"{name}: {value}\r\n" for name, value in added)
            signing = signed_parts(
                signed,
                access_key=credentials.access_key,
                secret_key=credentials.secret_key,
                region=target.region,
                amz_date=amz_date,
            )
        fixed = self._fixed[key] = fields, signing
        return fixed


def range_field(span: Span) -> str:
    """Return the value of Range for ``span``. HTTP has no empty range. So for an empty span, the range is one
    byte long, and the caller drops this byte.
    """
    if span.start < 0:
        return f"bytes={span.start}"
    return f"bytes={span.start}-{max(span.stop - 1, span.start)}"
