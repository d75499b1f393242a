"""boto3 at ``shadeproxy serve``, in front of a real S3 server that checks signatures and rights."""

import time

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.support.rgw import SIGNED_ONLY

pytestmark = pytest.mark.rgw

CLIENTS = f"""{SIGNED_ONLY}
verdict_ttl = "1 h"
[[auth.clients]]
access_key = "trainer"
secret_env = "TRAINER_SECRET"
[[auth.clients]]
access_key = "guest"
secret_env = "TRAINER_SECRET"
upstream = {{ access_key = "%s", secret_env = "GUEST_SECRET" }}
# Both users are of one tenant, so that a bucket's name means one bucket for them.
namespace = "shared"
"""


@pytest.fixture
def direct(rgw):
    """Return a client that is connected directly to the gateway."""
    return boto3.client(
        "s3",
        endpoint_url=rgw.endpoint,
        region_name="us-east-1",
        aws_access_key_id=rgw.main[0],
        aws_secret_access_key=rgw.main[1],
    )


@pytest.fixture
def proxy(rgw, serve, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text(CLIENTS % rgw.alt[0])
    secrets = rgw.secrets | {"TRAINER_SECRET": "training", "GUEST_SECRET": rgw.alt[1]}
    return serve(config, secrets, origin__endpoint=rgw.endpoint, origin__addressing="path")


def client_of(proxy, key="trainer", secret="training"):
    return proxy.client(aws_access_key_id=key, aws_secret_access_key=secret)


def read(client, key, **kwargs):
    answer = client.get_object(Bucket="life", Key=key, **kwargs)
    return answer["Body"].read(), answer["ResponseMetadata"]["HTTPHeaders"]["x-shade-cache"]


def read_again(client, key):
    """Read an object again. Its page may still be on its way into the tier, but for a moment only."""
    deadline_s = time.monotonic() + 10
    while (found := read(client, key))[1] == "coalesced":
        assert time.monotonic() < deadline_s
    return found


def test_the_life_of_an_object(proxy, direct):
    client = client_of(proxy)
    client.create_bucket(Bucket="life")
    client.put_object(Bucket="life", Key="a b/ü+%.bin", Body=b"one" * 1000, Metadata={"label": "7"})
    assert [entry["Key"] for entry in client.list_objects_v2(Bucket="life")["Contents"]] == ["a b/ü+%.bin"]
    key = "a b/ü+%.bin"
    assert read(client, key) == (b"one" * 1000, "origin")
    assert read_again(client, key) == (b"one" * 1000, "ram")
    assert read(client, key, Range="bytes=3-8") == (b"oneone", "ram")
    head, origin_head = (one.head_object(Bucket="life", Key=key) for one in (client, direct))
    for field in ("ETag", "ContentLength", "ContentType", "LastModified", "Metadata"):
        assert head[field] == origin_head[field]
    client.put_object(Bucket="life", Key=key, Body=b"two")
    assert read(client, key) == (b"two", "origin")
    client.delete_object(Bucket="life", Key=key)
    with pytest.raises(ClientError, match="NoSuchKey"):
        read(client, key)
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        read(client_of(proxy, secret="wrong"), key)


def test_big_objects_by_parts_and_pages(proxy, direct, tmp_path):
    client = client_of(proxy)
    client.create_bucket(Bucket="life")
    # 20 MB, so that the upload has several parts and the download several ranges
    body = bytes(range(256)) * 80_000
    (tmp_path / "up").write_bytes(body)
    client.upload_file(str(tmp_path / "up"), "life", "big")
    assert direct.get_object(Bucket="life", Key="big")["Body"].read() == body
    for name in ("cold", "warm"):
        client.download_file("life", "big", str(tmp_path / name))
        assert (tmp_path / name).read_bytes() == body
    assert read(client, "big")[1] in ("ram", "disk")
    copied = {"Bucket": "life", "Key": "big"}
    client.copy_object(Bucket="life", Key="copy", CopySource=copied)
    assert read(client, "copy")[0] == body
    gone = client.delete_objects(Bucket="life", Delete={"Objects": [{"Key": "big"}, {"Key": "copy"}]})
    assert len(gone["Deleted"]) == 2
    with pytest.raises(ClientError, match="NoSuchKey"):
        read(client, "big")


def test_a_hit_is_authorised_by_the_origin_with_the_clients_own_rights(proxy, direct):
    client = client_of(proxy)
    client.create_bucket(Bucket="life")
    client.put_object(Bucket="life", Key="private", Body=b"mine")
    client.put_object(Bucket="life", Key="public", Body=b"ours", ACL="public-read")
    for key in ("private", "public"):
        read(client, key)
        assert read(client, key)[1] == "ram"
    guest = client_of(proxy, key="guest")
    assert read(guest, "public") == (b"ours", "ram")
    with pytest.raises(ClientError, match="AccessDenied"):
        read(guest, "private")
    # A right that is withdrawn through the proxy is lost at once, whatever verdict the proxy remembers.
    client.put_object_acl(Bucket="life", Key="public", ACL="private")
    with pytest.raises(ClientError, match="AccessDenied"):
        read(guest, "public")
