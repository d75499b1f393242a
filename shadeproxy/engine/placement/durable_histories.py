"""Saves page histories and the state of the reuse learner as blocks of bytes, and restores them after a
restart.

Laws: plain defs, no I/O. For each block, the event loop copies the histories of a bounded number of pages,
and another thread encodes the copy. After a restart, all saved histories are ghosts; when recovery adds a
page, the page gets its history from its ghost.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from shadeproxy.core.errors import StateError
from shadeproxy.core.identity import GroupName
from shadeproxy.engine.index.prefix_groups import PrefixGroups
from shadeproxy.engine.placement.histories import PageHistories
from shadeproxy.hints.reuse import durable
from shadeproxy.hints.reuse.ghosts import Ghosts, StoredGhosts

MOST_GHOSTS = 1 << 24
"""Most ghosts that are saved: they take 200 MB. If there are more, about this many are saved, namely those
that were read last.
"""

_PLACES = 1 << 16  # Places of ghosts in a block; copying them takes 0.1 ms.
_SLOTS = 1 << 13
_MEASURED = 1 << 16

Encode = Callable[[], bytes]
"""Type of a function that encodes one block. It runs in the thread that also makes the learner's tables."""


def export(
    histories: PageHistories, groups: list[GroupName], tick: float, page_size: int
) -> Iterator[Encode]:
    """Yield one function for each block, which encodes the block. The block is copied when its function is
    yielded. So the history of a page that gets or loses its slot between two blocks may be missing.
    """
    ghosts, learner = histories.ghosts, histories.learner
    histories.learn(tick)
    head = durable.Head(page_size, len(ghosts), tick, groups)
    yield lambda: durable.dump_head(head)
    learnt = learner.learnt(len(groups))
    yield lambda: durable.dump_learnt(learnt)
    longest_idle = _longest_idle(ghosts, tick)
    for start in range(0, len(ghosts), _PLACES):
        yield _ghosts(start, ghosts.copied(start, start + _PLACES), tick, longest_idle)
    for start in range(0, histories.slots, _SLOTS):
        yield _residents(histories, start)


def _ghosts(start: int, part: StoredGhosts, tick: float, longest_idle: int) -> Encode:
    return lambda: durable.dump_ghosts(start, part, tick, longest_idle)


def _residents(histories: PageHistories, start: int) -> Encode:
    residents = histories.of_residents(start, start + _SLOTS)
    return lambda: durable.dump_residents(residents)


def _longest_idle(ghosts: Ghosts, tick: float) -> int:
    """Return the longest idle time, in ticks, with which a ghost is saved. It is chosen so that about
    ``MOST_GHOSTS`` are saved.
    """
    if len(ghosts) <= MOST_GHOSTS:
        return len(ghosts)
    some = ghosts.columns().last[:: max(len(ghosts) // _MEASURED, 1)]
    idle = np.uint32(int(tick) & 0xFFFFFFFF) - some
    return min(int(np.quantile(idle, MOST_GHOSTS / len(ghosts))), len(ghosts))


def restore(
    blocks: Iterable[bytes], histories: PageHistories, groups: PrefixGroups, page_size: int
) -> tuple[float, str]:
    """Restore the blocks of ``export``, before the cache has pages (blocking).

    Return the tick, and a description of what was left out, or "" if nothing was. Raises StateError; then
    nothing is restored.
    """
    ghosts, coming = histories.ghosts, iter(blocks)
    if (first := next(coming, None)) is None:
        return 0.0, ""
    head = durable.load_head(first)
    if head.page_size != page_size:
        raise StateError(f"they are of pages of {head.page_size:,} bytes, not of {page_size:,}")
    fits = head.places == len(ghosts)
    try:
        learnt = durable.load_learnt(next(coming, b""), len(head.groups))
        for block in coming:
            durable.load_histories(block, ghosts, fits=fits)
    except StateError:
        ghosts.clear()
        raise
    histories.learner.restore(learnt, groups.of_names(head.groups).astype(np.intp), head.tick)
    histories.restored = True
    return head.tick, "" if fits else "ghosts of a cache of another size"
