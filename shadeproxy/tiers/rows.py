"""Data of a page that survives a restart, in numpy columns. No I/O."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.identity import GroupName

ROW = np.dtype(
    [
        ("location", "<i8"),
        ("object_hash", "<u8"),
        ("etag", "<u8"),  # hash of the entity tag
        ("number", "<u4"),  # of the page
        ("group", "<u4"),  # index into the names
        ("body_bytes", "<u4"),
        ("uses", "<f4"),
        ("idle", "<f4"),  # demand reads of anything since this page was last read
        ("age", "<f4"),  # demand reads of anything since it was admitted
        ("validated_s", "<f8"),
    ]
)
"""A row of one page: 56 bytes, part of the catalogue's format."""

_ODD = np.uint64(0x9E3779B97F4A7C15)

Rows = NDArray[np.void]
"""ROW[n]."""


class Contents(NamedTuple):
    """Pages. ``names``: the groups; the rows' ``group`` is an index into them."""

    rows: Rows
    names: list[GroupName]


def all_checked(rows: Rows) -> bool:
    """Return whether the origin was asked about every page, or about another page of its version."""
    # Two different versions have the same sum once in 2**64 pairs, as two objects have the same hash.
    versions = rows["object_hash"] * _ODD + rows["etag"]
    checked = rows["validated_s"] > 0
    return bool(np.isin(versions[~checked], versions[checked]).all())
