"""core/sigv4.py makes the same signatures as botocore's S3 signer, for generated keys, queries and header
fields.
"""

from datetime import UTC, datetime
from unittest import mock
from urllib.parse import quote

import botocore.auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.core.sigv4 import EMPTY_SHA256, Credentials, sign_request

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=30)
NAMES = st.sampled_from(["x-amz-meta-a", "x-amz-meta-b", "content-type", "x-amz-acl", "x-amz-checksum-mode"])


def botocore_signature(method, raw_path, raw_query, headers, credentials):
    request = AWSRequest(
        method, f"http://host.example:9000{raw_path}" + (f"?{raw_query}" if raw_query else "")
    )
    for name, value in headers.items():
        request.headers[name] = value
    request.context["payload_signing_enabled"] = True
    signer = botocore.auth.S3SigV4Auth(credentials, "s3", "eu-west-1")
    with mock.patch("botocore.auth.get_current_datetime", return_value=NOW.replace(tzinfo=None)):
        signer.add_auth(request)
    return request.headers


@given(
    key=KEYS,
    query=st.dictionaries(st.text("abcXYZ-~.%+é ", min_size=1, max_size=8), KEYS, max_size=4),
    headers=st.dictionaries(NAMES, VALUES, max_size=4),
    token=st.none() | st.just("session+token/=="),
    method=st.sampled_from(["GET", "HEAD", "DELETE"]),
)
def test_signatures_equal_botocores(key, query, headers, token, method):
    raw_path = "/bucket/" + quote(key, safe="/-_.~")
    raw_query = "&".join(f"{quote(n, safe='-_.~')}={quote(v, safe='-_.~')}" for n, v in query.items())
    added = sign_request(
        method=method,
        raw_path=raw_path,
        raw_query=raw_query,
        headers=[("host", "host.example:9000"), *headers.items()],
        payload_hash=EMPTY_SHA256,
        credentials=Credentials("AKID", "secret", token),
        region="eu-west-1",
        now_s=NOW.timestamp(),
    )
    expected = botocore_signature(
        method, raw_path, raw_query, headers, ReadOnlyCredentials("AKID", "secret", token)
    )
    assert dict(added)["Authorization"] == expected["Authorization"]
    assert dict(added).get("x-amz-security-token") == expected.get("X-Amz-Security-Token")
