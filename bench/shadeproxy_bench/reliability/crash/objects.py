"""The objects of a crash run. A body is made from its key and version, so that every byte can be judged.

The versions of a key only grow. There are versions in which the object does not exist.
"""

from functools import lru_cache
from random import Random

BUCKET = "data"
FIXED = "fixed/"
"""Prefix of the objects that training processes read. These objects are never overwritten."""
KEYS = tuple(f"key-{number:02d}" for number in range(36))
FIXED_KEYS = tuple(f"{FIXED}{number:02d}" for number in range(24))
PAGE_BYTES = 16_384


@lru_cache(maxsize=4096)
def body_of(key: str, version: int) -> bytes | None:
    """Return the body of a version; None if the object does not exist in that version."""
    rng = Random(f"{key}/{version}")
    if version and rng.random() < 0.1:
        return None
    # Most bodies are small, some have several pages, some are empty.
    size = rng.choice((0, 700, 5_000, 9_000, 15_000, 16_384, 20_000, 50_000))
    return rng.randbytes(size)


def fits(key: str, versions: range, got: bytes | None, start: int = 0, stop: int | None = None) -> bool:
    """Return whether ``got`` is the part from ``start`` to ``stop`` of one of ``versions``. ``got`` is None
    if no object was found.
    """
    for version in versions:
        body = body_of(key, version)
        if body is None or got is None:
            if body is got:
                return True
        elif body[start:stop] == got:
            return True
    return False
