"""State that the processes of one training run share: an integer, and which warnings were given already.

There are no locks, because a process that is killed would leave its lock locked. So two processes may give
the same warning at the same moment.
"""

import ctypes
import logging
import sys
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawValue
from typing import Any

_LOG = logging.getLogger("shadeproxy_sdk")


class SharedInteger:
    """An int64 that the parent and its workers share, whether they are forked or spawned. A pickle that does
    not go to a process being started carries only the value.
    """

    def __init__(self, value: int = 0) -> None:
        self._cell = RawValue(ctypes.c_int64, value)

    @property
    def value(self) -> int:
        return int(self._cell.value)

    @value.setter
    def value(self, value: int) -> None:
        self._cell.value = value

    def __deepcopy__(self, _memo: dict[int, Any]) -> "SharedInteger":
        # A copied dataset belongs to the same run, and must notice when the next epoch begins.
        return self

    def __getstate__(self) -> dict[str, Any]:
        # Shared memory can be passed on only to a child process that is being started.
        return {"cell": self._cell if get_spawning_popen() is not None else None, "value": self.value}

    def __setstate__(self, state: dict[str, Any]) -> None:
        cell = state["cell"]
        self._cell = RawValue(ctypes.c_int64, state["value"]) if cell is None else cell


class Once:
    """A warning that a training run gives once, by the process that first notices its cause.

    ``covers``: a less precise warning of the same cause. It counts as given once this one is given.
    """

    def __init__(self, *, covers: "Once | None" = None) -> None:
        self._said = SharedInteger()
        self._covers = covers

    def warn(self, text: str) -> None:
        """Log ``text`` as a warning the first time, and at debug level afterwards. All workers of a
        DataLoader notice the cause at the same moment, so only the first worker warns.
        """
        first = not self._said.value and not _is_later_worker()
        if first:
            self.settle()
        _LOG.log(logging.WARNING if first else logging.DEBUG, "%s", text)

    def settle(self) -> None:
        """Mark the warning as given, so that later calls log at debug level."""
        self._said.value = 1
        if self._covers is not None:
            self._covers.settle()


def worker_info() -> Any:
    """Return torch's ``WorkerInfo`` in a DataLoader's worker; otherwise None."""
    # Do not import torch here: a process that has not imported it is no worker of a DataLoader.
    data = sys.modules.get("torch.utils.data")
    return None if data is None else data.get_worker_info()


def _is_later_worker() -> bool:
    worker = worker_info()
    return worker is not None and worker.id > 0
