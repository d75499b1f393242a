"""The checksums that S3 defines, each computed piece by piece.

CRCs come from isal (CRC-32) and awscrt (CRC-32C, CRC-64/NVME), which use the processor's instructions: a CRC
of 100 KB takes 2 us, while zlib takes 117 us and awscrt's own CRC-32 177 us. No other module imports these
two libraries. Source: "Checking object integrity in Amazon S3", S3 user guide; polynomials: CRC RevEng
catalogue (CRC-32/ISO-HDLC, CRC-32/ISCSI, CRC-64/NVME).
"""

import base64
import hashlib
from collections.abc import Callable
from functools import partial
from typing import Protocol

from awscrt import checksums as crt
from isal import isal_zlib

FIELD_PREFIX = "x-amz-checksum-"


class Checksum(Protocol):
    """A running checksum. ``digest`` returns its bytes in big-endian order, as S3 writes them."""

    def update(self, data: bytes | memoryview, /) -> None: ...

    def digest(self) -> bytes: ...


class _Crc:
    """A running CRC of ``width_bytes``. ``function(data, crc)`` continues a CRC: ``crc`` is the CRC of all
    bytes before ``data``, and the result is the CRC of all bytes including ``data``.
    """

    def __init__(self, function: Callable[[bytes | memoryview, int], int], width_bytes: int) -> None:
        self._function, self._width_bytes = function, width_bytes
        self._crc = 0

    def update(self, data: bytes | memoryview, /) -> None:
        self._crc = self._function(data, self._crc)

    def digest(self) -> bytes:
        return self._crc.to_bytes(self._width_bytes, "big")


_ALGORITHMS: dict[str, Callable[[], Checksum]] = {
    "crc32": partial(_Crc, isal_zlib.crc32, 4),
    "crc32c": partial(_Crc, crt.crc32c, 4),
    "crc64nvme": partial(_Crc, crt.crc64nvme, 8),
    "sha1": partial(hashlib.sha1, usedforsecurity=False),
    "sha256": hashlib.sha256,
}
FIELDS = tuple(FIELD_PREFIX + name for name in _ALGORITHMS)


def make_checksum(field: str) -> Checksum | None:
    """Return a new checksum for the field with the lower-case name ``x-amz-checksum-*``; None if its
    algorithm is unknown.
    """
    make = _ALGORITHMS.get(field.removeprefix(FIELD_PREFIX)) if field.startswith(FIELD_PREFIX) else None
    return None if make is None else make()


def value_of(checksum: Checksum) -> str:
    """Return the checksum in base64, as it stands in its ``x-amz-checksum-*`` field."""
    return base64.b64encode(checksum.digest()).decode()
