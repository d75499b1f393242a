"""Rows of the access log (access_log.py): demand reads as columns, from the coordinator or a worker."""

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
        ("first", np.int64),  # Offset in the object of the first byte that was read.
        ("size_bytes", np.int64),
        ("kind", np.int32),  # Index into the list of ``Kind`` that comes with the rows.
        ("reads", np.int32),  # 1; or 0 for the second page of a read, because a read counts once.
    ]
)
pack_use = struct.Struct("=qqQqqii").pack
"""Pack one USE row into bytes. Appending these bytes to a ``bytearray`` costs less than appending a tuple to
a list, and ``numpy.frombuffer`` reads them as USE rows.
"""

Uses = NDArray[np.void]
"""Rows of the access log, of shape (n,), the oldest read first."""


class Kind(NamedTuple):
    """Fields that many reads share: bucket, source and job. The statistics count all reads of one kind
    together.
    """

    bucket: str
    source: Source
    job: JobContext | None


class AccessRecord(NamedTuple):
    """A row for the access log that is made once, and appended for each read of a whole page by ``job``.
    ``row``: the bytes of one USE row.

    ``kind`` is the index of the read's ``Kind`` in ``kinds``. When ``kinds`` has grown large, the log
    replaces it by a new dict. Then the row must be made again.
    """

    job: JobContext | None
    kinds: dict[Kind, int]
    kind: int
    row: bytes
