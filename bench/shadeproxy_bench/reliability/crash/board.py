"""``Board``: shared memory in which a proxy counts its phases (the work that it does now) and its steps
(changes of files). There the proxy also finds the step at which it must die. The board outlives the proxy.

The proxy's own process writes the board. The run reads it, even after kill -9. ``Board.step`` is called
around every change of a file, so a death can be planned at any of these changes.
"""

import mmap
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

PHASES = (
    "starting",
    "opening the state",
    "opening a tier",
    "recovering",
    "reading a segment",
    "taking a segment in",
    "filling",
    "writing a page to RAM",
    "writing a page to disk",
    "erasing a page",
    "punching a hole",
    "demoting",
    "promoting",
    "emptying a catalogue",
    "writing catalogues",
    "committing control state",
    "disowning an object",
    "writing through",
    "stopping",
)
STEPS = (
    "before a write",
    "in the middle of a write",
    "after a write",
    "before a hole",
    "after a hole",
    "at a truncation",
    "at a rename",
    "at a deletion",
    "in the database",
)
READY, PLACED, KEPT, STEP, DIE_AT, DIED, ARMED, AWAITED = (len(PHASES) + n for n in range(8))
_LENGTH = AWAITED + 1
ARM_AT_START, ARM_WHEN_READY, ARM_AT_STOP = range(3)


class Board:
    """The board of one proxy. ``cells``: i64 values. The first cells have, for each phase, the number of
    calls that are in it now. The cells ``READY`` to ``AWAITED`` follow.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, 8 * _LENGTH)
            self._map = mmap.mmap(descriptor, 8 * _LENGTH)
        finally:
            os.close(descriptor)
        self.cells = np.frombuffer(self._map, np.int64)

    def clear(self, *, die_at: int, armed: int) -> None:
        """Clear the board for the next proxy. The proxy dies at its step number ``die_at`` (0: at none).
        ``armed``: the moment from which steps are counted, one of the ARM constants.
        """
        self.cells[:] = 0
        self.cells[DIE_AT], self.cells[ARMED], self.cells[DIED] = die_at, armed, -1

    @property
    def phases(self) -> list[str]:
        """The phases in which the proxy is, or was when it ended."""
        return [phase for phase, count in zip(PHASES, self.cells, strict=False) if count > 0]

    @property
    def died_at(self) -> str:
        """The step at which a planned death happened; "" if none happened."""
        return STEPS[died] if (died := int(self.cells[DIED])) >= 0 else ""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        number = PHASES.index(name)
        self.cells[number] += 1
        try:
            yield
        finally:
            self.cells[number] -= 1

    def step(self, name: str) -> bool:
        """Count a step, if steps are counted now, and die if a death is planned at this step. If the death is
        planned in the middle of a write, return True instead: the caller then writes a part before it dies.
        """
        armed = int(self.cells[ARMED])
        if (armed == ARM_WHEN_READY and not self.cells[READY]) or (
            armed == ARM_AT_STOP and not self.cells[PHASES.index("stopping")]
        ):
            return False
        self.cells[STEP] += 1
        if self.cells[STEP] != self.cells[DIE_AT]:
            return False
        self.cells[DIED] = STEPS.index(name)
        if name != "in the middle of a write":
            die()
        return True


def die() -> None:
    """End this process as kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
