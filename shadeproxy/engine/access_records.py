"""Rows of the access log (access_log.py): demand reads as columns, of the coordinator or of a worker."""

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
"""Return one USE as bytes. Appending it to a ``bytearray`` costs less than a tuple in a list;
``numpy.frombuffer`` reads them."""

Uses = NDArray[np.void]
"""USE[n], oldest first."""


class Kind(NamedTuple):
    """The common fields of reads that are counted together."""

    bucket: str
    source: Source
    job: JobContext | None


class AccessRecord(NamedTuple):
    """The row of the access log for a read of one whole page by ``job``: ``row``, one of USE.

    ``kind`` is its number among ``kinds``, a dict that is replaced when it has grown large.
    """

    job: JobContext | None
    kinds: dict[Kind, int]
    kind: int
    row: bytes
