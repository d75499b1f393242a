"""``Outlasting``: memory of pages that were stored and given back, of which slow readers still hold pieces.

Law: only counts. The ledger does not, so that a slow reader of a stored page takes nothing from others; but a
thousand of them would keep a thousand pages. So above a limit readers are handed copies of their pieces.
"""

import weakref


class Outlasting:
    """``limit_bytes``: above it there are ``many``."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._buffers: list[tuple[weakref.ref[object], int]] = []

    def add(self, buffer: memoryview) -> None:
        """``buffer`` is nobody's but that of those who hold pieces of it."""
        self._buffers.append((weakref.ref(buffer.obj), buffer.nbytes))
        self._bytes += buffer.nbytes

    @property
    def many(self) -> bool:
        """Whether more is held than the limit. Looks for what is gone only when it may be."""
        if self._bytes > self._limit_bytes:
            self._buffers = [one for one in self._buffers if one[0]() is not None]
            self._bytes = sum(size for _, size in self._buffers)
        return self._bytes > self._limit_bytes
