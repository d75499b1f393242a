"""The objects of a run. Each body names its object and the write that made it, and can be checked byte by
byte.
"""

import re
from functools import lru_cache
from typing import Final

import numpy as np

BUCKET: Final = "cluster"
OBJECTS: Final = 200
HOT: Final = 24
"""Number of hot objects, for which most requests ask. All other objects stay cached for a long time between
two requests. Therefore a proxy that fails to distrust its cached pages gives old answers, which the run
notices.
"""
SIZES: Final = (4_096, 30_000, 150_000, 300_000)
PAGE_BYTES: Final = 128 * 1024
_PARTS: Final = 8
_STAGES = "stages"
_PERIOD_BYTES = 1_048_573
_HEAD = re.compile(rb"object (\d{8}) write (\d{8})\n")
_TAG = re.compile(r'"(\d{8})\.(\d{8})"')
_KEY = re.compile(r"objects/(\d{8})")


def key_of(number: int) -> str:
    return f"objects/{number:08d}"


def stage_of(number: int, seq: int) -> str:
    """Return the key of the source object that the write ``seq`` copies if this write is a CopyObject."""
    return f"{_STAGES}/{number:08d}/{seq:08d}"


def number_of(key: str) -> int | None:
    """Return the number of the object with that key; None for any other key."""
    found = _KEY.fullmatch(key)
    return int(found[1]) if found else None


def tag_of(number: int, seq: int) -> str:
    """Return the ETag of the body of a write, with its quotes."""
    return f'"{number:08d}.{seq:08d}"'


def seq_of_tag(number: int, tag: str) -> int | None:
    """Return the number of the write whose ETag is ``tag``; None if it is no ETag of this object."""
    found = _TAG.fullmatch(tag)
    return int(found[2]) if found and int(found[1]) == number else None


def size_of(number: int, seq: int) -> int:
    """Return the size of the body of a write. Bodies of one object have different sizes, so that a mixture of
    two writes is noticed.
    """
    return SIZES[number % len(SIZES)] + seq * 37 % 101


def part_of(number: int, turn: int) -> tuple[int, int]:
    """Return the first and the last byte of a part that every version of the object has. The parts of an
    object are so short and so far apart that proxies store them alone.
    """
    size = SIZES[number % len(SIZES)]
    start = turn % _PARTS * size // _PARTS
    return start, start + size // (8 * _PARTS)


def body_of(number: int, seq: int) -> bytes:
    head = b"object %08d write %08d\n" % (number, seq)
    offset = (number * 7_919 + seq * 104_729) % _PERIOD_BYTES
    return head + bytes(_base()[offset : offset + size_of(number, seq) - len(head)])


def seq_of_body(number: int, body: bytes) -> int | None:
    """Return the number of the write that made ``body``; None if ``body`` is no body of this object, or is
    damaged.
    """
    found = _HEAD.match(body)
    if not found or int(found[1]) != number:
        return None
    seq = int(found[2])
    return seq if body == body_of(number, seq) else None


@lru_cache(1)
def _base() -> memoryview:
    once = np.random.default_rng(0).bytes(_PERIOD_BYTES)
    return memoryview(once + once[: max(SIZES) + 101])
