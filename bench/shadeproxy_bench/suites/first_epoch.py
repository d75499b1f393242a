"""The first epoch of many readers through a proxy of several processes, compared with the same readers at the
origin.

Each round reads objects that were not requested before, in random order. The tier has room for the objects of
all rounds. The first round opens connections and is not counted.
"""

import random
from functools import partial

import msgspec

from shadeproxy.core.cores import available_cores
from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.forks import ask_from_processes
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.rounds import measured
from shadeproxy_bench.server import Served, origin, proxy, workplace
from shadeproxy_bench.sides import needed_cores, require_cores, sides_of
from shadeproxy_bench.suites.misses import read_pieces
from shadeproxy_bench.warm_memory import warm_memory

_OBJECT_BYTES = 100_000
_READERS = 64
_PROCESSES = (8, 4)
_CLIENTS = 8
"""Client processes among which the readers are divided. With 64 readers and 5 ms for an answer, each process
gets 1,600 answers a second, a tenth of what it can read.
"""


def read_epoch(server: Served, pieces: list[Piece], *, readers: int, clients: int) -> float:
    """Return the seconds in which ``readers`` connections, in ``clients`` processes, read each of ``pieces``
    once and compare every byte. Raises BenchError if a read was a hit.
    """
    ask = partial(read_pieces, server, connections=readers // clients)
    wall_s, readings = ask_from_processes(ask, pieces, processes=clients)
    if hits := sum(reading.sources[tier] for reading in readings for tier in ("ram", "disk")):
        raise BenchError(f"{server.name}: {hits} of {len(pieces)} reads were hits")
    return wall_s


def first_epochs(
    ours: Served,
    source: Served,
    *,
    objects: int,
    rounds: int,
    readers: int = _READERS,
    clients: int = _CLIENTS,
) -> Measured:
    """Return the seconds of a first epoch through the proxy, and directly from the origin, measured in
    turn.
    """
    drawn = random.Random(0)
    sides: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 1):
        pieces = [Piece(_OBJECT_BYTES, turn * objects + number) for number in range(objects)]
        for server, found in ((source, sides[1]), (ours, sides[0])):
            drawn.shuffle(pieces)
            wall_s = read_epoch(server, pieces, readers=readers, clients=clients)
            if turn:
                found.append(wall_s)
    return measured(*sides)


def measure_first_epoch(scale: Scale, latency_s: float) -> Measured:
    """Run ``first_epochs`` with real servers. The proxy has 8 processes, or 4 where the machine has too few
    cores for 8. Raises TooFewCores if there are too few for 4.
    """
    require_cores(_PROCESSES[-1])
    processes = next(number for number in _PROCESSES if needed_cores(number) <= available_cores())
    objects = _objects(scale)
    stored_bytes = (scale.rounds + 1) * objects * _OBJECT_BYTES
    with (
        warm_memory(stored_bytes),
        workplace() as work,
        origin(work, latency_s=latency_s, processes=sides_of("miss", processes).origins) as source,
        proxy(
            work, source, ram_bytes=2 * stored_bytes, more={"s3": {"workers": processes}}, name="several"
        ) as ours,
    ):
        found = first_epochs(ours, source, objects=objects, rounds=scale.rounds)
        return msgspec.structs.replace(found, note=f"{processes} processes")


def _objects(scale: Scale) -> int:
    return scale.pick(20_000, 10_000)


def first_epoch(scale: Scale, latency_s: float) -> Planned:
    """Return the row of the first epoch from an origin ``latency_s`` away."""
    away = f"origin {latency_s * 1000:.0f} ms away"
    return Planned(
        f"first epoch, {_READERS} readers, {away}: wall",
        "s",
        Target(0.95),
        f"{_objects(scale)} x 100 KB in random order, each once, {_READERS} connections of {_CLIENTS} client "
        f"processes, {away}, unsigned; an empty tier with room for all; "
        "direct in turn; 8 processes, or 4 where there are too few cores",
        partial(measure_first_epoch, scale, latency_s),
    )
