"""What a client promised of a body, and whether it came true: lengths, MD5, SHA-256, x-amz-checksum-*.

Source: "Checking object integrity" in the S3 user guide. CRC32C and CRC64NVME have no C implementation in
our dependencies; crc.py computes them with numpy, about 100 MB/s.
"""

import base64
import hashlib
import zlib
from collections.abc import Callable
from typing import Protocol

from shadeproxy.core.errors import NotSupported, OriginAnswer
from shadeproxy.core.sigv4 import UNSIGNED_PAYLOAD
from shadeproxy.core.types import Headers
from shadeproxy.origin.base import ForwardRequest
from shadeproxy.origin.s3ops.crc import CRC32C, CRC64NVME, ParallelCrc

_CHECKSUM = "x-amz-checksum-"
_NOT_VALUES = {"x-amz-checksum-mode", "x-amz-checksum-algorithm", "x-amz-checksum-type"}


class Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


class Crc32:
    """CRC-32 (IEEE) by zlib."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


_ALGORITHMS: dict[str, Callable[[], Digest]] = {
    "crc32": Crc32,
    "crc32c": lambda: ParallelCrc(CRC32C),
    "crc64nvme": lambda: ParallelCrc(CRC64NVME),
    "sha1": lambda: hashlib.sha1(usedforsecurity=False),
    "sha256": hashlib.sha256,
}


class Promises:
    """The promises of one request; ``update`` with each chunk, then ``check``."""

    def __init__(self, request: ForwardRequest) -> None:
        self._length = request.content_length
        self._received_bytes = 0
        self._expected: list[tuple[Digest, bytes, str]] = []
        self.echo: Headers = ()
        if request.payload_hash != UNSIGNED_PAYLOAD:
            self._expect(hashlib.sha256(), _unhex(request.payload_hash), "XAmzContentSHA256Mismatch")
        for name, value in request.headers:
            lowered = name.lower()
            if lowered == "content-md5":
                self._expect(
                    hashlib.md5(usedforsecurity=False), _unbase64(value, "InvalidDigest"), "BadDigest"
                )
            elif lowered.startswith(_CHECKSUM) and lowered not in _NOT_VALUES:
                algorithm = _ALGORITHMS.get(lowered.removeprefix(_CHECKSUM))
                if algorithm is None:
                    raise NotSupported(f"{name} is not a checksum that this origin can verify")
                self._expect(algorithm(), _unbase64(value, "InvalidRequest"), "BadDigest")
                self.echo = (*self.echo, (lowered, value))

        self._trailers = request.trailers

    def update(self, chunk: bytes) -> None:
        self._received_bytes += len(chunk)
        for digest, _, _ in self._expected:
            digest.update(chunk)

    def check(self) -> None:
        """Raises OriginAnswer 400: IncompleteBody, BadDigest, XAmzContentSHA256Mismatch."""
        if self._length is not None and self._length != self._received_bytes:
            raise OriginAnswer(
                400, "IncompleteBody", f"{self._length} bytes were announced, {self._received_bytes} came."
            )
        for digest, expected, code in self._expected:
            if digest.digest() != expected:
                raise OriginAnswer(400, code, "The checksum you specified did not match what we received.")
        if self._trailers is not None:
            # Who sent the body has computed these from it, in this process.
            values = self._trailers.values()
            self.echo = (*self.echo, *((name, values[name]) for name in self._trailers.names))

    def _expect(self, digest: Digest, expected: bytes, code: str) -> None:
        self._expected.append((digest, expected, code))


def _unhex(value: str) -> bytes:
    try:
        return bytes.fromhex(value)
    except ValueError:
        raise OriginAnswer(400, "InvalidArgument", "x-amz-content-sha256 must be 64 hex digits.") from None


def _unbase64(value: str, code: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise OriginAnswer(400, code, "A checksum you specified is not valid base64.") from None
