"""A daemon thread that delivers at intervals, so that the training loop never waits for a network.

The caller decides what is delivered. This module only decides when, and bounds the flush and the end at exit.
"""

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable

_LOG = logging.getLogger("shadeproxy_sdk")
_EXIT_FLUSH_S = 2.0


class BackgroundSender:
    """Calls ``deliver`` every ``interval_s`` and on request. ``deliver`` returns True if nothing is left to
    send.

    The first call of ``start`` starts the thread; in a forked child, the first call starts a new thread.
    ``running``: True if this process has started its thread.
    """

    def __init__(self, deliver: Callable[[], bool], *, interval_s: float, name: str) -> None:
        self._deliver = deliver
        self._interval_s = interval_s
        self._name = name
        self._pid = -1
        self._closed = self.running = False
        self._reset()
        _SENDERS.add(self)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._asked = 0
        self._done = 0
        self._clean = True
        self._closing = False

    @property
    def closed(self) -> bool:
        """True if ``close`` was called: the next delivery is the last."""
        return self._closed

    def start(self) -> None:
        """Start the thread of this process, unless it runs. Callers check ``running`` first to
        save the call.
        """
        if self._closed or self.running:
            return
        self._reset()  # A lock that the parent held at the fork would stay locked here for ever.
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        # Set this first: other threads run while the thread starts, and may call ``start`` too.
        self.running = True
        self._thread.start()
        atexit.register(self.close, _EXIT_FLUSH_S)

    def wake(self) -> None:
        """Deliver soon, without waiting for the delivery; start the thread if needed."""
        self.start()
        with self._changed:
            self._asked += 1
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Deliver now, and return whether everything arrived within ``timeout_s``. Does nothing if
        ``deliver`` itself calls it.
        """
        if self._pid != os.getpid() or threading.current_thread() is self._thread:
            return True
        with self._changed:
            self._asked += 1
            wanted = self._asked
            self._changed.notify_all()
            arrived = self._changed.wait_for(lambda: self._done >= wanted or self._closing, timeout_s)
            return arrived and self._clean

    def close(self, timeout_s: float) -> bool:
        """Flush and end the thread. Return whether everything arrived. Idempotent. A closed sender starts no
        thread.
        """
        self._closed = True
        if self._thread is None or self._pid != os.getpid():
            return True
        clean = self.flush(timeout_s)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        atexit.unregister(self.close)
        if clean:  # Otherwise the thread may hang at a dead proxy: it ends later, when it sees the flag.
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
            # The thread must survive a defect: training goes on, scores are late, and the trace shows the
            # cause.
            _LOG.exception("Delivering scores failed")
            return False


_SENDERS: "weakref.WeakSet[BackgroundSender]" = weakref.WeakSet()


def _after_fork() -> None:
    for sender in _SENDERS:
        sender.running = False


# Without this, every start would need the process id, which is a system call at every training step.
os.register_at_fork(after_in_child=_after_fork)
