"""Simulates each policy with each cache size on one trace. The result is a row of hit ratios for each
pair.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import ConfigError
from shadeproxy.core.units import parse_size
from shadeproxy.policy.default import Objective
from shadeproxy.policy.registry import POLICIES, get_policy
from shadeproxy.simulate.baselines.registry import BASELINES, baseline_hits
from shadeproxy.simulate.bound import clairvoyant_hits, name_of_bound
from shadeproxy.simulate.hints import Announce
from shadeproxy.simulate.replay import Replay
from shadeproxy.simulate.trace import Trace

MIN = "min"
NAMES = (*POLICIES, *BASELINES, MIN)


class Cache(NamedTuple):
    """A cache size to simulate. ``share``: the capacity divided by the bytes of all objects."""

    text: str
    share: float
    capacity_bytes: int


class Row(msgspec.Struct, frozen=True):
    """The result of one policy with one cache, over the counted reads (``Trace.counted``). distinct: mean
    number of different ids that are read in an epoch. of_min: the hit ratio divided by that of the
    clairvoyant, the policy "min".
    """

    policy: str
    cache: float
    hit_ratio: float
    byte_hit_ratio: float
    distinct: float
    of_min: float


class Total(msgspec.Struct, frozen=True):
    """The result of one policy with one cache, over all reads, the first epoch included."""

    policy: str
    cache: float
    hits: int
    hit_ratio: float


class Result(msgspec.Struct, frozen=True):
    """The rows of a simulation. ``counted``: in words, which reads count in ``rows``. ``bound``: in words,
    how the rows of "min" were computed.
    """

    rows: list[Row]
    all_reads: list[Total]
    reads: int
    objects: int
    bytes: int | None
    counted: str
    bound: str


@dataclass(frozen=True, slots=True)
class Question:
    """The arguments of one simulation: the trace, and the policies, cache sizes and options to try on it."""

    trace: Trace
    policies: Sequence[str]
    caches: Sequence[Cache]
    announce: Announce
    objective: Objective = "bytes"
    seed: int = 0


def parse_policies(text: str) -> list[str]:
    """Return the names of the policies in ``text``. Raises ConfigError, which lists the known names."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["all"]:
        return list(NAMES)
    for name in names:
        if name not in NAMES:
            raise ConfigError(
                f"--policy: no policy is called {name!r}; write all, or some of {', '.join(NAMES)}"
            )
    if not names:
        raise ConfigError(f"--policy: none is named; write all, or some of {', '.join(NAMES)}")
    return list(dict.fromkeys(names))


def parse_caches(text: str, trace: Trace) -> list[Cache]:
    """Return the cache sizes in ``text``, such as "5%,20%,8 GiB". Raises ConfigError."""
    caches = [_cache(part.strip(), trace) for part in text.split(",") if part.strip()]
    if not caches:
        raise ConfigError('--cache: no size is named; write shares of the data, as "5%,10%,20%"')
    return caches


def simulate(question: Question, *, progress: Callable[[str, str], None] = lambda *_: None) -> Result:
    """Simulate each policy with each cache size. ``progress`` is called with both before each run. Raises
    ConfigError.
    """
    trace = question.trace
    counted = trace.counted()
    sizes = np.ones(trace.objects, dtype=np.int64) if trace.sizes is None else trace.sizes
    read_bytes = sizes[trace.ids]
    distinct = _distinct(trace, counted)
    rows, totals = [], []
    for cache in question.caches:
        progress(MIN, cache.text)
        best = clairvoyant_hits(trace, cache.capacity_bytes)
        for name in question.policies:
            if name != MIN:
                progress(name, cache.text)
            hits = best if name == MIN else _replay(question, name, cache)
            bound, ratio = float(best[counted].mean()), float(hits[counted].mean())
            by_bytes = float(read_bytes[counted & hits].sum() / read_bytes[counted].sum())
            of_min = ratio / bound if bound else 1.0
            rows.append(Row(name, cache.share, ratio, by_bytes, distinct, of_min))
            totals.append(Total(name, cache.share, int(hits.sum()), float(hits.mean())))
    return Result(
        rows=rows,
        all_reads=totals,
        reads=len(trace.ids),
        objects=trace.objects,
        bytes=None if trace.sizes is None else trace.total_bytes,
        counted="all reads" if counted.all() else "reads from each job's second epoch on",
        bound=name_of_bound(trace),
    )


def _replay(question: Question, name: str, cache: Cache) -> NDArray[np.bool_]:
    if name in BASELINES:
        return baseline_hits(name, question.trace, cache.capacity_bytes)
    policy = get_policy(name, question.objective)
    return Replay(
        question.trace, policy, cache.capacity_bytes, announce=question.announce, seed=question.seed
    ).run()


def _cache(text: str, trace: Trace) -> Cache:
    if text.endswith("%"):
        try:
            share = float(text[:-1]) / 100
        except ValueError:
            share = -1.0
        if not 0 < share <= 1:
            raise ConfigError(f"--cache: {text!r} is not a share of the data; write 0.1% to 100%")
        return _some(Cache(text, share, round(share * trace.total_bytes)))
    if trace.sizes is None:
        raise ConfigError(
            f"--cache: {text!r}: this trace tells no sizes, so only a share of the data can be named, as 20%"
        )
    try:
        capacity = parse_size(text)
    except ValueError:
        raise ConfigError(f'--cache: {text!r} is no size; write a share as 20%, or "8 GiB"') from None
    return _some(Cache(text, capacity / trace.total_bytes, capacity))


def _some(cache: Cache) -> Cache:
    """Return ``cache``. Raises ConfigError if its capacity is less than one byte."""
    if not cache.capacity_bytes:
        raise ConfigError(
            f"--cache: {cache.text!r} of this trace holds nothing; write a larger one, or take more --objects"
        )
    return cache


def _distinct(trace: Trace, counted: NDArray[np.bool_]) -> float:
    if trace.epochs is None:
        return len(np.unique(trace.ids))
    epochs = np.unique(trace.epochs[counted])
    mean = float(np.mean([len(np.unique(trace.ids[counted & (trace.epochs == epoch)])) for epoch in epochs]))
    # Make a whole number an int, so that the JSON shows a fraction only if epochs differ.
    return int(mean) if mean.is_integer() else mean
