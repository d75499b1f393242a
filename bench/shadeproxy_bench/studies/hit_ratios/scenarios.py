"""The workloads of the study, how their orders are announced, and the hit ratios that the design promises."""

from collections.abc import Callable
from typing import NamedTuple

from shadeproxy.simulate.trace import Trace
from shadeproxy.simulate.workloads import importance, lagged, shards, uniform

CACHES = "5%,10%,20%,30%,40%,50%,75%"


class Promise(NamedTuple):
    """A promise of the design: with a cache of the share ``cache`` of the data, the hit ratio of ``policy``
    is at least ``least``.
    """

    cache: float
    policy: str
    least: float


class Scenario(NamedTuple):
    """One workload, which is one panel of the picture. ``trace``: a function that makes the trace for a
    number of objects and a seed. ``announce``: a value of the option ``--announce`` of ``shadeproxy
    simulate``.
    """

    name: str
    words: str
    trace: Callable[[int, int], Trace]
    announce: str
    promises: tuple[Promise, ...]


SCENARIOS = (
    Scenario(
        "uniform",
        "shuffled epochs, stock client, nothing known",
        lambda objects, seed: uniform(objects, 4, seed=seed),
        "none",
        tuple(Promise(share, "default", 0.99 * share) for share in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75)),
    ),
    Scenario(
        "importance-unknown",
        "importance draws, nothing announced",
        lambda objects, seed: importance(objects, 5, seed=seed),
        "none",
        (),
    ),
    Scenario(
        "importance-epoch",
        "importance draws, this epoch announced",
        lambda objects, seed: importance(objects, 5, seed=seed),
        "epoch",
        (Promise(0.2, "default", 0.49),),
    ),
    Scenario(
        "importance-next",
        "importance draws, the next epoch at half",
        lambda objects, seed: importance(objects, 5, seed=seed),
        "next-half",
        (Promise(0.2, "default", 0.54),),
    ),
    Scenario(
        "heavy-next",
        "draws of a heavier tail, the next epoch at half",
        lambda objects, seed: importance(objects, 5, seed=seed, draws="heavy"),
        "next-half",
        (),
    ),
    Scenario(
        "two-jobs",
        "2 jobs, orders of their own, next epoch known",
        lambda objects, seed: uniform(objects, 4, seed=seed, jobs=2),
        "2",
        (Promise(0.2, "default", 0.43),),
    ),
    Scenario(
        "four-jobs",
        "4 jobs, orders of their own, next epoch known",
        lambda objects, seed: uniform(objects, 4, seed=seed, jobs=4),
        "2",
        (Promise(0.2, "default", 0.48),),
    ),
    Scenario(
        "one-node-of-four",
        "one node of four, 8 epochs announced",
        lambda objects, seed: uniform(objects, 16, seed=seed, ranks=4),
        "8",
        (Promise(0.2, "default", 0.47),),
    ),
    Scenario(
        "search",
        "search: 4 jobs on one order, 15 % lag, this epoch announced",
        lambda objects, seed: lagged(objects, 4, seed=seed),
        "epoch",
        (Promise(0.1, "default", 0.48),),
    ),
    Scenario(
        "shards",
        "shards: each page read 3 times running, nothing known",
        lambda objects, seed: shards(objects, 4, seed=seed),
        "none",
        (Promise(0.2, "default", 0.732),),
    ),
)
