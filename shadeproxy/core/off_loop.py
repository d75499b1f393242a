"""Runs calculations that would block the event loop on the threads of a pool instead."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Protocol, TypeVar

from shadeproxy.core.errors import ShuttingDown

Result = TypeVar("Result")


class OffLoop(Protocol):
    """Calls ``work`` in some thread, and then ``done`` with its result. ``done`` runs on the event
    loop of the caller.

    If ``work`` raises, ``failed`` is called instead of ``done``.
    """

    @property
    def is_resting(self) -> bool:
        """True while work that can wait should not be started."""
        ...

    def __call__(
        self, work: Callable[[], Result], done: Callable[[Result], Any], failed: Callable[[], Any], /
    ) -> None: ...


class AtOnce:
    """An ``OffLoop`` without threads: calls ``work`` and ``done`` in the calling thread. An error of ``work``
    is raised after ``failed`` was called.
    """

    is_resting = False
    """See ``OffLoop.is_resting``."""

    def __call__(
        self, work: Callable[[], Result], done: Callable[[Result], Any], failed: Callable[[], Any], /
    ) -> None:
        try:
            result = work()
        except BaseException:
            failed()
            raise
        done(result)


at_once = AtOnce()


class InPool:
    """Calls ``work`` on a thread of ``pool``, and ``done`` with its result on the calling event loop.

    If ``work`` raises, ``failed`` is called instead, and the exception handler of the loop reports the error.
    If a shutdown of the pool cancels ``work``, neither is called.

    ``rests``: with 3.0, for example, ``is_resting`` is True after each ``work`` for three times as long as
    the work ran. The interpreter runs one thread at a time, so work without rests would take half of the
    event loop's time.
    """

    def __init__(self, pool: Executor, *, rests: float = 0.0) -> None:
        self._pool = pool
        self._rests = rests
        self._rested_s = 0.0

    @property
    def is_resting(self) -> bool:
        """See ``OffLoop.is_resting``."""
        return time.monotonic() < self._rested_s

    def __call__(
        self, work: Callable[[], Result], done: Callable[[Result], Any], failed: Callable[[], Any], /
    ) -> None:
        def timed() -> Result:
            began_s = time.thread_time()
            try:
                return work()
            finally:
                self._rested_s = time.monotonic() + self._rests * (time.thread_time() - began_s)

        def end(future: "asyncio.Future[Result]") -> None:
            if future.cancelled() or isinstance(future.exception(), ShuttingDown):
                return
            if future.exception() is not None:
                failed()
            done(future.result())

        asyncio.get_running_loop().run_in_executor(self._pool, timed).add_done_callback(end)
