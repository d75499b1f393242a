"""Stores bytes of any length in the cluster's log, as blobs of bounded size. Each blob is named by its
cryptographic digest.
"""

import asyncio
from collections.abc import Iterable

from shadeproxy.cluster.events import Content
from shadeproxy.cluster.log import BLOB_BYTES, BLOB_S, ClusterLog
from shadeproxy.core.errors import LostBlob, PeerError

_AT_ONCE = 4
MOST_BYTES = 1 << 30


class Contents:
    """Stores contents in the log as blobs, and reads them back."""

    def __init__(self, log: ClusterLog) -> None:
        self._log = log

    async def put(self, blobs: Iterable[tuple[str, bytes]], keep_s: int = BLOB_S) -> None:
        """Store blobs by digest for ``keep_s``. Raises ClusterUnavailable."""
        for digest, data in blobs:
            await self._log.put_blob(digest, data, keep_s)

    async def keep(self, content: Content) -> bool:
        """Let the log keep a content for another day. Return whether the log has all blobs of it. Raises
        ClusterUnavailable.
        """
        return not content.pieces or await self._log.keep_blobs(content.pieces)

    async def get(self, content: Content) -> bytes:
        """Return the bytes of a content. Raises ClusterUnavailable, LostBlob if the log lacks one of the
        content's blobs, and PeerError if the stated size is not possible, or not that of the bytes.
        """
        # A sender that is wrong must not make this proxy read more blobs than the stated size has.
        blobs = -(-content.size_bytes // BLOB_BYTES) if content.pieces else 0
        if content.size_bytes > MOST_BYTES or len(content.pieces) != blobs:
            raise PeerError(f"{len(content.pieces)} blobs with {content.size_bytes} bytes cannot be")
        found: list[bytes] = []
        for at in range(0, len(content.pieces), _AT_ONCE):
            pieces = content.pieces[at : at + _AT_ONCE]
            for piece in await asyncio.gather(*(self._log.get_blob(digest) for digest in pieces)):
                if piece is None:
                    raise LostBlob(
                        "the cluster's engine dropped a blob: set its maxmemory-policy to noeviction"
                    )
                found.append(piece)
        data = b"".join(found) if content.pieces else content.inline
        if len(data) != content.size_bytes:
            raise PeerError(f"a content of {content.size_bytes} bytes has {len(data)}")
        return data
