"""Upload bodies that the proxy holds whole until their trailing checksum has come."""

import base64
import random
import zlib

import pytest

from shadeproxy.api.s3.response import WRITE_BYTES


@pytest.mark.parametrize("size", [0, 1, WRITE_BYTES, 2 * WRITE_BYTES + 5])
async def test_the_origin_gets_the_body_as_it_is_and_nothing_stays_held(make_proxy, size):
    proxy = await make_proxy()
    body = random.Random(size).randbytes(size)
    chunk = f"{size:x}\r\n".encode() + body + b"\r\n" if size else b""
    value = base64.b64encode(zlib.crc32(body).to_bytes(4, "big"))
    wire = chunk + b"0\r\nx-amz-checksum-crc32:" + value + b"\r\n\r\n"
    head = (
        "PUT /b/new HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
        "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\n"
        f"x-amz-decoded-content-length: {size}\r\nx-amz-trailer: x-amz-checksum-crc32\r\n"
        f"Content-Length: {len(wire)}\r\n\r\n"
    )
    proxy.origin.put("b", "seed", b"")
    answer = await proxy.raw(head.encode() + wire)
    assert answer.startswith(b"HTTP/1.1 200"), answer
    assert proxy.origin.buckets["b"]["new"].body == body
    assert proxy.handler.held_bytes == 0
