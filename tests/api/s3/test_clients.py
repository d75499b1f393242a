"""boto3 against the listener, with no change but the endpoint URL."""

import asyncio
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.support.clock import ManualClock

KEYS = [
    "plain",
    "a//b",
    "a/./b/../c",
    "sp ace",
    "pl+us",
    "per%cent",
    "ü/日本",
    "q?m=1&x#y",
    "tr/ail/",
    "~-_.*'()!",
]


async def in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return await asyncio.to_thread(function, *args, **kwargs)


def cache_header(answer: dict[str, Any]) -> str:
    return answer["ResponseMetadata"]["HTTPHeaders"]["x-shade-cache"]


async def test_an_object_lives_its_whole_life_through_the_proxy(proxy):
    s3 = proxy.boto()

    def life() -> None:
        s3.put_object(Bucket="b", Key="k", Body=b"one", ContentType="text/x", Metadata={"m": "v"})
        cold = s3.get_object(Bucket="b", Key="k")
        assert cold["Body"].read() == b"one"
        assert cache_header(cold) == "origin"
        warm = s3.get_object(Bucket="b", Key="k")
        assert warm["Body"].read() == b"one"
        assert cache_header(warm) == "ram"
        assert (warm["ETag"], warm["ContentType"], warm["Metadata"]) == (cold["ETag"], "text/x", {"m": "v"})
        head = s3.head_object(Bucket="b", Key="k")
        assert (head["ContentLength"], head["ETag"]) == (3, warm["ETag"])
        s3.put_object(Bucket="b", Key="k", Body=b"two, longer")
        assert s3.get_object(Bucket="b", Key="k")["Body"].read() == b"two, longer"
        s3.delete_object(Bucket="b", Key="k")
        with pytest.raises(ClientError) as caught:
            s3.get_object(Bucket="b", Key="k")
        assert caught.value.response["Error"]["Code"] == "NoSuchKey"
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404

    await in_thread(life)


async def test_every_key_survives_byte_for_byte(proxy):
    s3 = proxy.boto()

    def check() -> None:
        for key in KEYS:
            s3.put_object(Bucket="b", Key=key, Body=key.encode())
            for _ in range(2):
                assert s3.get_object(Bucket="b", Key=key)["Body"].read() == key.encode()
        listed = [entry["Key"] for entry in s3.list_objects_v2(Bucket="b")["Contents"]]
        assert sorted(listed) == sorted([*KEYS, "seed"])

    await in_thread(check)
    assert set(proxy.origin.buckets["b"]) == {*KEYS, "seed"}


async def test_ranges_cold_and_warm_over_many_pages(proxy):
    body = bytes(range(256)) * 64  # Four pages.
    proxy.origin.put("b", "big", body)
    s3 = proxy.boto()

    def check() -> None:
        for spec, expected in [
            ("bytes=0-0", body[:1]),
            ("bytes=4000-4200", body[4000:4201]),
            ("bytes=16000-", body[16000:]),
            ("bytes=-5", body[-5:]),
            ("bytes=16383-99999999", body[-1:]),
        ]:
            for _ in range(2):
                answer = s3.get_object(Bucket="b", Key="big", Range=spec)
                assert answer["Body"].read() == expected
                assert answer["ResponseMetadata"]["HTTPStatusCode"] == 206
        with pytest.raises(ClientError) as caught:
            s3.get_object(Bucket="b", Key="big", Range="bytes=16384-")
        assert caught.value.response["Error"]["Code"] == "InvalidRange"
        assert caught.value.response["ResponseMetadata"]["HTTPHeaders"]["content-range"] == "bytes */16384"

    await in_thread(check)


async def test_lists_copies_and_many_deletes(proxy):
    s3 = proxy.boto()

    def check() -> None:
        for number in range(5):
            s3.put_object(Bucket="b", Key=f"d/{number}", Body=b"x")
        s3.copy_object(Bucket="b", Key="d/copy", CopySource={"Bucket": "b", "Key": "seed"})
        assert s3.get_object(Bucket="b", Key="d/copy")["Body"].read() == b"seed"
        s3.put_object(Bucket="b", Key="seed", Body=b"new")
        s3.copy_object(Bucket="b", Key="d/copy", CopySource="b/seed")
        assert s3.get_object(Bucket="b", Key="d/copy")["Body"].read() == b"new"
        page = s3.list_objects_v2(Bucket="b", Prefix="d/", MaxKeys=2)
        assert [entry["Key"] for entry in page["Contents"]] == ["d/0", "d/1"]
        assert page["IsTruncated"]
        s3.get_object(Bucket="b", Key="d/0")["Body"].read()
        gone = s3.delete_objects(Bucket="b", Delete={"Objects": [{"Key": "d/0"}, {"Key": "d/1"}]})
        assert len(gone["Deleted"]) == 2
        with pytest.raises(ClientError):
            s3.get_object(Bucket="b", Key="d/0")
        assert [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]] == ["b"]
        s3.create_bucket(Bucket="other")
        s3.head_bucket(Bucket="other")
        s3.delete_bucket(Bucket="other")
        with pytest.raises(ClientError):
            s3.head_bucket(Bucket="other")

    await in_thread(check)


