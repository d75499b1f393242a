"""``FileOrigin``: a directory tree served as buckets (a mounted parallel file system, or embedded use).

The S3 part is s3ops/, the file part filetree/; this file only joins them.
Source: Monarch (CCGrid 2022) for tiering transparently in front of a shared file system.
"""

from pathlib import Path

from shadeproxy.origin.filetree.store import FileStore
from shadeproxy.origin.s3ops.origin import StoreOrigin


class FileOrigin(StoreOrigin):
    """Serves each sub-directory of ``path`` as a bucket.

    ``threads`` bounds the file calls that run at once; a parallel file system with long latencies needs more.
    ``probe`` raises ConfigError when ``path`` is not a readable directory.
    """

    def __init__(self, path: str | Path, *, threads: int = 16) -> None:
        super().__init__(FileStore(str(path), threads=threads), described=f"directory {path}")
