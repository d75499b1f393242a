"""Checksums of an upload as it passes: the five that S3 knows, each updated piece by piece.

CRC32, SHA-1 and SHA-256 come from the standard library. It has no CRC32C and no CRC64NVME, and a table walk
in Python does 8 MB/s; `crc.py` computes these over numpy lanes.
"""

import base64
import hashlib
import zlib
from collections.abc import Callable
from typing import Protocol

from shadeproxy.api.s3.upload.crc import CRC32C, CRC64NVME, Crc


class Checksum(Protocol):
    """A running checksum; ``value`` is base64 of the big-endian digest, as in ``x-amz-checksum-*``."""

    def update(self, data: bytes) -> None: ...

    def value(self) -> str: ...


class _Crc32:
    def __init__(self) -> None:
        self._crc = 0

    def update(self, data: bytes) -> None:
        self._crc = zlib.crc32(data, self._crc)

    def value(self) -> str:
        return base64.b64encode(self._crc.to_bytes(4, "big")).decode()


class _LaneCrc:
    def __init__(self, crc: Crc) -> None:
        self._function = crc
        self._crc = 0

    def update(self, data: bytes) -> None:
        self._crc = self._function(data, self._crc)

    def value(self) -> str:
        return base64.b64encode(self._crc.to_bytes(self._function.width // 8, "big")).decode()


class _Sha:
    def __init__(self, name: str) -> None:
        self._hash = hashlib.new(name, usedforsecurity=False)

    def update(self, data: bytes) -> None:
        self._hash.update(data)

    def value(self) -> str:
        return base64.b64encode(self._hash.digest()).decode()


_MAKERS: dict[str, Callable[[], Checksum]] = {
    "x-amz-checksum-crc32": _Crc32,
    "x-amz-checksum-crc32c": lambda: _LaneCrc(CRC32C),
    "x-amz-checksum-crc64nvme": lambda: _LaneCrc(CRC64NVME),
    "x-amz-checksum-sha1": lambda: _Sha("sha1"),
    "x-amz-checksum-sha256": lambda: _Sha("sha256"),
}


def make_checksum(field: str) -> Checksum | None:
    """A fresh checksum for the lower-case ``x-amz-checksum-*`` name, or None for one that is not known."""
    maker = _MAKERS.get(field)
    return maker() if maker else None
