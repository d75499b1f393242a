"""Signed heads of page GETs: the same signature as core/sigv4.py, made from fewer parts.

A page GET signs only Host and the x-amz fields added here. So the canonical request is one format string, and
date and scope change at most once a second (measured in docs/adr/0005). tests/origin/test_signing.py compares
both signers.
"""

from shadeproxy.core.sigv4 import (
    ALGORITHM,
    EMPTY_SHA256,
    Credentials,
    Scope,
    Signer,
    encode_path,
    format_amz_date,
    signing_key,
)

_CHECKSUM_MODE = "x-amz-checksum-mode"


class PageSigner:
    """Signs page GETs for ``region``."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._second = -1
        self._amz_date = ""
        self._scope = Scope("", region)
        self._scope_text = ""
        self._signers: dict[str, Signer] = {}  # By secret key; all for this scope.

    def fields(
        self, host: str, raw_path: str, credentials: Credentials, *, now_s: float, with_checksums: bool
    ) -> str:
        """Return the header lines that sign a GET of ``raw_path`` without query and body.

        ``with_checksums``: the request has ``x-amz-checksum-mode: ENABLED``.
        """
        if int(now_s) != self._second:
            self._tick(now_s)
        path, amz_date, token = encode_path(raw_path), self._amz_date, credentials.session_token
        mode = f"{_CHECKSUM_MODE}:ENABLED\n" if with_checksums else ""
        names = f"host;{_CHECKSUM_MODE};" if with_checksums else "host;"
        names += "x-amz-content-sha256;x-amz-date"
        token_line = token_field = ""
        if token:
            names += ";x-amz-security-token"
            token_line = f"x-amz-security-token:{' '.join(token.split())}\n"
            token_field = f"x-amz-security-token: {token}\r\n"
        canonical = (
            f"GET\n{path}\n\nhost:{host}\n{mode}x-amz-content-sha256:{EMPTY_SHA256}\n"
            f"x-amz-date:{amz_date}\n{token_line}\n{names}\n{EMPTY_SHA256}"
        )
        signer = self._signers.get(credentials.secret_key) or self._new_signer(credentials.secret_key)
        signature = signer.sign(amz_date.encode(), canonical.encode())
        return (
            f"x-amz-date: {amz_date}\r\nx-amz-content-sha256: {EMPTY_SHA256}\r\n{token_field}"
            f"Authorization: {ALGORITHM} Credential={credentials.access_key}/{self._scope_text}, "
            f"SignedHeaders={names}, Signature={signature}\r\n"
        )

    def _tick(self, now_s: float) -> None:
        self._second = int(now_s)
        self._amz_date = format_amz_date(now_s)
        scope = Scope(self._amz_date[:8], self._region)
        if scope != self._scope:
            self._scope, self._scope_text = scope, str(scope)
            self._signers.clear()

    def _new_signer(self, secret_key: str) -> Signer:
        signer = Signer(signing_key(secret_key, self._scope), self._scope_text)
        self._signers[secret_key] = signer
        return signer
