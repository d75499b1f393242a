"""Copies located samples, by several threads if the machine has cores for them.

The kernel copies a file page by page, so one thread uses only a fraction of the memory's bandwidth. While the
kernel copies, Python's lock is free, so that a second thread can copy too. Law: once ``copy`` has returned or
raised, no thread writes into the batch any more.
"""

import os
from collections.abc import Sequence
from concurrent.futures import Future, wait
from contextlib import suppress

from shadeproxy_sdk import locate
from shadeproxy_sdk.batch_buffer import BatchBuffer
from shadeproxy_sdk.connections import Connections
from shadeproxy_sdk.locate import Located
from shadeproxy_sdk.shared import worker_info

_MOST_THREADS = 2
# For fewer bytes than this, starting a thread and waiting for Python's lock costs as much as the thread
# saves.
_LEAST_BYTES = 1 << 20
_LEAST_PIECE_BYTES = 1 << 15


def copy(located: Located, positions: Sequence[int], batch: BatchBuffer, connections: Connections) -> int:
    """Copy samples as ``locate.copy`` does, with as many threads as are useful. Return how many were
    copied.
    """
    parts = located.split(threads_for(located))
    segments = connections.transport.segments
    others: list[Future[int]] = []
    try:
        # If another thread has closed the client meanwhile, this thread copies all parts.
        with suppress(RuntimeError):
            others.extend(
                connections.executor.submit(locate.copy, part, positions, batch, segments)
                for part in parts[1:]
            )
        mine = [parts[0], *parts[1 + len(others) :]]
        arrived = sum(locate.copy(part, positions, batch, segments) for part in mine)
        return arrived + sum(other.result() for other in others)
    finally:
        wait(others)


def threads_for(located: Located) -> int:
    """Return the number of threads that should copy ``located``."""
    pieces, size_bytes = len(located.rows), located.size_bytes
    if size_bytes < max(_LEAST_BYTES, pieces * _LEAST_PIECE_BYTES):
        return 1
    return min(_MOST_THREADS, cores_of_this_process())


def cores_of_this_process() -> int:
    """Return this process's share of the machine's cores, at least one. The workers of the DataLoader share
    the cores, and so do the ranks on the machine if torchrun says how many there are.
    """
    worker = worker_info()
    workers = 1 if worker is None else worker.num_workers
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")  # torchrun sets this variable.
    # Only Linux tells which cores a process may use. Elsewhere, count all cores of the machine.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // (workers * max(1, int(ranks) if ranks.isdecimal() else 1)))
