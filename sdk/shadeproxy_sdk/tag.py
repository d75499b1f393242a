"""Whose reads these are: the job, epoch and rank that every process of a training run puts on its requests.

The epoch is one shared integer, so that DataLoader workers that live longer than an epoch
(``persistent_workers``) see it change.
"""

import ctypes
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawValue
from typing import Any


class SharedEpoch:
    """An int64 that parent and workers share, under fork and spawn; a plain pickle carries only its value."""

    def __init__(self, value: int = 0) -> None:
        self._cell = RawValue(ctypes.c_int64, value)

    @property
    def value(self) -> int:
        return int(self._cell.value)

    @value.setter
    def value(self, value: int) -> None:
        self._cell.value = value

    def __getstate__(self) -> dict[str, Any]:
        # Shared memory can be handed over only while a child is being started.
        return {"cell": self._cell if get_spawning_popen() is not None else None, "value": self.value}

    def __setstate__(self, state: dict[str, Any]) -> None:
        cell = state["cell"]
        self._cell = RawValue(ctypes.c_int64, state["value"]) if cell is None else cell


class JobTag:
    """The value of ``x-shade-job``."""

    def __init__(self, job: str, rank: int) -> None:
        self.job = job
        self.rank = rank
        self.epoch = SharedEpoch()

    def headers(self) -> dict[str, str]:
        """The header field of a read that is made now."""
        return {"x-shade-job": f"{self.job};epoch={self.epoch.value};rank={self.rank}"}
