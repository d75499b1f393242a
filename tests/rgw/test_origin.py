"""S3Origin against a server that checks signatures. The conformance suite in tests/origin runs against this
server too.
"""

import base64
import hashlib
import uuid
import zlib

import pytest

from shadeproxy.core.errors import OriginAnswer
from shadeproxy.core.sigv4 import Credentials
from shadeproxy.core.types import SHARED, ObjectRef, Upstream
from shadeproxy.origin.base import ForwardRequest, Trailers
from shadeproxy.origin.credentials import AnonymousCredentials, StaticCredentials
from shadeproxy.origin.s3 import S3Origin

pytestmark = pytest.mark.rgw

ALT, WRONG, ANONYMOUS = Upstream("alt"), Upstream("wrong"), Upstream("anonymous")


@pytest.fixture
async def origin(rgw):
    origin = S3Origin(
        rgw.endpoint,
        credentials={
            SHARED: StaticCredentials(Credentials(*rgw.main)),
            ALT: StaticCredentials(Credentials(*rgw.alt)),
            WRONG: StaticCredentials(Credentials(rgw.main[0], "not-the-secret")),
            ANONYMOUS: AnonymousCredentials(),
        },
    )
    yield origin
    await origin.aclose()


@pytest.fixture
async def ref(origin):
    ref = ObjectRef(f"test-{uuid.uuid4().hex[:12]}", "key")
    await put(origin, f"/{ref.bucket}", ObjectRef(ref.bucket, ""))
    await put(origin, f"/{ref.bucket}/key", ref, b"body")
    return ref


async def put(origin, raw_path, ref, body=None, payload_hash=None):
    async def chunks():
        yield body

    request = ForwardRequest(
        "PUT",
        ref,
        raw_path,
        body=None if body is None else chunks(),
        content_length=None if body is None else len(body),
        payload_hash=payload_hash or "UNSIGNED-PAYLOAD",
    )
    async with origin.forward(request) as response:
        answer = b"".join([chunk async for chunk in response.chunks])
        return response.status, answer


@pytest.mark.parametrize(
    ("upstream", "code"),
    [(WRONG, "SignatureDoesNotMatch"), (ALT, "AccessDenied"), (ANONYMOUS, "AccessDenied")],
)
async def test_each_upstream_has_its_own_rights(origin, ref, upstream, code):
    with pytest.raises(OriginAnswer) as raised:
        async with origin.open(ref, upstream=upstream):
            pass
    assert (raised.value.status, raised.value.code) == (403, code)
    with pytest.raises(OriginAnswer, match="403"):
        await origin.head(ref, upstream=upstream)
    with pytest.raises(OriginAnswer, match=f"403 {code}"):
        await origin.list_objects(ref.bucket, "", upstream=upstream)


async def test_a_promised_payload_hash_is_passed_on_and_checked_there(origin, ref):
    good = hashlib.sha256(b"new").hexdigest()
    assert (await put(origin, f"/{ref.bucket}/key", ref, b"new", good))[0] == 200
    status, answer = await put(origin, f"/{ref.bucket}/key", ref, b"bad", good)
    assert (status, b"XAmzContentSHA256Mismatch" in answer) == (400, True)
    async with origin.open(ref) as reading:
        assert b"".join([chunk async for chunk in reading.chunks]) == b"new"


async def test_a_checksum_behind_the_body_is_left_out_where_the_gateway_refuses_it(rgw, ref):
    # Ceph 16 reads the whole body. Then it answers that the body does not match x-amz-content-sha256.
    keys = {SHARED: StaticCredentials(Credentials(*rgw.main))}
    origin = S3Origin(rgw.endpoint, credentials=keys, trailing_checksums="always")
    body = b"x" * 300_000
    value = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()

    async def send():
        async def chunks():
            yield body

        request = ForwardRequest(
            "PUT",
            ref,
            f"/{ref.bucket}/key",
            body=chunks(),
            content_length=len(body),
            trailers=Trailers(("x-amz-checksum-crc32",), lambda: {"x-amz-checksum-crc32": value}),
        )
        async with origin.forward(request) as response:
            return response.status, b"".join([chunk async for chunk in response.chunks])

    async def stored():
        async with origin.open(ref) as reading:
            return b"".join([chunk async for chunk in reading.chunks])

    status, answer = await send()
    assert status == 200 or b"XAmzContentSHA256Mismatch" in answer
    if status != 200:
        assert await stored() == b"body", "what it refused it did not keep"
        assert (await send())[0] == 200
    assert await stored() == body
    await origin.aclose()
