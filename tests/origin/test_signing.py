"""PageHeads makes the same signatures as core/sigv4.py."""

import pytest

from shadeproxy.core.sigv4 import EMPTY_SHA256, Credentials, sign_request
from shadeproxy.core.types import SHARED, ObjectRef, Span
from shadeproxy.origin.addressing import Target
from shadeproxy.origin.base import Wanted
from shadeproxy.origin.signing import PageHeads

PATHS = ["/", "/bucket/key", "/b/a%20b/%E9~.-_", "/base/a+b=c/%2F//x", "/b/..//k"]


@pytest.mark.parametrize("token", [None, "a token==", "two  spaces"])
@pytest.mark.parametrize("with_checksums", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_both_signers_agree(path, with_checksums, token):
    credentials = Credentials("AKID", "secret", token)
    heads = PageHeads()
    wanted = Wanted(ObjectRef("b", "k"), None if with_checksums else Span(3, 9), None, SHARED)
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
        target = Target("http://example.org:9000", "example.org:9000", path, "eu-west-1")
        line, *fields = heads.render(target, wanted, credentials, now_s=now_s).decode().split("\r\n")
        assert line == f"GET {path} HTTP/1.1"
        assert fields[-2:] == ["", ""]
        signing = {"x-amz-date", "x-amz-content-sha256", "x-amz-security-token", "Authorization"}
        rendered = dict(field.split(": ", 1) for field in fields[:-2])
        assert {name: value for name, value in rendered.items() if name in signing} == dict(expected)
        assert rendered["Host"] == "example.org:9000"
        assert rendered.get("x-amz-checksum-mode") == ("ENABLED" if with_checksums else None)
        assert rendered.get("Range") == (None if with_checksums else "bytes=3-8")


def test_a_key_that_changes_within_a_second_signs_the_next_request():
    heads, now_s = PageHeads(), 1.7e9
    target = Target("http://h", "h", "/b/k", "us-east-1")
    wanted = Wanted(ObjectRef("b", "k"), None, None, SHARED)
    keys = [Credentials("A", "one"), Credentials("A", "two"), Credentials("A", "two", "token"), None]
    rendered = [heads.render(target, wanted, key, now_s=now_s) for key in keys]
    assert len(set(rendered)) == len(keys)
    assert [heads.render(target, wanted, key, now_s=now_s) for key in keys] == rendered
    assert b"Authorization" not in rendered[-1]


def test_the_region_of_a_bucket_signs_its_requests_beside_those_of_others():
    """Both buckets have the same host, in the same second."""
    heads, wanted = PageHeads(), Wanted(ObjectRef("b", "k"), None, None, SHARED)
    for region in ("us-east-1", "eu-west-1", "us-east-1"):
        target = Target("http://h", "h", "/b/k", region)
        rendered = heads.render(target, wanted, Credentials("A", "one"), now_s=1.7e9)
        assert f"/{region}/s3/aws4_request".encode() in rendered
