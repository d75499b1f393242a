"""The columns of a page that survive a restart, as a numpy row. No I/O."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.identity import GroupName

ROW = np.dtype(
    [
        ("location", "<i8"),
        ("object_hash", "<u8"),
        ("etag", "<u8"),  # Hash of the ETag.
        ("number", "<u4"),  # Number of the page in its object.
        ("group", "<u4"),  # Index into ``Contents.names``.
        ("body_bytes", "<u4"),
        ("uses", "<f4"),
        ("idle", "<f4"),  # Demand reads of any page since this page was last read.
        ("age", "<f4"),  # Demand reads of any page since this page was admitted.
        ("validated_s", "<f8"),
    ]
)
"""A row of one page. It takes 56 bytes, and is part of the catalogue's format."""

_ODD = np.uint64(0x9E3779B97F4A7C15)

Rows = NDArray[np.void]
"""An array of ``ROW``, of shape (n,)."""


class Contents(NamedTuple):
    """Pages of a tier. ``names``: the names of prefix groups; the rows' ``group`` is an index into them."""

    rows: Rows
    names: list[GroupName]


def all_checked(rows: Rows) -> bool:
    """Return whether each version of an object has at least one page that was checked with the origin."""
    # Two versions get the same sum once in 2**64 pairs, no more often than two objects get the same hash.
    versions = rows["object_hash"] * _ODD + rows["etag"]
    checked = rows["validated_s"] > 0
    return bool(np.isin(versions[~checked], versions[checked]).all())
