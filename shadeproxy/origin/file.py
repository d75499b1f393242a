"""``FileOrigin``: a directory tree served as buckets (a mounted parallel file system, or embedded use).

S3 operations are in s3ops/, and the calls to the file system in filetree/. This file only joins both. Source:
Monarch (CCGrid 2022), which puts tiers in front of a shared file system without a change of applications.
"""

from pathlib import Path

from shadeproxy.origin.filetree.store import FileStore
from shadeproxy.origin.s3ops.origin import StoreOrigin


class FileOrigin(StoreOrigin):
    """Serves each sub-directory of ``path`` as a bucket.

    ``threads``: most file calls that run at once; a parallel file system with long latencies needs more of
    them. ``probe`` raises ConfigError if ``path`` is not a readable directory.
    """

    def __init__(self, path: str | Path, *, threads: int = 16) -> None:
        super().__init__(FileStore(str(path), threads=threads), described=f"directory {path}")
