"""Demand reads as columns, as they are noted (notes.py), here or in a reader process."""

import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.types import JobContext, Source

USE = np.dtype(
    [
        ("slot", np.int64),
        ("stamp", np.int64),
        ("object_hash", np.uint64),
        ("first", np.int64),  # byte of the object that the read begins with
        ("size_bytes", np.int64),
        ("kind", np.int32),  # index of a ``Kind``
        ("reads", np.int32),  # 1, or 0 for the second page of a read
    ]
)
pack_use = struct.Struct("=qqQqqii").pack
"""One USE as bytes: appended to a ``bytearray``, which costs less than a tuple in a list, read by
``numpy.frombuffer``."""

Uses = NDArray[np.void]
"""USE[n], oldest first."""


class Kind(NamedTuple):
    """What reads have in common that are counted together."""

    bucket: str
    source: Source
    job: JobContext | None


class Noted(NamedTuple):
    """How a read of all of one page by ``job`` is noted: ``row``, one of USE.

    ``kind`` is its number among ``kinds``, which are replaced when they have become many.
    """

    job: JobContext | None
    kinds: dict[Kind, int]
    kind: int
    row: bytes
