"""Bounds of the rows. A bound says which result a policy must reach on a workload, and computes by how many
points the result is above or below it.
"""

from collections.abc import Callable, Mapping
from math import nan
from typing import NamedTuple

OURS, LRU, MIN = "ours", "lru", "min"
UNDISTURBED = "undisturbed"
"""The name, in a row with a restart, of the result that our policy has without the restart."""

RIVALS = ("lru", "s3-fifo", "w-tinylfu")
"""The rivals of our policy. In the words of a bound, "best" is the best result among theirs."""


class Ratios(NamedTuple):
    """Results of one policy: hits, hit bytes and the stock client's hits, in per cent of the reads that
    count. ``stores`` are in per cent of all reads.

    ``client``: nan if the row has no stock client. ``stores``: nan for a policy of the literature.
    """

    hits: float
    bytes: float
    client: float
    stores: float = nan


Results = Mapping[str, Ratios]
"""The results of a row by policy. ``OURS`` is the policy that is judged."""


class Bound(NamedTuple):
    """A bound. ``margin``: a function that returns by how many points a row's results are above the bound. If
    it returns less than 0, the bound is missed.
    """

    words: str
    margin: Callable[[Results], float]


def at_least(per_cent: float) -> Bound:
    return Bound(f">= {per_cent:.2f}", lambda results: results[OURS].hits - per_cent)


def near_best(points: float) -> Bound:
    """Return the bound "hits at least the best rival's, less ``points``"."""
    return Bound(f">= best - {points:g}", lambda results: results[OURS].hits - _best(results) + points)


def near_best_bytes(points: float) -> Bound:
    """Return the bound "hit bytes at least the best rival's, less ``points``"."""
    return Bound(
        f"bytes >= best - {points:g}",
        lambda results: results[OURS].bytes - max(results[name].bytes for name in RIVALS) + points,
    )


def few_stores(per_cent: float) -> Bound:
    """Return the bound "stores at most ``per_cent`` of all reads"."""
    return Bound(f"stores <= {per_cent:.2f}", lambda results: per_cent - results[OURS].stores)


def times_best(hits: float, hit_bytes: float) -> tuple[Bound, Bound]:
    """Return two bounds: "hits at least ``hits`` times the best rival's", and "hit bytes at least
    ``hit_bytes`` times the best rival's".
    """
    return (
        Bound(f">= {hits:g} x best", lambda results: results[OURS].hits - hits * _best(results)),
        Bound(
            f"bytes >= {hit_bytes:g} x best",
            lambda results: results[OURS].bytes - hit_bytes * max(results[name].bytes for name in RIVALS),
        ),
    )


def near_min(points: float) -> Bound:
    """Return the bound "hits at least the clairvoyant's, less ``points``"."""
    return Bound(f">= min - {points:g}", lambda results: results[OURS].hits - results[MIN].hits + points)


CLIENT = Bound(
    "client >= lru - 2, or all >= lru + 10",
    lambda results: max(
        results[OURS].client - results[LRU].client + 2, results[OURS].hits - results[LRU].hits - 10
    ),
)
ALL = Bound("all >= lru", lambda results: results[OURS].hits - results[LRU].hits)


def share_of_gain(share: float) -> Bound:
    """Return the bound "hits exceed those of LRU by ``share`` of the clairvoyant's gain over LRU"."""
    return Bound(
        f">= {share:g} of min's gain",
        lambda results: (
            results[OURS].hits - results[LRU].hits - share * (results[MIN].hits - results[LRU].hits)
        ),
    )


def near_undisturbed(points: float) -> Bound:
    """Return the bound "hits at least those without a restart, less ``points``"."""
    return Bound(
        f">= without a restart - {points:g}",
        lambda results: results[OURS].hits - results[UNDISTURBED].hits + points,
    )


def _best(results: Results) -> float:
    return max(results[name].hits for name in RIVALS)
