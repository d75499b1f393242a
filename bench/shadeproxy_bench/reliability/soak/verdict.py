"""The verdict on a soak: every check with its finding, from the samples and the counts alone."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from shadeproxy_bench.reliability.kit.bodies import MIB
from shadeproxy_bench.reliability.kit.tally import Counts
from shadeproxy_bench.reliability.kit.verdict import Check
from shadeproxy_bench.reliability.kit.watch import Sample

GROWTH_SHARE_PER_HOUR = 0.02
GROWTH_BYTES_PER_HOUR = 20 * 10**6
LEAST_FIT_S = 600.0
"""Growth is judged only from samples over at least this many seconds. A line through a shorter time says
nothing about an hour.
"""
FLOOR_S = 60.0
"""The run is cut into stretches of this many seconds, and only the least memory of each stretch counts.
Memory of answers under way varies by 100 MB and more, so the least of a minute shows the lasting memory.
"""
_SLACK_BYTES = 4 * MIB
"""Bytes that the files of a tier may take besides pages, for catalogues and headers."""


class Run(NamedTuple):
    """The samples and counts of a run. ``idle``: a sample after the warm-up. ``samples``: samples during the
    load. ``rested``: a sample after the load. ``complaints``: error lines of the proxy's log, in which equal
    lines are counted together.
    """

    counts: Counts
    idle: Sample
    samples: Sequence[Sample]
    rested: Sample
    complaints: Sequence[str]


def judge(run: Run) -> list[Check]:
    """Return all checks of the run, which passed unless one of them is False."""
    outcomes = run.counts.outcomes
    wrong, errors = outcomes.get("wrong", 0), outcomes.get("error", 0)
    return [
        Check("wrong bytes", wrong == 0, f"{wrong} of {run.counts.requests:,} answers"),
        Check("unexpected errors", errors == 0, f"{errors}"),
        Check(
            "complaints in the proxy's log", not run.complaints, f"{len(run.complaints)} kinds of error lines"
        ),
        _memory(run.samples),
        _descriptors(run),
        _work_left(run.rested),
        _capacity(run.samples),
        _evicted(run),
    ]


class Growth(NamedTuple):
    """Growth of lasting memory in bytes an hour: the slope of a fitted line, and the slope's standard
    error.
    """

    slope: float
    error: float


def growth_per_hour(samples: Sequence[Sample]) -> Growth:
    """Return the growth of lasting memory. It is fitted to the least RssAnon of each stretch of ``FLOOR_S``.

    A line through all samples would show answers under way, not leaks: in 35 minutes of full load its slope
    had a standard error of 44 MB/h.
    """
    minutes = groupby(samples, lambda sample: sample.at_s // FLOOR_S)
    floor = [min(minute, key=lambda sample: sample.rss_anon_bytes) for _, minute in minutes]
    times = np.array([sample.at_s for sample in floor]) / 3600
    line, covariance = np.polyfit(times, np.array([sample.rss_anon_bytes for sample in floor]), 1, cov=True)
    return Growth(float(line[0]), float(np.sqrt(covariance[0, 0])))


def second_half(samples: Sequence[Sample]) -> Sequence[Sample]:
    middle_s = (samples[0].at_s + samples[-1].at_s) / 2
    return [sample for sample in samples if sample.at_s >= middle_s]


def _memory(samples: Sequence[Sample]) -> Check:
    name = "growth of memory (floor of RssAnon, second half)"
    late = second_half(samples)
    if late[-1].at_s - late[0].at_s < LEAST_FIT_S:
        return Check(name, None, f"not judged: the second half is shorter than {LEAST_FIT_S / 60:.0f} min")
    growth = growth_per_hour(late)
    share = growth.slope / float(np.mean([sample.rss_anon_bytes for sample in late]))
    by_share, by_bytes = share < GROWTH_SHARE_PER_HOUR, growth.slope < GROWTH_BYTES_PER_HOUR
    bounds = f"< {GROWTH_SHARE_PER_HOUR:.0%}/h: {_yes(by_share)}, < 20 MB/h: {_yes(by_bytes)}"
    slope = f"{growth.slope / 1e6:+.1f} ± {growth.error / 1e6:.1f} MB/h"
    return Check(name, by_share or by_bytes, f"{slope}, {share:+.1%}/h ({bounds})")


def _descriptors(run: Run) -> Check:
    idle, rested = run.idle, run.rested
    found = ", ".join(
        f"{name} {before} -> {after}"
        for name, before, after in (
            ("sockets", idle.sockets, rested.sockets),
            ("others", idle.others, rested.others),
            ("deleted files", idle.deleted, rested.deleted),
            ("segment files", idle.segments, rested.segments),
        )
    )
    passed = rested.sockets <= idle.sockets and rested.others <= idle.others and rested.deleted == 0
    return Check("descriptors, idle before and after", passed, found)


def _work_left(rested: Sample) -> Check:
    found = f"{rested.readings} reads, {rested.inflight_bytes} bytes in flight"
    return Check("nothing under way after the load", not rested.readings and not rested.inflight_bytes, found)


def _capacity(samples: Sequence[Sample]) -> Check:
    found, passed = [], True
    for tier, capacity_bytes in samples[0].tier_capacity_bytes.items():
        used = max(sample.tier_bytes[tier] for sample in samples)
        on_disk = max(sample.tier_disk_bytes.get(tier, 0) for sample in samples)
        passed = passed and used <= capacity_bytes and on_disk <= capacity_bytes + _SLACK_BYTES
        found.append(
            f"{tier}: pages {used / MIB:.1f}, files {on_disk / MIB:.1f} of {capacity_bytes / MIB:.0f} MiB"
        )
    return Check("capacity kept", passed, "; ".join(found))


def _evicted(run: Run) -> Check:
    """Check that pages were evicted. Without evictions, the load did not fill the tiers."""
    last = run.samples[-1].evictions
    pages = {name: last.get(name, 0) - run.idle.evictions.get(name, 0) for name in last}
    found = ", ".join(f"{name} {count:,}" for name, count in sorted(pages.items())) or "none"
    return Check("pages were evicted", any(pages.values()), found)


def _yes(passed: bool) -> str:
    return "yes" if passed else "no"
