"""The rights of a client, by bucket, prefix and operation."""

import asyncio

import pytest
from botocore.exceptions import ClientError

from shadeproxy.api.s3 import ClientKey, Right
from shadeproxy.api.s3.auth.clients import Identity
from shadeproxy.api.s3.authorizer import authorise
from shadeproxy.api.s3.exchange import Call
from shadeproxy.api.s3.operations import resolve
from shadeproxy.api.s3.request import parse_request
from shadeproxy.core.errors import AccessDenied
from shadeproxy.core.types import SHARED
from tests.support.s3.watching import watched

LIMITED = Identity("limited", SHARED, (Right("b*", "mine/"), Right("r", write=False, list=False)))


@pytest.mark.parametrize(
    ("line", "source", "allowed"),
    [
        ("PUT /b/mine/k", None, True),
        ("GET /b/mine/k", None, True),
        ("PUT /b/other", None, False),
        ("PUT /c/mine/k", None, False),
        ("GET /r/k", None, True),
        ("PUT /r/k", None, False),
        ("GET /r", None, False),
        ("PUT /b/mine/k", "r/k", True),
        ("PUT /b/mine/k", "/b/mine/j?versionId=1", True),
        ("PUT /b/mine/k", "b/seed", False),
        ("PUT /b/mine/k", "b%2Fseed", False),
        ("PUT /b/mine/k?uploadId=u&partNumber=1", "b/seed", False),
        ("GET /b?list-type=2&prefix=mine/", None, True),
        ("GET /b?list-type=2&prefix=", None, False),
        ("GET /b?list-type=2", None, False),
        ("GET /b?versions&prefix=mine/x", None, True),
        ("GET /b?uploads", None, False),
        ("HEAD /b", None, True),
        ("GET /b?location", None, True),
        ("HEAD /c", None, False),
        ("GET /", None, False),
        ("GET /b?policy", None, False),
        ("GET /b?acl&prefix=mine/", None, False),
        ("HEAD /b?policy", None, False),
        ("PUT /b/mine/k?acl", None, True),
        ("POST /b/mine/k?restore", None, False),
        ("DELETE /b", None, False),
        ("PUT /b?policy", None, False),
        ("PUT /b?policy&prefix=mine/", None, False),
        ("POST /b?delete", None, True),
    ],
)
def test_rights_by_bucket_prefix_and_operation(line, source, allowed):
    method, target = line.split(" ")
    fields = [("Host", "h"), *([("x-amz-copy-source", source)] if source else [])]
    request = parse_request(method, target, fields)
    call = Call(request, resolve(request), LIMITED)
    if allowed:
        authorise(call)
    else:
        with pytest.raises(AccessDenied, match="limited has no right") as caught:
            authorise(call)
        assert "auth.clients" in caught.value.hint


@pytest.mark.parametrize(
    "line", ["GET /", "GET /?prefix=mine/", "GET /c?policy&prefix=mine/", "GET /c?policy"]
)
def test_a_prefix_in_every_bucket_tells_nothing_of_the_buckets(line):
    method, target = line.split(" ")
    request = parse_request(method, target, [("Host", "h")])
    with pytest.raises(AccessDenied):
        authorise(Call(request, resolve(request), Identity("wide", SHARED, (Right("*", "mine/"),))))


async def test_a_request_without_the_right_reaches_neither_cache_nor_origin(make_proxy):
    client = ClientKey("ak", "sk", rights=(Right("b", "mine/"),))
    proxy, engine = await watched(make_proxy, anonymous=False, clients=(client,))
    s3 = proxy.boto(access="ak", secret="sk")
    for call in (s3.get_object, s3.head_object, s3.put_object, s3.delete_object):
        with pytest.raises(ClientError, match=r"AccessDenied|403"):
            await asyncio.to_thread(lambda call=call: call(Bucket="b", Key="seed"))
    assert engine.events == []
    assert proxy.origin.gets + proxy.origin.heads == 0


async def test_each_key_of_a_delete_needs_the_right(make_proxy):
    client = ClientKey("ak", "sk", rights=(Right("b", "mine/"),))
    proxy, engine = await watched(make_proxy, anonymous=False, clients=(client,))
    s3 = proxy.boto(access="ak", secret="sk")

    def delete(*keys):
        return s3.delete_objects(Bucket="b", Delete={"Objects": [{"Key": key} for key in keys]})

    with pytest.raises(ClientError, match="AccessDenied"):
        await asyncio.to_thread(delete, "mine/a", "seed")
    assert engine.events == []
    assert len((await asyncio.to_thread(delete, "mine/a"))["Deleted"]) == 1
