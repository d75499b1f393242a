"""Requests that Ceph RGW understands in another way than the check of rights does, sent to the real
server.
"""

import http.client
import re
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from shadeproxy.api.s3.fields import AMZ_FIELDS
from tests.support.rgw import SIGNED_ONLY

pytestmark = pytest.mark.rgw

CLIENTS = f"""{SIGNED_ONLY}
[[auth.clients]]
access_key = "limited"
secret_env = "LIMITED_SECRET"
buckets = ["open"]
[[auth.clients]]
access_key = "all"
secret_env = "LIMITED_SECRET"
"""
OWN = """
[[auth.clients]]
access_key = "own"
secret_env = "LIMITED_SECRET"
upstream = { access_key = "%s", secret_env = "ORIGIN_SECRET" }
"""


@pytest.fixture(scope="module")
def direct(rgw):
    """Return a client that is connected directly to the gateway. A second bucket contains a secret object."""
    client = _client(rgw.endpoint, *rgw.main)
    for bucket in ("open", "other"):
        client.create_bucket(Bucket=bucket)
    client.put_object(Bucket="other", Key="secret", Body=b"of somebody else")
    return client


@pytest.fixture(scope="module", params=["1", "2"], ids=["alone", "workers"])
def proxy(request, rgw, direct, serve_for_module, tmp_path_factory):
    config = tmp_path_factory.mktemp("canonical") / "config.toml"
    config.write_text(CLIENTS + OWN % rgw.main[0])
    secrets = rgw.secrets | {"LIMITED_SECRET": "secret"}
    settings = {"origin__endpoint": rgw.endpoint, "s3__workers": request.param}
    return serve_for_module(config, secrets, **settings)


def _client(url, key, secret, **config):
    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(retries={"max_attempts": 1}, **config),
    )


