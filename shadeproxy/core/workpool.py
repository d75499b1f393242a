"""Threads for work that would hold the event loop, which end what nobody waits for any more.

Laws: work that loops over what somebody sent calls ``raise_if_cancelled`` in its loop; it is cancelled when
the task that awaits it is, and when the pool shuts down. While work runs here the interpreter changes threads
ten times as often, because each change is what the event loop waits for.
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
    """Says to work on another thread whether it is still wanted."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False


_current: ContextVar[CancellationToken | None] = ContextVar("_current", default=None)


def raise_if_cancelled() -> None:
    """Raise ShuttingDown when the work that calls this is not wanted any more. Costs 0.1 us."""
    token = _current.get()
    if token is not None and token.cancelled:
        raise ShuttingDown("the work was given up: its client is gone, or the proxy stops")


class WorkPool(ThreadPoolExecutor):
    """``threads`` named after ``name``. A cancelled future cancels its work too, not only the waiting."""

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(threads, thread_name_prefix=name)
        self._tokens: set[CancellationToken] = set()

    def submit(
        self, fn: Callable[Args, Result], /, *args: Args.args, **kwargs: Args.kwargs
    ) -> Future[Result]:
        """Run ``fn`` on a thread. Cancelling the future stops it at its next ``raise_if_cancelled``."""
        token = CancellationToken()
        self._tokens.add(token)

        def work() -> Result:
            _current.set(token)
            with _short_turns:
                raise_if_cancelled()
                return fn(*args, **kwargs)

        future = super().submit(work)
        cancel = future.cancel

        def cancel_work() -> bool:
            token.cancelled = True
            return cancel()

        # asyncio cancels the future of a task that is cancelled; one that runs ignores it.
        future.cancel = cancel_work  # type: ignore[method-assign]
        future.add_done_callback(lambda _: self._tokens.discard(token))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """Give up what is under way and what has not begun, then wait."""
        for token in list(self._tokens):
            token.cancelled = True
        super().shutdown(wait, cancel_futures=cancel_futures)


class _ShortTurns:
    """While anything is inside, threads change hands sooner."""

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


_short_turns = _ShortTurns()
