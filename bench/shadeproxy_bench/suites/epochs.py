"""Wall time of shuffled epochs through a proxy with room for a fifth of the data, compared with epochs read
directly from the origin.

Every round begins with an empty proxy, so each round has one first epoch. Before each epoch through the
proxy, the same order is read directly from the origin.
"""

import random
import statistics
from collections.abc import Callable, Iterator
from functools import cache, partial

from shadeproxy_bench.objects import Piece
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.rounds import measured
from shadeproxy_bench.server import Served, origin, proxy, workplace
from shadeproxy_bench.suites.misses import SIGMA, read_pieces
from shadeproxy_bench.warm_memory import warm_memory

_OBJECT_BYTES = 100_000
LATENCY_S = 0.02
_READERS = 16
_CACHED = 0.2
_EPOCHS = 3
_ROUNDS = 3

Rounds = list[list[tuple[float, float, float]]]
"""Seconds through the proxy, seconds direct from the origin, and share of hits, by round and epoch."""


def shuffled_epochs(
    ours: Served, source: Served, *, objects: int, seed: int
) -> list[tuple[float, float, float]]:
    """Return for each epoch: seconds through the proxy, seconds direct from the origin, and share of hits."""
    pieces = [Piece(_OBJECT_BYTES, number) for number in range(objects)]
    drawn = random.Random(seed)
    walls = []
    for _ in range(_EPOCHS):
        drawn.shuffle(pieces)
        direct = read_pieces(source, pieces, connections=_READERS)
        through = read_pieces(ours, pieces, connections=_READERS)
        hits = (through.sources["ram"] + through.sources["disk"]) / objects
        walls.append((through.wall_s, direct.wall_s, hits))
    return walls


def rounds_of_epochs(*, objects: int, rounds: int, sigma: float = 0.0) -> Rounds:
    """Run ``shuffled_epochs`` with real servers. Each round has a new, empty proxy."""
    found = []
    ram_bytes = int(_CACHED * objects * _OBJECT_BYTES)
    with (
        warm_memory(rounds * ram_bytes),
        workplace() as work,
        origin(work, latency_s=LATENCY_S, sigma=sigma) as source,
    ):
        for turn in range(rounds):
            with proxy(work, source, ram_bytes=ram_bytes, name=f"proxy{turn}") as ours:
                found.append(shuffled_epochs(ours, source, objects=objects, seed=turn))
    return found


def first_epoch(rounds: Rounds) -> Measured:
    return measured([epochs[0][0] for epochs in rounds], [epochs[0][1] for epochs in rounds])


def worst_later_epoch(rounds: Rounds) -> Measured:
    """Return the worst epoch after the first. An epoch is judged by the ratio of its median time to the
    median time of the direct epoch before it.
    """
    later = [
        (
            measured([epochs[number][0] for epochs in rounds], [epochs[number][1] for epochs in rounds]),
            statistics.mean(epochs[number][2] for epochs in rounds),
            number + 1,
        )
        for number in range(1, len(rounds[0]))
    ]
    found, hits, number = max(later, key=lambda one: one[0].ours / (one[0].reference or 1))
    note = f"epoch {number}, hit ratio {hits:.3f}"
    return Measured(found.ours, found.reference, found.ours_spread, found.reference_spread, note)


def _of(judge: Callable[[Rounds], Measured], run: Callable[[], Rounds]) -> Measured:
    return judge(run())


def epochs(scale: Scale) -> Iterator[Planned]:
    """Yield the rows of the first and of the worst later epoch, with a constant and with a varying latency of
    the origin. With a constant latency, readers that have once waited at the same moment wait together again
    in each batch.
    """
    objects = scale.pick(2000, 500)
    for sigma, varies, tells in (
        (0.0, "", ""),
        (SIGMA, ", latency varies", f" (lognormal, sigma {SIGMA})"),
    ):
        once = cache(partial(rounds_of_epochs, objects=objects, rounds=_ROUNDS, sigma=sigma))
        how = f"{objects} x 100 KB shuffled, {_READERS} readers, 20 ms origin{tells}, cache of 20 %"
        for name, most, judge, of_which in (
            ("first epoch", 1.05, first_epoch, ""),
            ("worst later epoch", 1.0, worst_later_epoch, f"; the worst of epochs 2 to {_EPOCHS}"),
        ):
            yield Planned(
                f"{name}, wall{varies}",
                "s",
                Target(most, at_least=False),
                f"{how}; direct in turn{of_which}",
                partial(_of, judge, once),
                ratio_is="ours / reference",
            )
