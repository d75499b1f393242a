"""Runs our own client in several processes, for a load that one Python process cannot make."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from typing import TypeVar

from shadeproxy_bench.objects import Piece

_Result = TypeVar("_Result")
_Ask = Callable[[Sequence[Piece]], _Result]
_PATIENCE_S = 60.0
_started: list[Barrier] = []
"""The barrier at which this process waits for the other processes of its pool. The list is empty in a process
that belongs to no pool.
"""


def ask_from_processes(
    ask: _Ask[_Result], pieces: Sequence[Piece], *, processes: int
) -> tuple[float, list[_Result]]:
    """Divide ``pieces`` among new processes, and call ``ask`` in each with its pieces. Return the seconds
    from the begin of the first process to the end of the last, and the results of all. Raises what ``ask``
    raises.
    """
    for piece in pieces:
        piece.body()  # A process made by fork starts with the bodies that its parent has computed.
    forking = get_context("fork")
    # Each process takes one share of the pieces, and waits for the other processes before it begins.
    started = partial(_start, forking.Barrier(processes))
    with ProcessPoolExecutor(processes, mp_context=forking, initializer=started) as pool:
        shares = [pieces[first::processes] for first in range(processes)]
        timed = list(pool.map(partial(_timed, ask), shares))
    results = [result for _, _, result in timed]
    return max(ended for _, ended, _ in timed) - min(began for began, _, _ in timed), results


def _start(barrier: Barrier) -> None:
    _started.append(barrier)


def _timed(ask: _Ask[_Result], pieces: Sequence[Piece]) -> tuple[float, float, _Result]:
    _started[-1].wait(_PATIENCE_S)
    # perf_counter is the same clock in all processes, so that their times can be compared.
    began_s = time.perf_counter()
    result = ask(pieces)
    return began_s, time.perf_counter(), result
