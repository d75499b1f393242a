"""Checks a request's body against what the request promised: length, MD5, SHA-256, x-amz-checksum-*.

Source: "Checking object integrity" in the S3 user guide.
"""

import base64
import hashlib

from shadeproxy.core.checksums import FIELD_PREFIX, Checksum, make_checksum
from shadeproxy.core.errors import NotSupported, OriginAnswer
from shadeproxy.core.sigv4 import UNSIGNED_PAYLOAD
from shadeproxy.core.types import Headers
from shadeproxy.origin.base import ForwardRequest

_NOT_VALUES = {"x-amz-checksum-mode", "x-amz-checksum-algorithm", "x-amz-checksum-type"}


class Promises:
    """The length, hash and checksums that a request promised for its body. Call ``update`` with each chunk,
    and then ``check``. ``echo``: the checksum fields, which the answer repeats.
    """

    def __init__(self, request: ForwardRequest) -> None:
        self._length = request.content_length
        self._received_bytes = 0
        self._expected: list[tuple[Checksum, bytes, str]] = []
        self.echo: Headers = ()
        if request.payload_hash != UNSIGNED_PAYLOAD:
            self._expect(hashlib.sha256(), _unhex(request.payload_hash), "XAmzContentSHA256Mismatch")
        for name, value in request.headers:
            lowered = name.lower()
            if lowered == "content-md5":
                self._expect(
                    hashlib.md5(usedforsecurity=False), _unbase64(value, "InvalidDigest"), "BadDigest"
                )
            elif lowered.startswith(FIELD_PREFIX) and lowered not in _NOT_VALUES:
                checksum = make_checksum(lowered)
                if checksum is None:
                    raise NotSupported(f"{name} is not a checksum that this origin can verify")
                self._expect(checksum, _unbase64(value, "InvalidRequest"), "BadDigest")
                self.echo = (*self.echo, (lowered, value))

        self._trailers = request.trailers

    def update(self, chunk: bytes) -> None:
        self._received_bytes += len(chunk)
        for digest, _, _ in self._expected:
            digest.update(chunk)

    def check(self) -> None:
        """Raise OriginAnswer 400 if a promise is broken: IncompleteBody, BadDigest,
        XAmzContentSHA256Mismatch.
        """
        if self._length is not None and self._length != self._received_bytes:
            raise OriginAnswer(
                400, "IncompleteBody", f"{self._length} bytes were announced, {self._received_bytes} came."
            )
        for digest, expected, code in self._expected:
            if digest.digest() != expected:
                raise OriginAnswer(400, code, "The checksum you specified did not match what we received.")
        if self._trailers is not None:
            # The proxy has computed the trailing checksums from this body itself, so there is nothing to
            # compare.
            values = self._trailers.values()
            self.echo = (*self.echo, *((name, values[name]) for name in self._trailers.names))

    def _expect(self, digest: Checksum, expected: bytes, code: str) -> None:
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
