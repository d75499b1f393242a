"""Admission candidates, as columns. They are pages that are in no tier; placement decides which of them would
win a place.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RECORD_BYTES = 512
"""Approximate size of a record without its body: header, metadata and rounding."""


class AdmissionCandidates(NamedTuple):
    """Pages that may get a place in a tier, as columns of shape (n,)."""

    object_hash: NDArray[np.uint64]
    number: NDArray[np.uint32]
    record_bytes: NDArray[np.int64]
    pinned: NDArray[np.bool_]
