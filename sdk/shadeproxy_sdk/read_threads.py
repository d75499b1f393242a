"""Threads that read the samples of a batch. Law: the process never waits for them at its end, as it would for
those of ThreadPoolExecutor: after Ctrl-C, a read may still search for a server that answers.
"""

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")

_Calls = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
"""Calls that wait for a thread, each with the future that gets its result. None: the threads end."""


class ReadThreads(Executor):
    """An executor with at most ``most`` threads. They are started as they are needed, and end when nothing
    refers to this object any more.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: _Calls = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, self._calls.put, None)
        self._end.atexit = False

    def submit(
        self, fn: Callable[Arguments, Value], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Value]:
        """Call ``fn`` in one of the threads; if the system has no thread to spare, in the caller's thread,
        before this method returns. Raises RuntimeError after ``shutdown``.
        """
        future: Future[Value] = Future()
        call = partial(fn, *args, **kwargs)
        with self._lock:
            if not self._end.alive:
                raise RuntimeError("the threads have ended")
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._most:
                self._start()
            if self._threads:
                self._calls.put((future, call))
                return future
        _call(future, call)
        return future

    def _start(self) -> None:
        thread = threading.Thread(target=_run, args=(self._calls, self._idle), name="shade-read", daemon=True)
        with suppress(RuntimeError):  # The system has no thread to spare.
            thread.start()
            self._threads.append(thread)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads when they have made the calls that wait. ``wait``: return when they have ended.
        ``cancel_futures``: make none of the calls that wait.
        """
        with self._lock:
            if cancel_futures:
                with suppress(Empty):
                    while (call := self._calls.get_nowait()) is not None:
                        call[0].cancel()
            self._end()
        for thread in self._threads if wait else ():
            thread.join()


def _run(calls: _Calls, idle: threading.Semaphore) -> None:
    while (call := calls.get()) is not None:
        _call(*call)
        del call  # It refers to the bytes that were read.
        idle.release()
    calls.put(None)  # For the next thread.


def _call(future: Future[Any], function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 (the caller gets it)
        future.set_exception(error)
    else:
        future.set_result(result)
