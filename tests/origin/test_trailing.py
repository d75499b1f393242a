"""Checksums after a body. The length of the frames is known in advance, and the proxy's own decoder reads the
frames. A server that refuses such checksums gets none in later requests.
"""

import asyncio
import base64
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.api.s3.upload.chunked import ChunkedDecoder, Framing
from shadeproxy.core.checksums import make_checksum, value_of
from shadeproxy.core.errors import BodyMismatch
from shadeproxy.core.sigv4 import Credentials
from shadeproxy.core.types import SHARED, ObjectRef
from shadeproxy.origin.base import ForwardRequest, Trailers
from shadeproxy.origin.credentials import AnonymousCredentials, StaticCredentials
from shadeproxy.origin.s3 import S3Origin
from shadeproxy.origin.trailing import CHUNK_BYTES, can_frame, frame, framed_bytes
from tests.support.answering import answering, error

CRC32 = "x-amz-checksum-crc32"
NAMES = ("crc32", "crc32c", "crc64nvme", "sha1", "sha256")
OK = 'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 0\r\n\r\n'


def crc32(body):
    return base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()


async def pieces(body, step):
    for start in range(0, len(body), step):
        yield body[start : start + step]


async def framed(body, step, trailers):
    return [piece async for piece in frame(pieces(body, step), trailers)]


@given(
    st.sampled_from(
        [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES + 7]
    ),
    st.sampled_from([1000, 65536, CHUNK_BYTES, 10**6]),
    st.sets(st.sampled_from(NAMES), min_size=1),
)
def test_frames_are_as_long_as_announced_and_read_back(size, step, kinds):
    body, names = bytes(range(251)) * (size // 251 + 1), tuple(f"x-amz-checksum-{kind}" for kind in kinds)
    body, values = body[:size], {}
    for name in names:
        checksum = make_checksum(name)
        checksum.update(body)
        values[name] = value_of(checksum)
    trailers = Trailers(names, lambda: values)
    assert can_frame(trailers)

    async def read_back():
        wire = b"".join(await framed(body, step, trailers))
        assert len(wire) == framed_bytes(size, trailers)
        decoder = ChunkedDecoder(pieces(wire, 7001), Framing(signed=False, trailing=True), None)
        return b"".join([piece async for piece in decoder.pieces()]), decoder.trailers

    assert asyncio.run(read_back()) == (body, values)


async def test_a_body_that_fails_is_never_ended():
    async def broken():
        yield b"x" * 300_000
        raise BodyMismatch("it is not what was promised")

    sent = []
    with pytest.raises(BodyMismatch):
        async for piece in frame(broken(), Trailers((CRC32,), dict)):
            sent.append(piece)  # noqa: PERF401 - what was sent before the error counts
    assert not b"".join(sent).endswith(b"\r\n\r\n")
    assert b"\r\n0\r\n" not in b"".join(sent)


def test_a_checksum_of_unknown_length_is_not_framed():
    assert not can_frame(Trailers((CRC32, "x-amz-checksum-xyz"), dict))


def trailed(body, key="key"):
    values = {}

    async def checked():
        yield body[:10]
        values[CRC32] = crc32(body)
        yield body[10:]

    return ForwardRequest(
        "PUT",
        ObjectRef("bucket", key),
        f"/bucket/{key}",
        headers=(("Content-Encoding", "gzip"), ("x-amz-sdk-checksum-algorithm", "CRC32")),
        body=checked(),
        content_length=len(body),
        trailers=Trailers((CRC32,), lambda: values),
    )


def origin_at(url, how, *, signed=True):
    keys = StaticCredentials(Credentials("ak", "sk")) if signed else AnonymousCredentials()
    return S3Origin(url, credentials={SHARED: keys}, addressing="path", trailing_checksums=how)


async def send(origin, request):
    async with origin.forward(request) as response:
        return response.status, b"".join([chunk async for chunk in response.chunks])


@pytest.mark.parametrize(
    ("how", "signed", "behind"),
    [("always", True, True), ("auto", True, False), ("never", True, False), ("always", False, False)],
)
async def test_it_goes_behind_the_body_where_the_server_takes_that(how, signed, behind):
    async with answering(OK) as (url, asked):
        origin = origin_at(url, how, signed=signed)
        assert (await send(origin, trailed(b"x" * 20)))[0] == 200
        await origin.aclose()
        ((head, body),) = asked
    head = head.lower()
    frames = f"14\r\n{'x' * 20}\r\n0\r\n{CRC32}:{crc32(b'x' * 20)}\r\n\r\n"
    assert body == (frames.encode() if behind else b"x" * 20)
    assert ("x-amz-content-sha256: streaming-unsigned-payload-trailer" in head) is behind
    assert ("x-amz-trailer: x-amz-checksum-crc32\r\n" in head) is behind
    assert ("x-amz-sdk-checksum-algorithm" in head) is behind
    assert f"content-encoding: gzip{',aws-chunked' if behind else ''}\r\n" in head
    assert ("x-amz-decoded-content-length: 20\r\n" in head) is behind


@pytest.mark.parametrize("code", ["XAmzContentSHA256Mismatch", "NotImplemented"])
async def test_a_server_that_refuses_it_is_asked_no_more(code):
    refusal = error(400 if code.startswith("X") else 501, code)
    async with answering(error(400, "InvalidArgument"), refusal, OK) as (url, asked):
        origin = origin_at(url, "always")
        assert (await send(origin, trailed(b"x" * 20)))[0] == 400
        status, document = await send(origin, trailed(b"x" * 20))
        assert status in {400, 501}
        assert code.encode() in document, "the client is told what the origin said"
        assert (await send(origin, trailed(b"x" * 20)))[0] == 200
        await origin.aclose()
    assert ["x-amz-trailer" in head.lower() for head, _ in asked] == [True, True, False]


async def test_moto_keeps_what_came_behind(moto_endpoint):
    origin, body = origin_at(moto_endpoint, "always"), b"0123456789" * 50_000
    bucket = ObjectRef("bucket", "")
    assert (await send(origin, ForwardRequest("PUT", bucket, "/bucket")))[0] == 200
    assert (await send(origin, trailed(body)))[0] == 200
    async with origin.open(ObjectRef("bucket", "key")) as reading:
        assert b"".join([chunk async for chunk in reading.chunks]) == body
        assert reading.meta.header(CRC32) == crc32(body)
    await origin.aclose()
