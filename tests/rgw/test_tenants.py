"""Two tenants of one gateway have buckets of the same name. No byte of one tenant reaches the other."""

import json
import signal
import struct
import time
import urllib.error
import urllib.request

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.support.rgw import SIGNED_ONLY

pytestmark = pytest.mark.rgw

CONFIG = f"""{SIGNED_ONLY}
verdict_ttl = "1 h"
[control]
token = "env:CONTROL_TOKEN"
[[rules]]
bucket = "ten"
prefix = "stale/"
ttl = "1 s"
[[auth.clients]]
access_key = "alice"
secret_env = "ALICE"
upstream = {{ access_key = "KEYTENA", secret_env = "UPSTREAM_A" }}
[[auth.clients]]
access_key = "mallory"
secret_env = "MALLORY"
upstream = {{ access_key = "KEYTENB", secret_env = "UPSTREAM_B" }}
namespace = "team-b"
[[auth.clients]]
access_key = "own"
secret_env = "OWN"
"""
SECRET, MINE, SIZE = b"secret" * 1000, b"mine", 6000
TOKEN = "control-token"


def s3(endpoint, key, secret):
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
    )


@pytest.fixture(scope="module")
def tenants(rgw):
    """Make a bucket "ten" for each tenant, directly at the gateway. Return a client for each tenant."""
    direct = {}
    for name, client in (("tena", "alice"), ("tenb", "mallory")):
        direct[client] = s3(rgw.endpoint, *rgw.add_tenant(name))
        direct[client].create_bucket(Bucket="ten")
    return direct


@pytest.fixture
def proxy(rgw, tenants, serve, tmp_path):
    for key in ("both", *(f"stale/{n:02}" for n in range(20))):
        tenants["alice"].put_object(Bucket="ten", Key=key, Body=SECRET, Metadata={"whose": "alice"})
        tenants["mallory"].put_object(Bucket="ten", Key=key, Body=MINE)
    tenants["alice"].put_object(Bucket="ten", Key="only", Body=SECRET)
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    secrets = {
        "UPSTREAM_A": "secret-of-tena",
        "UPSTREAM_B": "secret-of-tenb",
        "CONTROL_TOKEN": TOKEN,
    } | {name.upper(): f"{name}-secret" for name in ("alice", "mallory", "own")}
    return serve(config, rgw.secrets | secrets, origin__endpoint=rgw.endpoint, cache__disk__capacity="64 MiB")


def client(proxy, name):
    return proxy.client(aws_access_key_id=name, aws_secret_access_key=f"{name}-secret")


def read(proxy, name, key="both", **asked):
    answer = client(proxy, name).get_object(Bucket="ten", Key=key, **asked)
    return answer["Body"].read(), answer["ResponseMetadata"]["HTTPHeaders"]["x-shade-cache"]


def refused(proxy, name, key, code):
    for call in ("get_object", "head_object"):
        with pytest.raises(ClientError) as caught:
            getattr(client(proxy, name), call)(Bucket="ten", Key=key)
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == code
    with pytest.raises(ClientError):
        client(proxy, name).get_object(Bucket="ten", Key=key, Range="bytes=0-0")


