"""An object as a read-only file. It fetches only ranges that begin with bytes that a parser reads.

Headers that lie close together come by one request. Headers far apart come by one small request each.
"""

import io
from typing import TYPE_CHECKING

from shadeproxy_sdk.manifest import Entry

if TYPE_CHECKING:
    from shadeproxy_sdk.client import Client

_LEAST_BYTES = 16 << 10
_MOST_BYTES = 4 << 20
_NEAR = 4


class RangedObject(io.RawIOBase):
    """A file of ``size_bytes`` over the object. Only one piece of it is in memory at a time. Reads raise like
    ``Client.read``.
    """

    def __init__(self, client: "Client", bucket: str, key: str, size_bytes: int) -> None:
        super().__init__()
        self.size_bytes = size_bytes
        self._client = client
        self._entry = Entry(bucket, key)
        self._at = 0
        self._begin = 0
        self._piece = b""
        self._piece_bytes = _LEAST_BYTES

    @property
    def key(self) -> str:
        return self._entry.key

    def __str__(self) -> str:
        return str(self._entry)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size_bytes}[whence]
        self._at = max(base + offset, 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Return ``size`` bytes, or fewer at the end of the object."""
        left = max(self.size_bytes - self._at, 0)
        wanted = left if size is None or size < 0 else min(size, left)
        start = self._at - self._begin
        if not 0 <= start <= start + wanted <= len(self._piece):
            self._fetch(wanted)
            start = 0
        self._at += wanted
        return self._piece[start : start + wanted]

    def readinto(self, buffer: "memoryview | bytearray") -> int:  # type: ignore[override]
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _fetch(self, wanted: int) -> None:
        gap = self._at - (self._begin + len(self._piece))
        near = 0 <= gap < _NEAR * self._piece_bytes
        self._piece_bytes = min(4 * self._piece_bytes, _MOST_BYTES) if near else _LEAST_BYTES
        length = min(max(wanted, self._piece_bytes), self.size_bytes - self._at)
        self._piece = self._client.read(self._entry._replace(offset=self._at, length=length))
        self._begin = self._at
