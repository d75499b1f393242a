"""Runs calculations that would hold the event loop elsewhere: on the threads of a pool."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Protocol, TypeVar

from shadeproxy.core.errors import ShuttingDown

Result = TypeVar("Result")


class OffLoop(Protocol):
    """Calls ``work`` in any thread, and ``done`` with its result where it was called itself."""

    def __call__(self, work: Callable[[], Result], done: Callable[[Result], Any], /) -> None: ...


def at_once(work: Callable[[], Result], done: Callable[[Result], Any], /) -> None:
    """Implement ``OffLoop`` without a thread."""
    done(work())


class InPool:
    """Calls ``work`` on a thread of ``pool``, and ``done`` with its result on the calling event loop.

    When ``work`` raises, ``done`` is not called, and the loop's exception handler reports the error. When
    the pool shuts down, neither happens.
    """

    def __init__(self, pool: Executor) -> None:
        self._pool = pool

    def __call__(self, work: Callable[[], Result], done: Callable[[Result], Any], /) -> None:
        def end(future: "asyncio.Future[Result]") -> None:
            if not future.cancelled() and not isinstance(future.exception(), ShuttingDown):
                done(future.result())

        asyncio.get_running_loop().run_in_executor(self._pool, work).add_done_callback(end)
