"""The bodies that clients transfer: files of every relevant size, with their SHA-256. This module must not
know any client or server.
"""

import hashlib
import random
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = 4 << 20
"""``cache.page_size`` of the proxies under test, which is the default."""

SIZES_BYTES = {
    "0 B": 0,
    "1 B": 1,
    "5 KB": 5_000,
    "page-1": PAGE_BYTES - 1,
    "page": PAGE_BYTES,
    "page+1": PAGE_BYTES + 1,
    "8 MiB": 8 << 20,
    "20 MiB": 20 << 20,
    "100 MB": 100_000_000,
}


@dataclass(frozen=True)
class Body:
    """A file to transfer, and the key of its object."""

    key: str
    path: Path
    size_bytes: int
    sha256: str


def write_body(path: Path, size_bytes: int, key: str, seed: str) -> Body:
    body = random.Random(seed).randbytes(size_bytes)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    return Body(key, path, size_bytes, hashlib.sha256(body).hexdigest())


def write_corpus(directory: Path) -> list[Body]:
    """Write one body of each size, and return the bodies. The keys need escaping in URLs and in XML. They
    have no characters that shells or clients read as patterns.
    """
    return [
        write_body(directory / f"body-{at}", size, f"data/{label}/ü a&b.bin", label)
        for at, (label, size) in enumerate(SIZES_BYTES.items())
    ]


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
