"""Computes how far ahead the proxy fetches when an order is announced, and how many hits that costs.

Fetched samples that wait in the cache for their readers take the places of samples that would be hits. Each
hit of an epoch is in the cache when the epoch begins. So an epoch loses as many hits as fetched samples wait
at that moment. These are samples at the beginning of the order that the cache lacked. Before the next order
is known, nothing says which samples it begins with. Once it is known, the cache keeps, of the samples that
are read, those whose next reads are the soonest. So at the beginning of the order, the cache lacks only the
samples that had left it before the order was known.

The rules and constants are those of ``shadeproxy.prefetch``; docs/adr/0047 has measurements.
"""

from typing import NamedTuple

from shadeproxy.prefetch.pace import EARLY_PRICE, FEWEST, LEAD, MOST_READY, SPARE


class Ahead(NamedTuple):
    """The effect of prefetching, in samples. ``unread``: the most samples that are fetched, or being fetched,
    and not read yet. They take room in the cache. ``lost``: the number of hits that an epoch loses by it.
    """

    unread: float
    lost: float


def fetched_ahead(
    *,
    reads: float,
    hit_ratio: float,
    announced_at: float,
    compute_s: float,
    batch_s: float,
    link_s: float,
    latency_s: float,
    lanes: int,
    reach: int,
    cache_samples: float,
) -> Ahead:
    """Return how many samples the proxy fetches ahead, and how many hits that costs.

    ``reads``: reads of an epoch. ``hit_ratio``: share of hits if nothing were fetched ahead.
    ``announced_at``: share of an epoch that training has computed when the next order is announced.
    ``compute_s``: time in which training computes a sample, all ranks together. ``batch_s``: time in which a
    rank computes a batch. ``link_s``: time for which a missing sample occupies the link. ``latency_s``: time
    of a whole fetch. ``lanes``: most reads that the loader's workers have under way. ``reach``: number of
    samples that the workers have begun to read or may begin. ``cache_samples``: samples that fit into the
    cache.
    """
    miss_ratio, most = 1 - hit_ratio, cache_samples / MOST_READY
    needed_s = max(compute_s, miss_ratio * link_s)
    # The number of samples that are needed while one fetch is under way.
    flying = latency_s / needed_s if needed_s else 0.0
    soon = max(SPARE * flying, FEWEST)
    if miss_ratio * link_s > compute_s:
        # Every fetch comes late, so no fetched sample waits for its reader, and nothing is lost.
        return Ahead(min((reach + soon) * miss_ratio, most), 0.0)
    unread = min(LEAD * soon * miss_ratio, most)
    kept = hit_ratio * reads
    # The reads of an epoch that are left when the next order is announced. Reads run ``reach`` samples ahead
    # of training.
    left = reads - min(announced_at * reads + reach, reads)
    # Samples that have been read, and whose next place in an order is not known yet, are expected within the
    # next epoch: on average in its middle.
    early = (left + reads / 2) / EARLY_PRICE
    waiting = min(max(most - flying, 0.0), max(LEAD * soon, early))
    missing = min(max(1 - (left + max(kept - waiting, 0.0)) / reads, 0.0), 1.0) if reads else 0.0
    if not missing or missing == 1:
        return Ahead(unread, 0.0)
    # The number of reads before the read of the sample that would be displaced last.
    furthest = kept / (1 - missing)
    lost = min(max(LEAD * soon, furthest / EARLY_PRICE) * missing, most, kept)
    if unread + lanes < flying * miss_ratio:
        # Readers wait for each fetched sample until the end of the epoch. Of the fetches that begin after the
        # last read of the epoch, only a part has ended when training has computed the last batch.
        lost *= min(batch_s / latency_s, 1.0)
    return Ahead(unread, lost)
