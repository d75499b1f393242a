"""Computes how far ahead the proxy fetches when an order is announced, and how many hits that costs. Fetched
samples wait in the cache for their readers, in places of samples that would be hits.

The rules are those of ``shadeproxy.prefetch``, and so are their constants; docs/adr/0047 has measurements.
"""

from typing import NamedTuple

from shadeproxy.prefetch.pace import FEWEST, LEAD, MOST_READY, SPARE


class Ahead(NamedTuple):
    """Numbers of samples. ``unread``: the most samples that are fetched, or being fetched, and not yet read.
    ``lost``: samples of an epoch that are no hits because of that.
    """

    unread: float
    lost: float


def fetched_ahead(
    *, miss_ratio: float, compute_s: float, link_s: float, latency_s: float, reach: int, cache_samples: float
) -> Ahead:
    """Return how far ahead the proxy fetches.

    ``compute_s``: time in which training computes a sample, all ranks together. ``link_s``: time for which a
    missing sample occupies the link. ``reach``: samples that the loader's workers have begun or may begin.
    ``cache_samples``: samples that fit into the cache.
    """
    needed_s = max(compute_s, miss_ratio * link_s)
    # The samples that are needed while one fetch is under way.
    flying = latency_s / needed_s if needed_s else 0.0
    soon = max(SPARE * flying, FEWEST)
    if miss_ratio * link_s > compute_s:
        # Every fetch comes late. No fetched sample waits for its reader, so nothing is lost.
        return Ahead(min((reach + soon) * miss_ratio, cache_samples / MOST_READY), 0.0)
    unread = min(LEAD * soon * miss_ratio, cache_samples / MOST_READY)
    if unread < flying * miss_ratio:
        return Ahead(unread, 0.0)
    # A fetched sample that is read takes the place of a sample that was hit, and is hit later in its turn. So
    # only the samples that still wait at the end of an epoch are lost. The more of the samples around them
    # are hits, the fewer they are.
    return Ahead(unread, unread * (1 + miss_ratio) / 2)
