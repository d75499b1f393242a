"""Sends a body and then its checksum, in the chunks of STREAMING-UNSIGNED-PAYLOAD-TRAILER.

Law: the last chunk and the trailer are made only after the body has ended without an error. So if the body
proves wrong while it is sent, the origin never gets a complete wrong body. Source: "Signature
calculations for the Authorization header: transferring payload in multiple chunks, with trailing headers" in
the S3 API reference.
"""

from collections.abc import AsyncGenerator, AsyncIterator

from shadeproxy.core.types import Headers
from shadeproxy.origin.base import Trailers

TRAILED_PAYLOAD = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
CHUNK_BYTES = 128 * 1024
"""Bytes of a chunk; only the last one may have fewer, so that the total length is known in advance. S3
accepts chunks of 8 KiB or more.
"""

_VALUE_CHARS = {
    "x-amz-checksum-crc32": 8,
    "x-amz-checksum-crc32c": 8,
    "x-amz-checksum-crc64nvme": 12,
    "x-amz-checksum-sha1": 28,
    "x-amz-checksum-sha256": 44,
}


def can_frame(trailers: Trailers) -> bool:
    """Return True if the length of each checksum is fixed, so that it is known before the checksum is."""
    return _VALUE_CHARS.keys() >= set(trailers.names)


def framed_bytes(size_bytes: int, trailers: Trailers) -> int:
    """Return the number of bytes that ``frame`` yields for a body of ``size_bytes``."""
    full, rest = divmod(size_bytes, CHUNK_BYTES)
    total = full * (CHUNK_BYTES + len(_head(CHUNK_BYTES)) + 2)
    total += rest + len(_head(rest)) + 2 if rest else 0
    return total + len(_head(0)) + sum(len(name) + _VALUE_CHARS[name] + 3 for name in trailers.names) + 2


async def frame(body: AsyncIterator[bytes], trailers: Trailers) -> AsyncGenerator[bytes, None]:
    """Yield ``body`` in chunks, and then its trailers. If ``body`` raises an error, ``frame`` raises it
    too, and does not yield the last chunk and the trailers.
    """
    pending = bytearray()
    async for piece in body:
        pending += piece
        while len(pending) >= CHUNK_BYTES:
            yield b"".join((_head(CHUNK_BYTES), pending[:CHUNK_BYTES], b"\r\n"))
            del pending[:CHUNK_BYTES]
    if pending:
        yield b"".join((_head(len(pending)), pending, b"\r\n"))
    values = trailers.values()
    lines = "".join(f"{name}:{values[name]}\r\n" for name in trailers.names)
    yield _head(0) + lines.encode() + b"\r\n"


def framed_headers(headers: Headers, size_bytes: int, trailers: Trailers) -> Headers:
    """Return ``headers`` changed for a request whose body is framed."""
    coding = ",".join(value for name, value in headers if name.lower() == "content-encoding")
    return (
        *(pair for pair in headers if pair[0].lower() != "content-encoding"),
        ("Content-Encoding", f"{coding},aws-chunked" if coding else "aws-chunked"),
        ("x-amz-decoded-content-length", str(size_bytes)),
        ("x-amz-trailer", ",".join(trailers.names)),
    )


def _head(size_bytes: int) -> bytes:
    return b"%x\r\n" % size_bytes