async def test_multipart_replaces_what_was_cached(proxy):
    s3 = proxy.boto()

    def check() -> None:
        s3.get_object(Bucket="b", Key="seed")["Body"].read()
        upload = s3.create_multipart_upload(Bucket="b", Key="seed")["UploadId"]
        parts = []
        for number, byte in ((1, b"1"), (2, b"2")):
            part = s3.upload_part(
                Bucket="b", Key="seed", UploadId=upload, PartNumber=number, Body=byte * (5 << 20)
            )
            parts.append({"PartNumber": number, "ETag": part["ETag"]})
        assert s3.get_object(Bucket="b", Key="seed")["Body"].read() == b"seed"
        assert len(s3.list_parts(Bucket="b", Key="seed", UploadId=upload)["Parts"]) == 2
        s3.complete_multipart_upload(
            Bucket="b", Key="seed", UploadId=upload, MultipartUpload={"Parts": parts}
        )
        assert s3.get_object(Bucket="b", Key="seed")["Body"].read() == b"1" * (5 << 20) + b"2" * (5 << 20)
        upload = s3.create_multipart_upload(Bucket="b", Key="seed")["UploadId"]
        s3.abort_multipart_upload(Bucket="b", Key="seed", UploadId=upload)

    await in_thread(check)


@pytest.mark.parametrize("version", ["s3", "s3v4"])
async def test_presigned_urls_work_until_they_are_altered(make_proxy, version):
    proxy = await make_proxy(anonymous=False)
    proxy.origin.put("b", "a key+", b"body")
    s3 = proxy.boto(signature_version=version)

    def fetch(url: str, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes]:
        headers = {"Content-Type": "text/plain"} if body else {}
        request = urllib.request.Request(url, data=body, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    url = s3.generate_presigned_url("get_object", Params={"Bucket": "b", "Key": "a key+"})
    assert await in_thread(fetch, url) == (200, b"body")
    expires = {"s3": ("Expires=", "Expires=9"), "s3v4": ("X-Amz-Expires=", "X-Amz-Expires=1")}[version]
    for altered in (
        url.replace("a%20key", "b%20key"),
        url.replace("Signature=", "Signature=" + ("0" if version == "s3v4" else "A")),
        url.replace(*expires),
        url + "&versionId=1",
    ):
        status, body = await in_thread(fetch, altered)
        assert (status, b"<Code>SignatureDoesNotMatch</Code>" in body) == (403, True), altered
    assert (await in_thread(fetch, url, "DELETE"))[0] == 403
    parameters = {"Bucket": "b", "Key": "new", "ContentType": "text/plain"}
    url = s3.generate_presigned_url("put_object", Params=parameters)
    assert (await in_thread(fetch, url, "PUT", b"fresh"))[0] == 200
    assert proxy.origin.buckets["b"]["new"].body == b"fresh"


async def test_a_presigned_url_ends(make_proxy):
    clock = ManualClock(time.time())
    proxy = await make_proxy(anonymous=False, clock=clock)
    proxy.origin.put("b", "k", b"body")
    for version in ("s3", "s3v4"):
        client = proxy.boto(signature_version=version)
        url = client.generate_presigned_url("get_object", Params={"Bucket": "b", "Key": "k"}, ExpiresIn=60)
        answer = await proxy.get(url.removeprefix(proxy.url))
        assert answer.startswith(b"HTTP/1.1 200")
        clock.advance(120)
        answer = await proxy.get(url.removeprefix(proxy.url))
        assert answer.startswith(b"HTTP/1.1 403")
        assert b"<Message>Request has expired</Message>" in answer
        clock.advance(-120)


async def test_the_wrong_secret_and_the_wrong_key(make_proxy):
    proxy = await make_proxy(anonymous=False)
    proxy.origin.put("b", "k", b"body")
    for client, code in (
        (proxy.boto(secret="wrong"), "SignatureDoesNotMatch"),
        (proxy.boto(access="nobody"), "InvalidAccessKeyId"),
    ):
        with pytest.raises(ClientError) as caught:
            await in_thread(client.get_object, Bucket="b", Key="k")
        assert caught.value.response["Error"]["Code"] == code
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    answer = await in_thread(proxy.boto().get_object, Bucket="b", Key="k")
    assert await in_thread(answer["Body"].read) == b"body"
