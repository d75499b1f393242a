"""Charges the proxy's processor time to the jobs that read, once a second. So a read itself does no extra
work.

Source: clock_getcpuclockid(3). The clock of a process counts all its threads.
"""

import ctypes
import resource
import time
from collections.abc import Iterable

from shadeproxy.core.clock import Clock
from shadeproxy.telemetry.stats import Stats

_EVERY_S = 1.0
_LIBC = ctypes.CDLL(None)


def used_cpu_s(workers: Iterable[int] = ()) -> float:
    """Return the processor seconds that the proxy has used so far. They are those of this process with all
    its threads, of the running processes ``workers``, and of workers that have ended.
    """
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(map(_of_process, workers))


def _of_process(number: int) -> float:
    clock = ctypes.c_int()
    if _LIBC.clock_getcpuclockid(number, ctypes.byref(clock)):
        return 0.0  # The process has ended; its time is counted with that of ended processes.
    try:
        return time.clock_gettime(clock.value)
    except OSError:  # The process ended just now.
        return 0.0


async def keep_charging(stats: Stats, clock: Clock) -> None:
    """Charge processor time to jobs every second, until cancelled."""
    while True:
        stats.charge_cpu()
        await clock.sleep(_EVERY_S)
