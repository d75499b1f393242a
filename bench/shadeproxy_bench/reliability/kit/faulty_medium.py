"""``FaultyCalls``: a medium that fails on request, for tests and for ``make chaos``.

It wraps the system calls by which a tier reads and writes segments (``Calls``). A write is refused, cut short
or late; a hole is not punched; a read fails or is late. Bytes are never changed, because no system call
changes them.
"""

import errno
import os
import time
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from shadeproxy.tiers.medium import SYSTEM, Calls
from shadeproxy_bench.reliability.kit.schedule import Schedule

Data = bytes | bytearray | memoryview


class MediumFault(StrEnum):
    """A fault of one call. The first word of its name is the kind of call."""

    READ_EIO = "read: EIO"
    READ_SLOW = "read: slow"
    WRITE_EIO = "write: EIO"
    WRITE_ENOSPC = "write: ENOSPC"
    WRITE_EROFS = "write: EROFS"
    WRITE_SHORT = "write: short"
    WRITE_TORN = "write: short, then EIO"
    WRITE_SLOW = "write: slow"
    PUNCH_EIO = "punch: EIO"
    FLUSH_EIO = "flush: EIO"
    PUNCH_LOST = "punch: lost"


_ERRNO = {
    MediumFault.READ_EIO: errno.EIO,
    MediumFault.WRITE_EIO: errno.EIO,
    MediumFault.WRITE_ENOSPC: errno.ENOSPC,
    MediumFault.WRITE_EROFS: errno.EROFS,
    MediumFault.PUNCH_EIO: errno.EIO,
    MediumFault.FLUSH_EIO: errno.EIO,
}
_SLOW = frozenset({MediumFault.READ_SLOW, MediumFault.WRITE_SLOW})


class FaultyCalls:
    """``inner``, with the faults of ``schedule``. Thread-safe. ``slow_s``: seconds by which a slow call is
    delayed.
    """

    def __init__(
        self, schedule: Schedule[MediumFault], *, inner: Calls = SYSTEM, slow_s: float = 0.05
    ) -> None:
        self.schedule = schedule
        self._inner = inner
        self._slow_s = slow_s

    def pread(self, descriptor: int, length: int, offset: int) -> bytes:
        self._suffer("read")
        return self._inner.pread(descriptor, length, offset)

    def pwrite(self, descriptor: int, data: Data, offset: int) -> int:
        fault = self._suffer("write")
        if fault is MediumFault.WRITE_TORN:
            self.schedule.hasten(MediumFault.WRITE_EIO)
        if fault in {MediumFault.WRITE_SHORT, MediumFault.WRITE_TORN} and len(data) > 1:
            return self._inner.pwrite(descriptor, memoryview(data)[: len(data) // 2], offset)
        return self._inner.pwrite(descriptor, data, offset)

    def punch_hole(self, descriptor: int, start: int, length: int) -> None:
        if self._suffer("punch") is not MediumFault.PUNCH_LOST:
            self._inner.punch_hole(descriptor, start, length)

    def flush(self, descriptor: int) -> None:
        self._suffer("flush")
        self._inner.flush(descriptor)

    def _suffer(self, operation: str) -> MediumFault | None:
        """Return the next fault of the schedule for this kind of call. If the fault is an error, raise it; if
        the fault is slowness, sleep first.
        """
        fault = self.schedule.next(operation)
        if fault in _SLOW:
            time.sleep(self._slow_s)
        if fault in _ERRNO:
            raise OSError(_ERRNO[fault], os.strerror(_ERRNO[fault]))
        return fault


def scheduled(
    *,
    script: Iterable[MediumFault] = (),
    rates: Mapping[MediumFault, float] | None = None,
    seed: int = 0,
    noted: Callable[[MediumFault], None] = lambda _fault: None,
) -> Schedule[MediumFault]:
    """Return a schedule of faults for ``FaultyCalls``; see ``kit/schedule.py``."""
    return Schedule(MediumFault.startswith, script=script, rates=rates, seed=seed, noted=noted)
