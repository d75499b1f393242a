"""Two clients whose buckets have the same name, through the listener: each gets the bytes of its
own bucket.
"""

import asyncio

import pytest
from botocore.exceptions import ClientError

from shadeproxy.api.s3 import ClientKey
from shadeproxy.core.types import SHARED, Upstream
from shadeproxy.origin.memory import MemoryOrigin

UPSTREAMS = {"": SHARED, "alice": Upstream("client:alice"), "mallory": Upstream("client:mallory")}
SECRET, MINE = b"secret" * 100, b"mine"


class Accounts:
    """An origin with one account for each upstream. Each account has its own bucket names."""

    def __init__(self) -> None:
        self.of = {upstream: MemoryOrigin() for upstream in UPSTREAMS.values()}
        for origin in self.of.values():
            origin.buckets["b"] = {}

    def head(self, ref, *, upstream=SHARED):
        return self.of[upstream].head(ref, upstream=upstream)

    def open(self, ref, *, upstream=SHARED, **options):
        return self.of[upstream].open(ref, upstream=upstream, **options)

    def forward(self, request):
        return self.of[request.upstream].forward(request)


@pytest.fixture
async def proxy(make_proxy, compiled):
    clients = tuple(
        ClientKey(name, f"{name}-secret", upstream=upstream, namespace=name)
        for name, upstream in UPSTREAMS.items()
        if name
    )
    proxy = await make_proxy(origin=Accounts(), clients=clients, upstreams=UPSTREAMS, compiled=compiled)
    proxy.origin.of[UPSTREAMS["alice"]].put("b", "k", SECRET)
    proxy.origin.of[UPSTREAMS["alice"]].put("b", "only", SECRET)
    proxy.origin.of[UPSTREAMS["mallory"]].put("b", "k", MINE)
    return proxy


def call(proxy, name, operation, key="k", **asked):
    client = proxy.boto(access=name, secret=f"{name}-secret")
    answer = getattr(client, operation)(Bucket="b", Key=key, **asked)
    body = answer["Body"].read() if operation == "get_object" else b""
    return body, answer["ResponseMetadata"]["HTTPHeaders"].get("x-shade-cache"), answer


async def ask(proxy, name, operation="get_object", key="k", **asked):
    return await asyncio.to_thread(call, proxy, name, operation, key, **asked)


async def check_apart(proxy):
    """Check that each client gets its own objects. Kept connections let the request cache answer."""
    for _ in range(3):
        for name, body in (("alice", SECRET), ("mallory", MINE)):
            assert (await ask(proxy, name))[0] == body
            assert (await ask(proxy, name, Range="bytes=1-2"))[0] == body[1:3]
            assert (await ask(proxy, name, "head_object"))[2]["ContentLength"] == len(body)
    assert (await ask(proxy, "alice", key="only"))[0] == SECRET
    for operation in ("get_object", "head_object"):
        with pytest.raises(ClientError, match=r"404|NoSuchKey"):
            await ask(proxy, "mallory", operation, "only")
    unsigned = await proxy.get("/b/k")
    assert unsigned.startswith(b"HTTP/1.1 404")
    assert b"secret" not in unsigned


async def test_reads_of_every_kind(proxy):
    await check_apart(proxy)
    assert (await ask(proxy, "alice"))[1] == (await ask(proxy, "mallory"))[1] == "ram"


async def test_requests_of_one_target_on_one_connection(proxy):
    """Requests that differ only by their signature alternate: signed by one client, and unsigned."""
    await check_apart(proxy)
    for _ in range(3):
        assert b"secret" not in await proxy.get("/b/only")
        assert b"secret" not in await proxy.get("/b/only", "Range: bytes=0-3")
        assert (await ask(proxy, "alice", key="only"))[0] == SECRET


REPLACED = {
    "MetadataDirective": "REPLACE",
    "Metadata": {"new": "1"},
    "CopySource": {"Bucket": "b", "Key": "k"},
}


@pytest.mark.parametrize(
    ("write", "fields", "body", "metadata"),
    [("put_object", {"Body": b"newer"}, b"newer", {}), ("copy_object", REPLACED, MINE, {"new": "1"})],
)
async def test_a_write_counts_in_the_namespace_of_its_client(proxy, write, fields, body, metadata):
    await check_apart(proxy)
    await ask(proxy, "mallory", write, **fields)
    assert (await ask(proxy, "alice"))[:2] == (SECRET, "ram")
    read, source, answer = await ask(proxy, "mallory")
    assert (read, source, answer["Metadata"]) == (body, "origin", metadata)


async def test_a_delete_counts_in_the_namespace_of_its_client(proxy):
    await check_apart(proxy)
    await ask(proxy, "mallory", "delete_object")
    assert (await ask(proxy, "alice"))[:2] == (SECRET, "ram")
    with pytest.raises(ClientError, match="NoSuchKey"):
        await ask(proxy, "mallory")


async def test_keys_that_a_body_lists_are_of_its_client(proxy):
    await check_apart(proxy)

    def delete():
        client = proxy.boto(access="mallory", secret="mallory-secret")
        return client.delete_objects(Bucket="b", Delete={"Objects": [{"Key": "k"}]})

    await asyncio.to_thread(delete)
    assert (await ask(proxy, "alice"))[:2] == (SECRET, "ram")
    with pytest.raises(ClientError, match="NoSuchKey"):
        await ask(proxy, "mallory")
