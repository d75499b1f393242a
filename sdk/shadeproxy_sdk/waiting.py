"""Estimates how long a training loop waits for its DataLoader, if the loop does not measure that itself.

During an epoch, a thread checks LOOKS_PER_S times a second whether the training loop's thread, which began
the epoch, is inside ``__next__`` of the loader over its sampler. Each check that finds it there adds the time
since the check before. On a busy machine of 2 cores, a check takes 4 us, and 80 us with waking up; so ten
checks a second cost 0.08 % of a core, and twenty 0.17 %. The loop itself does no extra work. Outside of
epochs the thread sleeps. Laws: this module never imports torch, and raises nothing.
"""

import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from shadeproxy_sdk.fork_lock import ForkLock

_LOG = logging.getLogger("shadeproxy_sdk")
LOOKS_PER_S = 10
_PERIOD_S = 1 / LOOKS_PER_S
# Most seconds that one check adds. If the machine was suspended between two checks, the loop did not wait for
# data all that time.
_LONGEST_S = 4 * _PERIOD_S
_MOST_FRAMES = 60
_MOST_WRAPPERS = 4
_LINGER_S = 10.0  # Checks go on for 10 s after the sampler's end, longer while workers have batches.
_LONGEST_LINGER_S = 600.0


class LoaderWatch:
    """Checks regularly whether the loop waits. ``waited`` is called after each check that finds the loop
    waiting, with the seconds since the check before. ``found`` is called once an epoch with the loader's
    iterator, by the first check that finds it.
    """

    def __init__(
        self, waited: Callable[[float], None], found: Callable[[Any], None] = lambda _iterator: None
    ) -> None:
        self._waited = waited
        self._found = found
        self._pid = -1
        self._changed = threading.Condition(ForkLock())  # type: ignore[arg-type]  # it has what a lock has
        self._loop: int | None = None
        self._sampler: object = None
        self._until = self._ended_at = 0.0
        self._iterator: weakref.ref[Any] | None = None
        self._exact = 0
        self._closed = False

    def begin(self, sampler: object) -> None:
        """Begin an epoch of ``sampler``. The thread that calls this counts as the training loop."""
        if self._pid != os.getpid() and not self._closed:
            self._pid = os.getpid()
            try:
                threading.Thread(target=self._run, name="shade-waiting", daemon=True).start()
            except RuntimeError:  # The system has no thread to spare: training goes on without the estimate.
                _LOG.debug("No thread can look for the loop's waits", exc_info=True)
        with self._changed:
            self._loop, self._sampler, self._until = threading.get_ident(), sampler, float("inf")
            self._iterator = None
            self._changed.notify_all()

    def exhausted(self) -> None:
        """Note that the sampler has yielded everything, or that the loop has left the epoch early."""
        self._ended_at = time.monotonic()
        self._until = self._ended_at + _LINGER_S

    def timed(self, more: int) -> None:
        """Stop or continue the estimate, because there is none while the loop measures its own waits.
        ``more``: 1 when the loop begins to measure, -1 when it stops measuring.
        """
        with self._changed:
            self._exact += more
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread that checks."""
        with self._changed:
            self._closed, self._sampler = True, None
            self._changed.notify_all()

    @property
    def looking(self) -> bool:
        """True while an epoch runs whose waits are not measured."""
        if self._exact or self._closed:
            return False
        now = time.monotonic()
        return now < self._until or (now < self._ended_at + _LONGEST_LINGER_S and self._has_more())

    def _has_more(self) -> bool:
        """Return whether the workers of the observed loader still have batches, or are making some."""
        iterator = None if self._iterator is None else self._iterator()
        return getattr(iterator, "_tasks_outstanding", 0) > 0

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self.looking or self._closed)
                    if self._closed:
                        return
                self._look()
        except Exception:  # noqa: BLE001 (the law: training goes on without the estimate, and the trace says why)
            _LOG.debug("Looking for the loop's waits ended", exc_info=True)

    def _look(self) -> None:
        before = time.monotonic()
        while self.looking:
            time.sleep(_PERIOD_S)
            now = time.monotonic()
            if self._is_waiting() and not self._exact:
                self._waited(min(now - before, _LONGEST_S))
            before = now

    def _is_waiting(self) -> bool:
        code, loop = _code_of_next(), self._loop
        if code is None or loop is None:
            return False
        frame: FrameType | None = sys._current_frames().get(loop)  # noqa: SLF001 (the documented way)
        for _ in range(_MOST_FRAMES):
            if frame is None:
                return False
            if frame.f_code is code:
                return self._is_over_ours(frame.f_locals.get("self"))
            frame = frame.f_back
        return False

    def _is_over_ours(self, iterator: Any) -> bool:
        """Return whether the loader of ``iterator`` reads from the epoch's sampler, directly or through other
        samplers. A loader for validation does not.
        """
        sampler = getattr(iterator, "_index_sampler", None)
        for _ in range(_MOST_WRAPPERS):
            if sampler is None or sampler is self._sampler:
                break
            inner = getattr(sampler, "batch_sampler", None)
            sampler = getattr(sampler, "sampler", None) if inner is None else inner
        ours = sampler is not None and sampler is self._sampler
        if ours:
            if self._iterator is None:
                self._found(iterator)
            self._iterator = weakref.ref(iterator)
        return ours


def _code_of_next() -> CodeType | None:
    """Return the code of ``__next__`` of a DataLoader's iterator; None if torch is not imported."""
    loader = sys.modules.get("torch.utils.data.dataloader")
    step = getattr(getattr(loader, "_BaseDataLoaderIter", None), "__next__", None)
    return getattr(step, "__code__", None)
