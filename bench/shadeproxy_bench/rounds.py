"""Rounds of measurement. Our side and the reference are measured in turn, so that both meet the same state of
the machine. The results are medians and spreads of the rounds.
"""

import statistics
from collections.abc import Callable

from shadeproxy_bench.results import Measured

Side = Callable[[], float]


def alternate(ours: Side, reference: Side, *, rounds: int) -> Measured:
    """Measure both sides in turn: in each round first the reference, then our side."""
    samples: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        samples[1].append(reference())
        samples[0].append(ours())
    return measured(*samples)


def repeat(ours: Side, *, rounds: int) -> Measured:
    """Measure a row without a reference."""
    return measured([ours() for _ in range(rounds)])


def measured(ours: list[float], reference: list[float] | None = None, *, note: str = "") -> Measured:
    """Return the medians and spreads of all rounds, of our side and of the reference."""
    return Measured(
        ours=statistics.median(ours),
        reference=statistics.median(reference) if reference else None,
        ours_spread=(min(ours), max(ours)),
        reference_spread=(min(reference), max(reference)) if reference else None,
        note=note,
    )
