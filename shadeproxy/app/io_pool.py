"""``IoPool``: the threads that do one kind of I/O of a disk, and how long the I/O under way has taken."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic
from typing import ParamSpec, TypeVar

Args = ParamSpec("Args")
Result = TypeVar("Result")


class IoPool(ThreadPoolExecutor):
    """A pool of ``threads`` threads whose names begin with ``name``. ``now_s``: the clock."""

    def __init__(self, threads: int, name: str, *, now_s: Callable[[], float] = monotonic) -> None:
        super().__init__(threads, thread_name_prefix=name)
        self._now_s = now_s
        self._began_s: dict[int, float] = {}
        """When the work of each thread began, by the thread's id. Only threads with work are in it."""

    def submit(
        self, fn: Callable[Args, Result], /, *args: Args.args, **kwargs: Args.kwargs
    ) -> Future[Result]:
        def work() -> Result:
            thread = threading.get_ident()
            self._began_s[thread] = self._now_s()
            try:
                return fn(*args, **kwargs)
            finally:
                del self._began_s[thread]

        return super().submit(work)

    @property
    def busy_s(self) -> float:
        """Return for how many seconds the oldest work has been running, 0 if none is."""
        # Only the copy is one step of the interpreter: a loop over the dict could find it changed.
        began_s = list(self._began_s.values())
        return self._now_s() - min(began_s) if began_s else 0.0