def control(proxy, path, body=None, method="POST"):
    data = None if body is None else json.dumps(body).encode()
    fields = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(proxy.control + path, data, fields, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read()


def batch(proxy, key, **named):
    """Return status and body of one item of a batch."""
    raw = control(proxy, "/v1/batch", {"items": [{"bucket": "ten", "key": key}], **named})
    _, status, _, _, length = struct.unpack_from("<IHBBQ", raw)
    return status, raw[16 : 16 + length]


def check_apart(proxy):
    for name, body in (("alice", SECRET), ("mallory", MINE)):
        assert read(proxy, name)[0] == body
        assert read(proxy, name, Range="bytes=1-3")[0] == body[1:4]
        head = client(proxy, name).head_object(Bucket="ten", Key="both")
        assert (head["ContentLength"], head["Metadata"]) == (
            (SIZE, {"whose": "alice"}) if name == "alice" else (4, {})
        )
    assert read(proxy, "alice", "only")[0] == SECRET
    refused(proxy, "mallory", "only", 404)
    refused(proxy, "own", "both", 404)
    refused(proxy, "own", "only", 404)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_cold_warm_and_after_a_restart(proxy, how):
    check_apart(proxy)
    check_apart(proxy)
    sources = {name: read(proxy, name)[1] for name in ("alice", "mallory")}
    assert sources == {"alice": "ram", "mallory": "ram"}
    proxy.stop(how)
    proxy.start()
    time.sleep(1)  # Recovery adds the pages after the start.
    check_apart(proxy)
    assert {read(proxy, name)[1] for name in ("alice", "mallory")} == {"ram"}


def test_what_a_listing_checks_is_of_its_tenant(proxy, tenants):
    keys = [f"stale/{n:02}" for n in range(20)]
    for key in keys:
        assert read(proxy, "alice", key)[0] == SECRET
        assert read(proxy, "mallory", key)[0] == MINE
    tenants["mallory"].put_object(Bucket="ten", Key="stale/07", Body=b"newer")
    time.sleep(1.5)
    for _ in range(2):
        for key in keys:
            assert read(proxy, "alice", key)[0] == SECRET
            assert read(proxy, "mallory", key)[0] in (MINE, b"newer")
        time.sleep(1)
    assert read(proxy, "mallory", "stale/07")[0] == b"newer"
    assert read(proxy, "alice", "stale/07")[0] == SECRET


def test_writes_are_of_their_tenant(proxy, tenants):
    check_apart(proxy)
    client(proxy, "mallory").put_object(Bucket="ten", Key="both", Body=b"new!")
    assert read(proxy, "mallory") == (b"new!", "origin")
    assert read(proxy, "alice") == (SECRET, "ram")
    client(proxy, "alice").delete_objects(Bucket="ten", Delete={"Objects": [{"Key": "both"}]})
    refused(proxy, "alice", "both", 404)
    assert read(proxy, "mallory")[0] == b"new!"
    assert tenants["mallory"].get_object(Bucket="ten", Key="both")["Body"].read() == b"new!"


def test_control_calls_mean_the_proxys_own_unless_they_name_another(proxy):
    check_apart(proxy)
    assert batch(proxy, "both")[0] == 404
    for _ in range(2):
        assert batch(proxy, "both", namespace="key:KEYTENA") == (200, SECRET)
        assert batch(proxy, "both", namespace="team-b") == (200, MINE)
    with pytest.raises(urllib.error.HTTPError) as caught:
        batch(proxy, "both", namespace="team-c")
    assert "name one of key:KEYTENA, team-b" in caught.value.read().decode()
    purged = json.loads(control(proxy, "/v1/purge", {"uri": "s3://ten/"}))
    assert purged["objects"] == 0
    purged = json.loads(control(proxy, "/v1/purge", {"uri": "s3://ten/", "namespace": "team-b"}))
    assert purged["objects"] == 1
    assert read(proxy, "alice")[1] == "ram"
    assert read(proxy, "mallory")[1] == "origin"
    listed = {"bucket": "ten", "prefix": "stale/", "namespace": "key:KEYTENA"}
    summary = json.loads(control(proxy, "/v1/datasets/d", listed, method="PUT"))
    assert summary["count"] == 20
    raw = control(proxy, "/v1/batch", {"dataset": "d", "ids": [3]})
    assert SECRET in raw


def test_a_new_upstream_of_a_client_is_a_new_namespace(proxy, tmp_path):
    """A client whose upstream changes reads in a new namespace. The client is moved to the other tenant, and
    gets no page of its former tenant.
    """
    check_apart(proxy)
    config = tmp_path / "config.toml"
    moved = CONFIG.replace('"KEYTENA", secret_env = "UPSTREAM_A"', '"KEYTENB", secret_env = "UPSTREAM_B"')
    config.write_text(moved)
    proxy.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 10
    while read(proxy, "alice")[0] != MINE:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    refused(proxy, "alice", "only", 404)
