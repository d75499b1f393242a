"""``FaultyCalls``: a medium that misbehaves on order, for tests and for ``make chaos``.

Faults come from a script (each entry befalls the first call that it fits, in order) or from a seeded draw for
every call; the same seed and calls give the same faults. It wraps other ``Calls``, and never invents bytes:
a write is refused, cut short or late, a hole is not punched, a read fails or is late. That bytes come back
other than they were written is not among them: no call does that.
"""

import errno
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from shadeproxy.tiers.medium import SYSTEM, Calls

Data = bytes | bytearray | memoryview


class MediumFault(StrEnum):
    """What goes wrong with one call; the first word says with which."""

    READ_EIO = "read: EIO"
    READ_SLOW = "read: slow"
    WRITE_EIO = "write: EIO"
    WRITE_ENOSPC = "write: ENOSPC"
    WRITE_EROFS = "write: EROFS"
    WRITE_SHORT = "write: short"
    WRITE_TORN = "write: short, then EIO"
    WRITE_SLOW = "write: slow"
    PUNCH_EIO = "punch: EIO"
    PUNCH_LOST = "punch: lost"


_ERRNO = {
    MediumFault.READ_EIO: errno.EIO,
    MediumFault.WRITE_EIO: errno.EIO,
    MediumFault.WRITE_ENOSPC: errno.ENOSPC,
    MediumFault.WRITE_EROFS: errno.EROFS,
    MediumFault.PUNCH_EIO: errno.EIO,
}
_SLOW = frozenset({MediumFault.READ_SLOW, MediumFault.WRITE_SLOW})


class FaultyCalls:
    """``inner``, with faults. Used by several threads.

    ``rates``: probability of each fault for every call that it fits, after the script's end. ``slow_s``: how
    long slow calls take. ``noted``: told of each fault as it happens, on whichever thread.
    """

    def __init__(
        self,
        inner: Calls = SYSTEM,
        *,
        script: Iterable[MediumFault] = (),
        rates: Mapping[MediumFault, float] | None = None,
        seed: int = 0,
        slow_s: float = 0.05,
        noted: Callable[[MediumFault], None] = lambda _fault: None,
    ) -> None:
        self._inner = inner
        self._script = deque(script)
        self._rates = dict(rates or {})
        self._random = random.Random(seed)  # noqa: S311 - reproducible by intention
        self._slow_s = slow_s
        self._noted = noted
        self._lock = threading.Lock()

    def enqueue(self, *faults: MediumFault) -> None:
        """Add to the script."""
        with self._lock:
            self._script.extend(faults)

    def pread(self, descriptor: int, length: int, offset: int) -> bytes:
        self._suffer("read")
        return self._inner.pread(descriptor, length, offset)

    def pwrite(self, descriptor: int, data: Data, offset: int) -> int:
        fault = self._suffer("write")
        if fault in {MediumFault.WRITE_SHORT, MediumFault.WRITE_TORN} and len(data) > 1:
            if fault is MediumFault.WRITE_TORN:
                with self._lock:
                    self._script.appendleft(MediumFault.WRITE_EIO)
            return self._inner.pwrite(descriptor, memoryview(data)[: len(data) // 2], offset)
        return self._inner.pwrite(descriptor, data, offset)

    def punch_hole(self, descriptor: int, start: int, length: int) -> None:
        if self._suffer("punch") is not MediumFault.PUNCH_LOST:
            self._inner.punch_hole(descriptor, start, length)

    def _suffer(self, operation: str) -> MediumFault | None:
        """The fault of this call, if any; one that is an error is raised, a slow one waited for."""
        with self._lock:
            fault = self._draw(operation)
        if fault is None:
            return None
        self._noted(fault)
        if fault in _SLOW:
            time.sleep(self._slow_s)
        if fault in _ERRNO:
            raise OSError(_ERRNO[fault], os.strerror(_ERRNO[fault]))
        return fault

    def _draw(self, operation: str) -> MediumFault | None:
        if self._script:
            fits = self._script[0].startswith(operation)
            return self._script.popleft() if fits else None
        drawn = self._random.random()
        for fault, rate in self._rates.items():
            if fault.startswith(operation):
                if drawn < rate:
                    return fault
                drawn -= rate
        return None
