"""Memory of stored pages that slow readers still hold."""

import weakref


class DetachedBuffers:
    """Counter of the memory of stored pages, given back to the ledger, that slow readers still hold.

    The ledger does not count these buffers, so that a slow reader takes nothing from others. A thousand would
    keep a thousand pages, so above ``limit_bytes`` (``many``) readers get copies of their pieces.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._buffers: list[tuple[weakref.ref[object], int]] = []

    def add(self, buffer: memoryview) -> None:
        """Count ``buffer``, which from now on only readers of its pieces hold."""
        self._buffers.append((weakref.ref(buffer.obj), buffer.nbytes))
        self._bytes += buffer.nbytes

    @property
    def many(self) -> bool:
        """True if readers hold more than the limit. Looks for freed buffers only above the limit."""
        if self._bytes > self._limit_bytes:
            self._buffers = [one for one in self._buffers if one[0]() is not None]
            self._bytes = sum(size for _, size in self._buffers)
        return self._bytes > self._limit_bytes
