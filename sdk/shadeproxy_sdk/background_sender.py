"""A daemon thread that delivers reports at intervals, so that the training loop never waits for a network.

The caller's function ``deliver`` sends the reports. This module decides when to call it, and bounds how long
a flush and the exit of the process wait for the last delivery.
"""

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable

from shadeproxy_sdk.fork_lock import ForkLock

_LOG = logging.getLogger("shadeproxy_sdk")
_EXIT_FLUSH_S = 2.0


class BackgroundSender:
    """Calls ``deliver`` every ``interval_s`` seconds and on request. ``deliver`` returns True if nothing is
    left to send.

    ``hurry`` is called before a flush, so that ``deliver`` at once asks a server that has just come back. The
    first call of ``start`` starts the thread. A forked child does not inherit the thread, so the child's
    first call starts a new one. ``running``: True if this process has started its thread.
    """

    def __init__(
        self,
        deliver: Callable[[], bool],
        *,
        interval_s: float,
        name: str,
        hurry: Callable[[], None] = lambda: None,
    ) -> None:
        self._deliver = deliver
        self._hurry = hurry
        self._interval_s = interval_s
        self._name = name
        self._pid = -1
        self._closed = self.running = self._complained = False
        self._starting = ForkLock(threading.RLock)
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
        """True after ``close`` was called. At most one more delivery follows."""
        return self._closed

    def start(self) -> None:
        """Start the thread of this process, unless it runs. Callers check ``running`` first, which is cheaper
        than a call. Never raises: if the system has no thread to spare, a later call tries again.
        """
        if self._closed or self.running:
            return
        with self._starting:  # Several threads may call ``start`` at once.
            self._start_first()

    def _start_first(self) -> None:
        if self.running:  # Another thread was first.
            return
        self._reset()  # A condition that was locked at a fork would stay locked in the child for ever.
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        # Set ``running`` before the thread starts: it may call ``start`` itself.
        self.running = True
        try:
            self._thread.start()
        except RuntimeError as error:
            self._thread, self.running = None, False
            if not self._complained:
                self._complained = True
                _LOG.warning("No thread can be started, so scores wait: %s", error)
            return
        atexit.register(self.close, _EXIT_FLUSH_S)

    def wake(self) -> None:
        """Ask for a delivery soon, without waiting for it. Start the thread if it does not run."""
        self.start()
        with self._changed:
            self._asked += 1
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Deliver now, and return whether everything arrived within ``timeout_s``. If ``deliver`` itself
        calls this, return True at once, because its thread would wait for itself.
        """
        if self._pid != os.getpid() or threading.current_thread() is self._thread:
            return True
        if self._thread is None:
            return False
        self._hurry()
        with self._changed:
            self._asked += 1
            wanted = self._asked
            self._changed.notify_all()
            arrived = self._changed.wait_for(lambda: self._done >= wanted or self._closing, timeout_s)
            return arrived and self._clean

    def close(self, timeout_s: float) -> bool:
        """Flush, and end the thread. Return whether everything arrived. A second call does no harm. Once
        closed, the sender never starts a thread again.
        """
        self._closed = True
        if self._pid != os.getpid():
            return True
        if self._thread is None:
            return False
        clean = self.flush(timeout_s)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        atexit.unregister(self.close)
        if clean:  # Otherwise the thread may hang at a dead proxy; it ends later.
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
            # The thread must survive a defect in ``deliver``: training goes on, reports arrive late, and the
            # trace in the log shows the cause.
            _LOG.exception("Delivering scores failed")
            return False


_SENDERS: "weakref.WeakSet[BackgroundSender]" = weakref.WeakSet()


def _after_fork() -> None:
    for sender in _SENDERS:
        sender.running = False


# Without this hook, every call of ``start`` would have to ask for the process id. That is a system call in
# each training step.
if hasattr(os, "register_at_fork"):  # Windows cannot fork
    os.register_at_fork(after_in_child=_after_fork)
