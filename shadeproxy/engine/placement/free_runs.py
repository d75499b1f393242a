"""Finds neighbouring records whose eviction frees one long piece of room, for a long record.

If the victims were chosen at random, many short holes would become free, but a long record needs one long
hole. The functions are pure, except that ``in_few_segments`` draws random numbers.
"""

import numpy as np
from numpy.typing import NDArray

from shadeproxy.engine.placement.eviction_pool import SAMPLE, draw_positions

Bytes = NDArray[np.int64]


def cheapest_run(
    starts: Bytes, stops: Bytes, beaten: NDArray[np.bool_], size_bytes: int, segment_bytes: int
) -> slice | None:
    """Return the cheapest run of neighbouring records, all ``beaten``, whose eviction frees ``size_bytes`` in
    one piece.

    The piece lies in one segment. The cost of a run is the sum of its records' bytes. Return None if no run
    frees enough. ``starts``, ``stops``: i64[n], addresses in bytes of the records, ascending. Addresses count
    through all segments, each of which has ``segment_bytes`` addresses. The free bytes before the first
    record of a segment, and after its last record, are not counted.
    """
    count = len(starts)
    if not count:
        return None
    segments = starts // segment_bytes
    same = segments[1:] == segments[:-1]
    left, right = starts.copy(), stops.copy()
    left[1:][same] = stops[:-1][same]
    right[:-1][same] = starts[1:][same]
    indices = np.arange(count)
    last_kept = np.maximum.accumulate(np.where(beaten, -1, indices))
    ends = np.maximum(np.searchsorted(right, left + size_bytes), indices)
    possible = ends < count
    ends = np.minimum(ends, count - 1)
    possible &= (segments[ends] == segments) & (last_kept[ends] < indices)
    if not possible.any():
        return None
    removed = np.concatenate([[0], np.cumsum(stops - starts)])
    cost = np.where(possible, removed[ends + 1] - removed[indices], np.iinfo(np.int64).max)
    first = int(cost.argmin())
    return slice(first, int(ends[first]) + 1)


def in_few_segments(segments: Bytes, rng: np.random.Generator) -> NDArray[np.bool_] | slice:
    """Return the records to look at, as a mask or a slice: all of them, or, if they are more than SAMPLE,
    those of a few random segments, which are about SAMPLE records. ``segments``: i64[n], the segment of each
    record.
    """
    if len(segments) <= SAMPLE:
        return slice(None)
    drawn = np.unique(segments[draw_positions(rng, len(segments), SAMPLE)])
    chosen = rng.choice(drawn, -(-SAMPLE * len(drawn) // len(segments)), replace=False)
    return segments == chosen[0] if len(chosen) == 1 else np.isin(segments, chosen)
