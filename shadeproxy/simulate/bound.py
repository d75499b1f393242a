"""The clairvoyant: the hits of a cache that knows the next use of every page.

If all objects have one size, the clairvoyant is Belady's MIN with bypass: no policy has more hits. If sizes
differ, the exact optimum is NP-hard. The clairvoyant then evicts the object with the furthest next use. That
gives a value to compare with, but no upper bound.
"""

import heapq

import numpy as np
from numpy.typing import NDArray

from shadeproxy.simulate.trace import Ids, Trace

EXACT = "exact MIN"
FURTHEST_FIRST = "furthest next use first, which is no bound where sizes differ"


def name_of_bound(trace: Trace) -> str:
    """Return in words how the clairvoyant's hits are computed for this trace, and whether they are exact."""
    return EXACT if trace.one_size is not None else FURTHEST_FIRST


def clairvoyant_hits(trace: Trace, capacity_bytes: int) -> NDArray[np.bool_]:
    """Return which reads of the trace are hits of the clairvoyant: bool[n]."""
    following = next_positions(trace.ids)
    if trace.one_size is not None:
        return _equal(trace.ids, following, capacity_bytes // trace.one_size)
    assert trace.sizes is not None, "without sizes all are alike"
    return _different(trace.ids, following, trace.sizes, capacity_bytes)


def next_positions(ids: Ids) -> NDArray[np.int64]:
    """Return for each read the position of the next read of the same id; n if there is none."""
    order = np.argsort(ids, kind="stable")
    in_order = ids[order]
    again = in_order[1:] == in_order[:-1]
    following = np.full(len(ids), len(ids))
    following[order[:-1][again]] = order[1:][again]
    return following


def _equal(ids: Ids, following: NDArray[np.int64], places: int) -> NDArray[np.bool_]:
    """Return the hits if all sizes are equal. ``places``: how many objects fit into the cache. The byte
    ``due[p]`` is 1 if the object of read p is kept in the cache until that read.
    """
    never = len(ids)
    due = bytearray(never + 1)
    heap: list[int] = []  # Negated next uses, so the furthest is first. Those in the past sink to the end.
    kept = 0
    if places == 0:
        return np.zeros(never, dtype=np.bool_)
    for position, upcoming in enumerate(following.tolist()):
        kept -= due[position]
        if upcoming == never:
            continue
        if kept == places:
            if -heap[0] < upcoming:
                continue
            due[-heapq.heapreplace(heap, -upcoming)] = 0
        else:
            heapq.heappush(heap, -upcoming)
            kept += 1
        due[upcoming] = 1
        if len(heap) > 2 * places + 1024:
            heap = [one for one in heap if -one > position]
            heapq.heapify(heap)
    return np.frombuffer(due, dtype=np.bool_)[:-1].copy()


def _different(
    ids: Ids, following: NDArray[np.int64], sizes: NDArray[np.int64], capacity_bytes: int
) -> NDArray[np.bool_]:
    never = len(ids)
    due = bytearray(never + 1)
    heap: list[int] = []
    free = capacity_bytes
    size_at = sizes[ids].tolist()
    for position, (upcoming, size) in enumerate(zip(following.tolist(), size_at, strict=True)):
        if due[position]:
            free += size
        if upcoming == never or size > capacity_bytes:
            continue
        victims = []
        while free < size and -heap[0] > upcoming:
            victims.append(heapq.heappop(heap))
            free += size_at[-victims[-1]]
        if free < size:
            for victim in victims:
                heapq.heappush(heap, victim)
                free -= size_at[-victim]
            continue
        for victim in victims:
            due[-victim] = 0
        heapq.heappush(heap, -upcoming)
        free -= size
        due[upcoming] = 1
    return np.frombuffer(due, dtype=np.bool_)[:-1].copy()
