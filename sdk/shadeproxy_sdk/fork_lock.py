"""A lock that a forked child can use. A thread of the parent may hold a lock at the fork. In the child no
thread is left that releases it, so a plain lock would stay locked for ever.
"""

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any


class ForkLock:
    """A lock made by ``make``. A forked child finds it unlocked."""

    def __init__(self, make: Callable[[], Any] = threading.Lock) -> None:
        self._make = make
        self.renew()
        _LOCKS.add(self)

    def renew(self) -> None:
        """Begin unlocked. Only a process that has no other thread yet may call this."""
        self._lock = self._make()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock as ``threading.Lock.acquire`` does."""
        acquired: bool = self._lock.acquire(blocking, timeout)
        return acquired

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_LOCKS: "weakref.WeakSet[ForkLock]" = weakref.WeakSet()


def _after_fork() -> None:
    for lock in _LOCKS:
        lock.renew()


if hasattr(os, "register_at_fork"):  # Windows cannot fork
    os.register_at_fork(after_in_child=_after_fork)
