"""A daemon thread that delivers at an interval, so that the training loop never waits for a network.

What is delivered is the caller's; here are only the rhythm, the bounded flush and the end at exit.
"""

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable

_LOG = logging.getLogger("shadeproxy_sdk")
_EXIT_FLUSH_S = 2.0


class Courier:
    """Calls ``deliver`` every ``interval_s`` and when asked. ``deliver`` returns whether nothing is left to
    send.

    The thread starts with the first ``start``; in a forked child it starts anew. ``running``: whether that of
    this process was started.
    """

    def __init__(self, deliver: Callable[[], bool], *, interval_s: float, name: str) -> None:
        self._deliver = deliver
        self._interval_s = interval_s
        self._name = name
        self._pid = -1
        self._closed = self.running = False
        self._reset()
        _COURIERS.add(self)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._asked = 0
        self._done = 0
        self._clean = True
        self._closing = False

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called: what is delivered now is the last."""
        return self._closed

    def start(self) -> None:
        """Make sure that the thread of this process runs; a look at ``running`` spares the call."""
        if self._closed or self.running:
            return
        self._reset()  # A lock that was held in the parent at the fork stays held here for ever.
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        # Before, since others run while it starts, and may ask for it, too.
        self.running = True
        self._thread.start()
        atexit.register(self.close, _EXIT_FLUSH_S)

    def wake(self) -> None:
        """Deliver soon, without waiting for it; starts the thread."""
        self.start()
        with self._changed:
            self._asked += 1
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Deliver now; whether everything arrived within ``timeout_s``. Within ``deliver``: nothing."""
        if self._pid != os.getpid() or threading.current_thread() is self._thread:
            return True
        with self._changed:
            self._asked += 1
            wanted = self._asked
            self._changed.notify_all()
            arrived = self._changed.wait_for(lambda: self._done >= wanted or self._closing, timeout_s)
            return arrived and self._clean

    def close(self, timeout_s: float) -> bool:
        """Flush and end the thread; whether everything arrived. Idempotent; a closed courier starts no
        more.
        """
        self._closed = True
        if self._thread is None or self._pid != os.getpid():
            return True
        clean = self.flush(timeout_s)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        atexit.unregister(self.close)
        if clean:  # Else it may be waiting for a dead proxy; it is a daemon, and ends when it sees the flag.
            self._thread.join(timeout_s)
        return clean

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._asked > self._done, self._interval_s)
                if self._closing:
                    return
                round_number = self._asked
            clean = self._deliver_safely()
            with self._changed:
                self._done = max(self._done, round_number)
                self._clean = clean
                self._changed.notify_all()

    def _deliver_safely(self) -> bool:
        try:
            return self._deliver()
        except Exception:  # noqa: BLE001 (see below)
            # The thread must outlive a bug: training goes on, scores are late, and the trace says why.
            _LOG.exception("Delivering scores failed")
            return False


_COURIERS: "weakref.WeakSet[Courier]" = weakref.WeakSet()


def _after_fork() -> None:
    for courier in _COURIERS:
        courier.running = False


# Asking for the process's number at every start would be a system call at every training step.
os.register_at_fork(after_in_child=_after_fork)
