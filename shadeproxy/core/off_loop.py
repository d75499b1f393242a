"""Runs calculations that would block the event loop on the threads of a pool."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from shadeproxy.core.errors import ShuttingDown

Result = TypeVar("Result")


class OffLoop(Protocol):
    """Calls ``work`` in any thread, and then ``done`` with its result, on the event loop of the caller.

    If ``work`` raises, ``failed`` is called instead of ``done``.
    """

    def __call__(
        self, work: Callable[[], Result], done: Callable[[Result], Any], failed: Callable[[], Any], /
    ) -> None: ...


def at_once(work: Callable[[], Result], done: Callable[[Result], Any], failed: Callable[[], Any], /) -> None:
    """Call ``work`` and ``done`` in the calling thread: an ``OffLoop`` without threads. An error of ``work``
    is raised after ``failed`` was called.
    """
    try:
        result = work()
    except BaseException:
        failed()
        raise
    done(result)


class InPool:
    """Calls ``work`` on a thread of ``pool``, and ``done`` with its result on the calling event loop.

    When ``work`` raises, ``failed`` is called instead, and the loop's exception handler reports the error.
    If a shutdown of the pool cancels ``work``, neither is called.

    ``rests``: after each call, wait so many times as long as its ``work`` ran before the next one begins. The
    interpreter runs one thread at a time, so work that never rested would take half of the event loop's time.
    """

    def __init__(self, pool: Executor, *, rests: float = 0.0) -> None:
        self._pool = pool
        self._rests = rests
        self._rested_s = 0.0  # When the next work may begin, by the time of the loop.

    def __call__(
        self, work: Callable[[], Result], done: Callable[[Result], Any], failed: Callable[[], Any], /
    ) -> None:
        loop = asyncio.get_running_loop()
        wait_s = self._rested_s - loop.time()
        if wait_s > 0:
            loop.call_later(wait_s, self._begin, work, done, failed)
        else:
            self._begin(work, done, failed)

    def _begin(
        self, work: Callable[[], Result], done: Callable[[Result], Any], failed: Callable[[], Any]
    ) -> None:
        loop = asyncio.get_running_loop()

        def timed() -> Result:
            began_s = time.thread_time()
            try:
                return work()
            finally:
                self._rested_s = loop.time() + self._rests * (time.thread_time() - began_s)

        def end(future: "asyncio.Future[Result]") -> None:
            if future.cancelled() or isinstance(future.exception(), ShuttingDown):
                return
            if future.exception() is not None:
                failed()
            done(future.result())

        with suppress(RuntimeError):  # The pool was shut down during the wait.
            loop.run_in_executor(self._pool, timed).add_done_callback(end)
