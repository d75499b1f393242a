"""Keeps page histories and the state of the reuse learner over a restart, as blocks of bytes.

Laws: plain defs, no I/O. A block is copied on the event loop, from a bounded number of pages, and encoded in
another thread. The histories of resident pages are restored as ghosts. Recovery takes a page's history from
its ghost.
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
"""Most ghosts that are saved: they take 200 MB. If there are more ghosts, about this many are saved: those
that were read last.
"""

_PLACES = 1 << 16  # places of ghosts in a block; copying them takes 0.1 ms
_SLOTS = 1 << 13
_MEASURED = 1 << 16

Encode = Callable[[], bytes]
"""The type of a function that encodes one block. It runs in the thread that also makes the learner's
tables.
"""


def export(
    histories: PageHistories, groups: list[GroupName], tick: float, page_size: int
) -> Iterator[Encode]:
    """Yield functions that encode the blocks. Each block is copied when it is asked for. So a page that gains
    or loses its slot meanwhile may be missing.
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
    """Return for how many ticks a ghost may have been unread to be saved, so that about ``MOST_GHOSTS`` are
    saved.
    """
    if len(ghosts) <= MOST_GHOSTS:
        return len(ghosts)
    some = ghosts.columns().last[:: max(len(ghosts) // _MEASURED, 1)]
    idle = np.uint32(int(tick) & 0xFFFFFFFF) - some
    return min(int(np.quantile(idle, MOST_GHOSTS / len(ghosts))), len(ghosts))


def restore(
    blocks: Iterable[bytes], histories: PageHistories, groups: PrefixGroups, page_size: int
) -> tuple[float, str]:
    """Restore the blocks of ``export`` into a cache that has no pages yet (blocking).

    Return the tick, and a description of the part that was left out, or "". Raises StateError; then nothing
    is restored.
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
    return head.tick, "" if fits else f"{head.places:,} ghosts of a cache of another size"
