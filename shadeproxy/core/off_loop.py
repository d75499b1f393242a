"""Runs calculations that would block the event loop on the threads of a pool."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
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
    """

    def __init__(self, pool: Executor) -> None:
        self._pool = pool

    def __call__(
        self, work: Callable[[], Result], done: Callable[[Result], Any], failed: Callable[[], Any], /
    ) -> None:
        def end(future: "asyncio.Future[Result]") -> None:
            if future.cancelled() or isinstance(future.exception(), ShuttingDown):
                return
            if future.exception() is not None:
                failed()
            done(future.result())

        asyncio.get_running_loop().run_in_executor(self._pool, work).add_done_callback(end)
