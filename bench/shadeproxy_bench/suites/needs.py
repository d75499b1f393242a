"""Needs of jobs: four unequal loops share a cache and a slow link, with stated needs and without.

The loops and their needs are those of the design, in the same proportions. Objects are long and rates low, so
that the link is scarce and not the processor. The study ``studies.needs`` has the same rows in virtual time,
without any influence of the machine.
"""

from collections.abc import Iterator
from functools import cache
from statistics import median

import numpy as np

from shadeproxy.policy.sharing import Demands, Room, solve
from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.sharing import Loop, SideBySide, run_side_by_side

_BYTES = 50_000
_LATENCY_S = 0.03
_CACHED = 0.2
# The link carries this share of the bytes that the loops would read if they never waited. In the design, the
# loops would read 155 MB/s, and the link carries 55.
_LINK = 0.355
_LOOPS = (
    Loop("a", 25.0, 250, _BYTES, {"slowdown": 1.10}),
    Loop("b", 12.5, 190, _BYTES + 1),
    Loop("c", 9.4, 125, _BYTES + 2, {"slowdown": 1.30}),
    Loop("d", 37.5, 500, _BYTES + 3),
)
_KEPT = tuple(loop for loop in _LOOPS if loop.needs)
_OTHERS = tuple(loop for loop in _LOOPS if not loop.needs)
_AFTER = 2  # Number of first epochs, which are not counted.
_LASTING_S = 420  # Ten epochs of the loop whose epochs are the longest.
_NEWCOMER = Loop("newcomer", 1000.0, 4000, _BYTES + 4, workers=64, is_announced=False)


def link_bytes_per_s() -> float:
    """Return the bytes a second that the link carries."""
    return _LINK * sum(loop.rate_per_s * loop.sample_bytes for loop in _LOOPS)


def optimum() -> float:
    """Return the least possible slowdown of the loops without a need, if the needs of the other loops are
    kept.
    """
    needs = [loop.rate_per_s / loop.needs["slowdown"] if loop.needs else np.nan for loop in _LOOPS]
    columns = [
        [loop.rate_per_s for loop in _LOOPS],
        needs,
        [loop.sample_bytes for loop in _LOOPS],
        [loop.data_bytes for loop in _LOOPS],
    ]
    room = Room(link_bytes_per_s(), _CACHED * sum(loop.data_bytes for loop in _LOOPS))
    return 1 / solve(Demands(*map(np.array, columns)), room).others


def missed(found: SideBySide) -> tuple[int, int]:
    """Return two counts of epochs of jobs with a need: how many were too slow for the need, and how many
    there were.
    """
    pairs = [
        (one, loop.needs["slowdown"]) for loop in _KEPT for one in found.slowdowns(loop.name, after=_AFTER)
    ]
    return sum(slowdown > need for slowdown, need in pairs), len(pairs)


def worst_other(found: SideBySide) -> float:
    """Return the mean slowdown of the loop that was slowed down most among the loops without a need."""
    return max(mean_slowdown(found, loop) for loop in _OTHERS)


def mean_slowdown(found: SideBySide, loop: Loop, since_s: float = 0.0) -> float:
    """Return the mean slowdown of those epochs of a loop that count and that ended after ``since_s``. Raises
    BenchError if there is none.
    """
    slowdowns = found.slowdowns(loop.name, after=_AFTER, since_s=since_s)
    if not slowdowns:
        raise BenchError(f"loop {loop.name} ended no epoch after the second: run it for longer")
    return sum(slowdowns) / len(slowdowns)


def without_needs(loop: Loop) -> Loop:
    return loop._replace(needs={})


def needs(scale: Scale) -> Iterator[Planned]:
    lasting_s = float(scale.pick(_LASTING_S, 150))

    def run(loops: list[Loop], seconds: float = lasting_s) -> SideBySide:
        return run_side_by_side(
            loops,
            link_bytes_per_s=link_bytes_per_s(),
            latency_s=_LATENCY_S,
            cached=_CACHED,
            lasting_s=seconds,
        )

    @cache
    def ours() -> SideBySide:
        return run(list(_LOOPS))

    @cache
    def today() -> SideBySide:
        return run([without_needs(loop) for loop in _LOOPS])

    def missed_share() -> Measured:
        (count, epochs), (before, of) = missed(ours()), missed(today())
        note = f"{count} of {epochs} epochs; without stating them {before} of {of}"
        # Without a missed epoch in the reference no ratio is possible, so the reference is then None.
        return Measured(100 * count / max(epochs, 1), 100 * before / max(of, 1) or None, note=note)

    def others() -> Measured:
        means = {loop.name: mean_slowdown(ours(), loop) for loop in _OTHERS}
        note = f"{means}; without needs the worst is {worst_other(today()):.2f}"
        return Measured(worst_other(ours()), optimum(), note=note)

    def newcomer() -> Measured:
        begins_s = lasting_s / 2
        found = run([*_LOOPS, _NEWCOMER._replace(begins_s=begins_s)])
        ratios = []
        for loop in _KEPT:
            before = [
                one.slowdown for one in found.epochs if one.loop == loop.name and one.ended_s < begins_s
            ]
            after = mean_slowdown(found, loop, since_s=begins_s + 2 * loop.samples / loop.rate_per_s)
            ratios.append(after / median(before[_AFTER:] or [np.nan]))
        return Measured(100 * (max(ratios) - 1), note=f"{len(_KEPT)} jobs, the more disturbed one")

    def alone() -> Measured:
        loop, seconds = _LOOPS[0], lasting_s / 6
        pairs = [
            [mean_slowdown(run([one], seconds), one) for one in (without_needs(loop), loop)] for _ in range(3)
        ]
        spread = max(one[0] for one in pairs) - min(one[0] for one in pairs)
        ratio = median(one[1] / one[0] for one in pairs)
        return Measured(100 * (ratio - 1), note=f"spread without a need: {100 * spread:.2f} % of 1")

    rates = ", ".join(f"{one.rate_per_s:g}" for one in _LOOPS)
    told = (
        f"4 loops of {rates} samples/s of {_BYTES // 1000} KB, cache of {_CACHED:.0%}, link of"
        f" {link_bytes_per_s() / 1e6:.2f} MB/s, {_LATENCY_S * 1000:.0f} ms, {lasting_s:.0f} s"
    )
    yield Planned(
        "needs: epochs after the second that miss",
        "%",
        Target(0.0, at_least=False, of="ours"),
        f"slowdown <= 1.10 and <= 1.30; {told}; the same loops without needs beside",
        missed_share,
        ratio_is="ours / reference",
    )
    yield Planned(
        "needs: worst slowdown of a job without one",
        "x",
        Target(1.05, at_least=False),
        f"{told}; beside it the least that is possible with all needs kept",
        others,
        ratio_is="ours / reference",
    )
    yield Planned(
        "needs: bytes read by all",
        "MB/s",
        Target(0.98),
        f"{told}; the same loops without needs beside",
        lambda: Measured(ours().bytes_per_s / 1e6, today().bytes_per_s / 1e6),
        ratio_is="ours / reference",
    )
    yield Planned(
        "needs: a newcomer of 64 connections",
        "% slower",
        Target(3.0, at_least=False, of="ours"),
        f"{told}; it comes at half of the time, without a job",
        newcomer,
    )
    yield Planned(
        "needs: one job alone",
        "% slower",
        Target(1.0, at_least=False, of="ours"),
        "the first loop alone, with and without its need in turn, three times",
        alone,
    )
