"""Copying of located samples by more than one thread, if the machine has cores for it.

The kernel copies one page of a file after the other, so one thread reaches a fraction of the memory's
bandwidth, and Python's lock is free meanwhile. Law: no thread still writes when ``copy`` has returned or
raised.
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
# Below these sizes, starting a thread and waiting for Python's lock cost what it saves.
_LEAST_BYTES = 1 << 20
_LEAST_PIECE_BYTES = 1 << 15


def copy(located: Located, positions: Sequence[int], batch: BatchBuffer, connections: Connections) -> int:
    """Copy like ``locate.copy``, with as many threads as help."""
    parts = located.split(threads_for(located))
    segments = connections.transport.segments
    others: list[Future[int]] = []
    try:
        # Python starts no thread after its main thread has ended, while another thread may still train.
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
    """Return the number of threads that should copy."""
    pieces, size_bytes = len(located.rows), located.size_bytes
    if size_bytes < max(_LEAST_BYTES, pieces * _LEAST_PIECE_BYTES):
        return 1
    return min(_MOST_THREADS, cores_of_this_process())


def cores_of_this_process() -> int:
    """Return the cores left for this process, without those of the DataLoader's other workers and the
    machine's other ranks, as far as these are known; at least one.
    """
    worker = worker_info()
    workers = 1 if worker is None else worker.num_workers
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")  # set by torchrun
    return max(1, len(os.sched_getaffinity(0)) // (workers * max(1, int(ranks) if ranks.isdecimal() else 1)))
