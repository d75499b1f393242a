"""PageSigner makes the same signature as core/sigv4.py."""

import pytest

from shadeproxy.core.sigv4 import EMPTY_SHA256, Credentials, sign_request
from shadeproxy.origin.signing import PageSigner

PATHS = ["/", "/bucket/key", "/b/a%20b/%E9~.-_", "/base/a+b=c/%2F//x", "/b/..//k"]


@pytest.mark.parametrize("token", [None, "a token==", "two  spaces"])
@pytest.mark.parametrize("with_checksums", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_both_signers_agree(path, with_checksums, token):
    credentials = Credentials("AKID", "secret", token)
    signer = PageSigner("eu-west-1")
    for now_s in (1.7e9, 1.7e9 + 0.5, 1.7e9 + 86_400):
        signed = [("host", "example.org:9000")]
        if with_checksums:
            signed.append(("x-amz-checksum-mode", "ENABLED"))
        expected = sign_request(
            method="GET",
            raw_path=path,
            raw_query="",
            headers=signed,
            payload_hash=EMPTY_SHA256,
            credentials=credentials,
            region="eu-west-1",
            now_s=now_s,
        )
        lines = signer.fields(
            "example.org:9000", path, credentials, now_s=now_s, with_checksums=with_checksums
        )
        assert lines == "".join(f"{name}: {value}\r\n" for name, value in expected)
