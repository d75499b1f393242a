"""Checksums that a request promises for its body: every kind that S3 clients send is verified."""

import base64
import hashlib
import zlib

import pytest

from shadeproxy.core.errors import NotSupported, OriginAnswer
from shadeproxy.core.types import ObjectRef
from shadeproxy.origin.base import ForwardRequest
from shadeproxy.origin.memory import MemoryOrigin

BODY = b"123456789"


def b64(digest):
    return base64.b64encode(digest).decode()


GOOD = {
    "Content-MD5": b64(hashlib.md5(BODY).digest()),
    "x-amz-checksum-crc32": b64(zlib.crc32(BODY).to_bytes(4, "big")),
    "x-amz-checksum-crc32c": b64(bytes.fromhex("e3069283")),
    "x-amz-checksum-crc64nvme": b64(bytes.fromhex("ae8b14860a799888")),
    "x-amz-checksum-sha1": b64(hashlib.sha1(BODY).digest()),
    "x-amz-checksum-sha256": b64(hashlib.sha256(BODY).digest()),
}


async def put(body, headers=(), **options):
    origin = MemoryOrigin()
    origin.put("b", "k", b"old")

    async def chunks():
        yield body

    request = ForwardRequest("PUT", ObjectRef("b", "k"), "/b/k", headers=headers, body=chunks(), **options)
    async with origin.forward(request) as response:
        answer = b"".join([chunk async for chunk in response.chunks]).decode()
        return response.status, dict(response.headers), answer, origin.buckets["b"]["k"].body


@pytest.mark.parametrize("name", GOOD)
async def test_a_checksum_is_verified(name):
    status, headers, _, stored = await put(BODY, ((name, GOOD[name]),))
    assert (status, stored) == (200, BODY)
    if name.startswith("x-amz"):
        assert headers[name] == GOOD[name]
    status, _, answer, stored = await put(b"123456780", ((name, GOOD[name]),))
    assert (status, "BadDigest" in answer, stored) == (400, True, b"old")


async def test_the_payload_hash_and_the_length_are_verified():
    good = hashlib.sha256(BODY).hexdigest()
    assert (await put(BODY, payload_hash=good, content_length=9))[0] == 200
    status, _, answer, stored = await put(b"other", payload_hash=good)
    assert (status, "XAmzContentSHA256Mismatch" in answer, stored) == (400, True, b"old")
    status, _, answer, stored = await put(BODY, content_length=10)
    assert (status, "IncompleteBody" in answer, stored) == (400, True, b"old")


@pytest.mark.parametrize("name", ["Content-MD5", "x-amz-checksum-crc32"])
@pytest.mark.parametrize("value", ["%%%", "\u0661", "A"])
async def test_a_checksum_that_is_no_base64_is_400(name, value):
    assert (await put(BODY, ((name, value),)))[0] == 400


async def test_an_unknown_checksum_is_refused():
    with pytest.raises(NotSupported, match="x-amz-checksum-xyz is not a checksum"):
        await put(BODY, (("x-amz-checksum-xyz", "AAAA"),))


@pytest.mark.parametrize(
    "header",
    [
        ("x-amz-tagging", "a=b"),
        ("x-amz-server-side-encryption-customer-key", "k"),
        ("x-amz-storage-class", "GLACIER"),
    ],
)
async def test_options_that_cannot_be_kept_are_refused_not_dropped(header):
    with pytest.raises(NotSupported):
        await put(BODY, (header,))


async def test_too_much_metadata_is_refused():
    status, _, answer, _ = await put(BODY, (("x-amz-meta-a", "x" * 3000),))
    assert (status, "MetadataTooLarge" in answer) == (400, True)


async def test_delete_objects_body_is_bounded_and_checked():
    origin = MemoryOrigin()
    origin.put("b", "k", b"")

    async def post(body):
        async def chunks():
            yield body

        request = ForwardRequest("POST", ObjectRef("b", ""), "/b", "delete", body=chunks())
        async with origin.forward(request) as response:
            return response.status, b"".join([chunk async for chunk in response.chunks]).decode()

    for body, code in (
        (b"<Delete></Delete>", "MalformedXML"),
        (b"not xml", "MalformedXML"),
        (b'<?xml version="1.0" encoding="nothing"?><Delete/>', "MalformedXML"),
        (b'<?xml version="1.0" encoding="rot13"?><Delete/>', "MalformedXML"),
        (b'<!DOCTYPE x [<!ENTITY a "a">]><Delete><Object><Key>&a;</Key></Object></Delete>', "MalformedXML"),
        (b"<Delete>" + b" " * (5 << 20) + b"</Delete>", "EntityTooLarge"),
    ):
        status, answer = await post(body)
        assert (status, code in answer) == (400, True)
    assert "k" in origin.buckets["b"]
    with pytest.raises(OriginAnswer):
        await origin.head(ObjectRef("b", "missing"))
