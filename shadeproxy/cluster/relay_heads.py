"""Renders signed heads of plain GETs to another node, with the signatures of core/sigv4.py but less work.

Within a second, only path, range, request id and signature differ between the heads, so all other parts are
computed once a second. origin/signing.py does the same for GETs of pages.
"""

import hashlib

from shadeproxy.cluster.peer_requests import PEER_KEY, REGION
from shadeproxy.core.sigv4 import EMPTY_SHA256, format_amz_date
from shadeproxy.core.tracing import JOB_FIELD, ORIGIN_FIELD, PEER_FIELD
from shadeproxy.origin.signing import CHECKSUM_MODE, SignedParts, signed_parts


class RelayHeads:
    """Renders the heads of GETs to the node at ``host``. It keeps the parts of the signature that repeat for
    a second.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._second = -1
        self._kept: dict[tuple[str, str, str, bool], tuple[str, SignedParts]] = {}

    def render(
        self,
        path: str,
        *,
        peer_field: str,
        job_field: str,
        checksums: bool,
        range_field: str,
        secret: str,
        now_s: float,
        request_id: str,
    ) -> bytes:
        """Return the head of a GET of ``path``, a canonical URI like ``S3Request.path``. ``peer_field``: the
        value of ``x-shade-peer``; ``job_field``, ``range_field``: values of the fields ``x-shade-job`` and
        ``Range``, or "". ``checksums``: the client asks for the checksums of the object.
        """
        if int(now_s) != self._second:
            self._second = int(now_s)
            self._kept.clear()
        key = (peer_field, job_field, secret, checksums)
        fields, signing = self._kept.get(key) or self._keep(key)
        inner, outer = signing.inner.copy(), signing.outer.copy()
        text = f"GET\n{path}{signing.canonical}"
        inner.update(hashlib.sha256(text.encode()).hexdigest().encode())
        outer.update(inner.digest())
        wanted = f"Range: {range_field}\r\n" if range_field else ""
        return (
            f"GET {path} HTTP/1.1\r\n{fields}{wanted}{ORIGIN_FIELD}: {request_id}\r\n"
            f"{signing.authorization}{outer.hexdigest()}\r\n\r\n"
        ).encode()

    def _keep(self, key: tuple[str, str, str, bool]) -> tuple[str, SignedParts]:
        peer_field, job_field, secret, checksums = key
        amz_date = format_amz_date(self._second)
        added = [("x-amz-content-sha256", EMPTY_SHA256), ("x-amz-date", amz_date), (PEER_FIELD, peer_field)]
        if job_field:
            added.append((JOB_FIELD, job_field))
        if checksums:
            added.append((CHECKSUM_MODE, "ENABLED"))
        fields = f"Host: {self._host}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in added)
        signing = signed_parts(
            sorted([("host", self._host), *added]),
            access_key=PEER_KEY,
            secret_key=secret,
            region=REGION,
            amz_date=amz_date,
        )
        kept = self._kept[key] = fields, signing
        return kept
