"""Quantiles of histograms. Each bucket of a histogram counts the values up to a fixed bound."""

from collections.abc import Callable, Sequence

_SHOWN_PERCENT = (50, 90, 99)


def interpolated_quantile(bounds: Sequence[float], buckets: Sequence[int], share: float) -> float:
    """Return the value that the share ``share`` of all values does not exceed, interpolated within its
    bucket. Return 0 if there are no values. ``buckets[i]``: number of values <= bounds[i] that are in no
    earlier bucket; the last bucket has those above all bounds.
    """
    wanted, seen, low = share * sum(buckets), 0, 0.0
    for bound, count in zip((*bounds, bounds[-1]), buckets, strict=True):
        if count and seen + count >= wanted:
            return low + (bound - low) * (wanted - seen) / count
        seen, low = seen + count, bound
    return 0.0


def shown_quantiles(quantile: Callable[[float], float]) -> dict[str, float]:
    """Return the quantiles that ``GET /v1/stats`` shows, by name: "p50", "p90" and "p99"."""
    return {f"p{percent}": quantile(percent / 100) for percent in _SHOWN_PERCENT}
