"""Threads for work that would block the event loop. Work that is no longer needed stops.

Laws: work that loops over a client's data calls ``raise_if_cancelled`` in its loop. Work is cancelled when
the task that awaits it is cancelled, and when the pool shuts down. While work runs in the pool, the
interpreter switches threads ten times as often, because the event loop has to wait until it gets its turn.
"""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from shadeproxy.core.errors import ShuttingDown

_SWITCH_S = 0.0005

Args = ParamSpec("Args")
Result = TypeVar("Result")


class CancellationToken:
    """A flag that is set when work on another thread is no longer needed."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False


_current: ContextVar[CancellationToken | None] = ContextVar("_current", default=None)


def raise_if_cancelled() -> None:
    """Raise ShuttingDown if the work that calls this is no longer needed. Takes 0.1 us."""
    token = _current.get()
    if token is not None and token.cancelled:
        raise ShuttingDown("the work was given up: its client is gone, or the proxy stops")


class WorkPool(ThreadPoolExecutor):
    """A pool of ``threads`` threads whose names begin with ``name``. Cancelling a future also cancels its
    work.
    """

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(threads, thread_name_prefix=name)
        self._tokens: set[CancellationToken] = set()

    def submit(
        self, fn: Callable[Args, Result], /, *args: Args.args, **kwargs: Args.kwargs
    ) -> Future[Result]:
        """Run ``fn`` on a thread of the pool. If the future is cancelled, ``fn`` ends at its next
        ``raise_if_cancelled``.
        """
        token = CancellationToken()
        self._tokens.add(token)

        def work() -> Result:
            _current.set(token)
            with short_turns:
                raise_if_cancelled()
                return fn(*args, **kwargs)

        future = super().submit(work)
        cancel = future.cancel

        def cancel_work() -> bool:
            token.cancelled = True
            return cancel()

        # When a task is cancelled, asyncio cancels the future that the task awaits. That does not stop work
        # which runs already, so the flag is set as well.
        future.cancel = cancel_work  # type: ignore[method-assign]

        def end(ended: Future[Result]) -> None:
            self._tokens.discard(token)
            # With ``cancel_work`` the future would refer to itself, and so keep its result until the
            # collector runs. The result may be large.
            del ended.cancel

        future.add_done_callback(end)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """Cancel running and queued work, then wait until the threads have ended."""
        for token in list(self._tokens):
            token.cancelled = True
        super().shutdown(wait, cancel_futures=cancel_futures)


class _ShortTurns:
    """Makes the interpreter switch threads sooner while at least one thread is in the block."""

    def __init__(self) -> None:
        self._inside = 0
        self._lock = threading.Lock()
        self._before_s = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before_s = sys.getswitchinterval()
                sys.setswitchinterval(min(_SWITCH_S, self._before_s))
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                sys.setswitchinterval(self._before_s)


short_turns = _ShortTurns()
"""Enter this block for work beside the event loop, so that the loop gets the interpreter back soon. Any
thread may enter it.
"""
