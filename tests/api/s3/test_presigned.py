"""The holder of a presigned URL can send the signed request, and no other one."""

import asyncio

import pytest

from tests.support.s3.clients import ACCESS
from tests.support.s3.exact import send


@pytest.fixture
async def proxy(make_proxy, compiled):
    proxy = await make_proxy(anonymous=False, compiled=compiled)
    proxy.origin.put("b", "mine", b"mine")
    proxy.origin.put("b", "secret", b"not for the holder of the URL")
    return proxy


def presigned(proxy, operation, version="s3v4", **params):
    s3 = proxy.boto(access=ACCESS, signature_version=version)
    return s3.generate_presigned_url(operation, Params={"Bucket": "b", **params}, ExpiresIn=600)


@pytest.fixture(params=["s3v4", "s3"])
def version(request):
    return request.param


async def test_it_does_what_it_was_given_for(proxy, version):
    assert (await send(presigned(proxy, "get_object", version, Key="mine")))[::2] == (200, b"mine")
    url = presigned(proxy, "put_object", version, Key="new")
    assert (await send(url, "PUT", b"body"))[0] == 200
    assert proxy.origin.buckets["b"]["new"].body == b"body"


@pytest.mark.parametrize("fields", [{}, {"Range": "bytes=0-2"}, {"amz-sdk-invocation-id": "a-1"}], ids=str)
async def test_it_is_no_pass_for_whoever_sends_the_same_fields(proxy, version, fields):
    url = presigned(proxy, "get_object", version, Key="mine")
    plain = url.partition("?")[0]
    for _ in range(3):
        assert (await send(url, **fields))[0] in {200, 206}
    s3 = proxy.boto(access=ACCESS)
    for key in ("mine", "secret"):  # Now the objects are resident, and the request cache knows their targets.
        for _ in range(2):
            await asyncio.to_thread(lambda key=key: s3.get_object(Bucket="b", Key=key)["Body"].read())
    for target in (plain, plain.replace("mine", "secret"), plain + "?", plain.replace("mine", "cold")):
        for more in ({}, {"Range": "bytes=0-1"}):
            status, _, body = await send(target, **(fields | more))
            assert (status, b"holder" in body) == (403, False), (target, more)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "POST", "HEAD"])
async def test_another_method(proxy, version, method):
    status, _, _ = await send(presigned(proxy, "get_object", version, Key="mine"), method, b"evil")
    assert status == 403
    assert proxy.origin.buckets["b"]["mine"].body == b"mine"


@pytest.mark.parametrize("other", ["/b/secret", "/b//mine", "/b/mine/../secret", "/b/./mine", "/b/min%65%2f"])
async def test_another_path(proxy, version, other):
    url = presigned(proxy, "get_object", version, Key="mine").replace("/b/mine", other)
    status, _, body = await send(url)
    assert status == 403
    assert b"holder" not in body


@pytest.mark.parametrize(
    "more", ["response-content-type=text/html", "versionId=1", "uploads", "acl", "X-Amz-Expires=604800"]
)
async def test_another_query(proxy, version, more):
    status, _, body = await send(presigned(proxy, "get_object", version, Key="mine") + "&" + more)
    assert (status in {400, 403}, b"mine" in body.split(b"<Resource>")[0]) == (True, False)


@pytest.mark.parametrize(
    "fields",
    [
        {"x-amz-copy-source": "/b/secret"},
        {"x-amz-acl": "public-read"},
        {"x-amz-meta-owner": "me"},
        {"x-amz-tagging": "a=b"},
        {"x-amz-website-redirect-location": "http://evil.example/"},
        {"x-amz-security-token": "x"},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_fields_that_were_not_signed(proxy, version, fields):
    """A presigned upload with further fields is refused. One field would make a copy of it: the copy could
    read any object that the signer may read.
    """
    url = presigned(proxy, "put_object", version, Key="new")
    status, _, _ = await send(url, "PUT", b"body", **fields)
    assert status in {400, 403}
    assert "new" not in proxy.origin.buckets["b"]


@pytest.mark.parametrize("name", ["ResponseContentDisposition", "ResponseContentType"])
async def test_a_value_of_the_url_never_begins_another_field_of_the_answer(proxy, version, name):
    url = presigned(proxy, "get_object", version, Key="mine", **{name: "x\r\nSet-Cookie: a=b"})
    try:
        _, fields, _ = await send(url)
    except ConnectionResetError:
        return  # An origin may copy the value into its answer, which is then cut off (test_forward.py).
    assert "set-cookie" not in fields