def send(url, method, fields=None, body=None):
    """Return status and body of the answer to a request that is sent exactly as given."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    connection.request(method, url.partition(parts.netloc)[2], body, fields or {})
    answer = connection.getresponse()
    try:
        return answer.status, answer.read()
    finally:
        connection.close()


def signed(proxy, method, path, fields=None, *, key="limited"):
    return signed_at(proxy.s3, (key, "secret"), method, path, fields)


def signed_at(url, keys, method, path, fields=None):
    request = AWSRequest(method, f"{url}{path}", {"Host": urlsplit(url).netloc, **(fields or {})})
    S3SigV4Auth(Credentials(*keys), "s3", "us-east-1").add_auth(request)
    body = None if method in {"GET", "HEAD"} else b""
    return send(f"{url}{path}", method, dict(request.headers.items()), body)


def code_of(body):
    """Return the code of an error, or the whole body of any other answer."""
    found = re.search(b"<Code>(.+?)</Code>", body)
    return found[1] if found else body


@pytest.mark.parametrize("name", ["x_amz_copy_source", "x-amz-copy_source", "X_Amz_Copy_Source"])
def test_a_field_with_underscores_copies_nothing_from_another_bucket(proxy, direct, name):
    assert signed(proxy, "PUT", "/open/k", {name: "/other/secret"})[0] == 400
    listed = direct.list_objects_v2(Bucket="open")
    assert "k" not in [entry["Key"] for entry in listed.get("Contents", [])]


def test_a_field_with_underscores_makes_nothing_public(proxy, direct):
    s3 = _client(proxy.s3, "all", "secret", signature_version="s3v4")
    url = s3.generate_presigned_url("put_object", Params={"Bucket": "open", "Key": "p"})
    assert send(url, "PUT", {"x_amz_acl": "public-read"}, b"x")[0] == 400
    assert send(url, "PUT", {}, b"x")[0] == 200
    assert len(direct.get_object_acl(Bucket="open", Key="p")["Grants"]) == 1


@pytest.mark.parametrize("more", ["%61cl", "%74agging", "%72esponse-content-type=text/html", "%76ersionId=1"])
def test_version_2_covers_what_the_gateway_reads(proxy, direct, more):
    direct.put_object(Bucket="open", Key="v2", Body=b"body", ContentType="a/b")
    s3 = _client(proxy.s3, "all", "secret", signature_version="s3")
    url = s3.generate_presigned_url("get_object", Params={"Bucket": "open", "Key": "v2"})
    assert send(url, "GET") == (200, b"body")
    assert send(f"{url}&{more}", "GET")[0] == 403


@pytest.mark.parametrize("path", ["/admin/user?uid=main", "/admin/bucket", "/swift/v1/open", "/auth/v1.0"])
def test_the_gateways_own_interfaces_are_not_asked(proxy, path):
    status, body = signed(proxy, "GET", path, key="all")
    assert status in {400, 501}
    assert b"secret_key" not in body


def test_a_tenants_bucket_is_not_asked_for(proxy):
    assert signed(proxy, "GET", "/tenant:open/k", key="all")[0] == 400


@pytest.mark.parametrize("target", ["/open?acl", "/open/seen?acl", "/open/seen?tagging"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_sub_resource_answers_as_the_gateway_does(proxy, direct, rgw, method, target):
    direct.put_object(Bucket="open", Key="seen", Body=b"body")
    expected = signed_at(rgw.endpoint, rgw.main, method, target)
    assert signed(proxy, method, target, key="all") == expected


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_field_of_another_operation_is_answered_as_the_gateway_does(proxy, direct, rgw, method):
    """A header field of another operation gets the same answer as at the gateway. The request reads a cached
    object. Only a copy source is left out: the proxy refuses a plain read with one, as AWS does.
    """
    direct.put_object(Bucket="open", Key="warm", Body=b"body")
    for _ in range(2):
        assert signed(proxy, "GET", "/open/warm", key="all") == (200, b"body")
    differing = []
    for name in sorted(AMZ_FIELDS - {"x-amz-copy-source"}):
        for value in ("AES256", "STANDARD", ""):
            expected = signed_at(rgw.endpoint, rgw.main, method, "/open/warm", {name: value})
            found = signed(proxy, method, "/open/warm", {name: value}, key="all")
            if (found[0], code_of(found[1])) != (expected[0], code_of(expected[1])):
                differing.append((name, value, expected, found))
    assert differing == []


@pytest.mark.parametrize("key", ["all", "own"])
def test_metadata_with_underscores_and_in_great_numbers_is_kept(proxy, direct, key, monkeypatch):
    monkeypatch.setattr(http.client, "_MAXHEADERS", 1000)
    s3 = _client(proxy.s3, key, "secret")
    metadata = {"my_key": "1", **{f"k{number:03}": "v" for number in range(220)}}
    s3.put_object(Bucket="open", Key=f"many-{key}", Body=b"x", Metadata=metadata)
    expected = direct.head_object(Bucket="open", Key=f"many-{key}")["Metadata"]
    assert len(expected) == 221
    for _ in range(2):
        assert s3.get_object(Bucket="open", Key=f"many-{key}")["Metadata"] == expected
        assert s3.head_object(Bucket="open", Key=f"many-{key}")["Metadata"] == expected


def test_deletes_with_odd_keys_are_carried_out(proxy, direct):
    keys = ["del/ü &<>\"'", "del/ a ", "del/a+b%20c", "del/\r\n\t"]
    for key in keys:
        direct.put_object(Bucket="open", Key=key, Body=b"x")
    s3 = _client(proxy.s3, "limited", "secret")
    answer = s3.delete_objects(Bucket="open", Delete={"Objects": [{"Key": key} for key in keys]})
    assert answer.get("Errors", []) == []
    assert direct.list_objects_v2(Bucket="open", Prefix="del/")["KeyCount"] == 0
    with pytest.raises(ClientError, match="AccessDenied"):
        s3.delete_objects(Bucket="other", Delete={"Objects": [{"Key": "secret"}]})
